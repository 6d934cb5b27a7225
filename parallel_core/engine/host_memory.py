"""Memory shared by the ranks of a host, and counters in it that can be waited for.

Waiting polls briefly, then sleeps on a futex (man 2 futex), so ranks that share a core do not keep each other from
running. Only Linux on x86 has both futexes and the memory order needed: elsewhere, and between hosts, `open_file`
returns None, and gloo is used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress

from parallel_core.processes import boot

SWITCH = "TRAINYARD_SHARED_MEMORY"
"""Environment variable: 0 turns shared memory off for all ranks of a run."""
NODE = "TRAINYARD_NODE"
"""Environment variable that identifies the host of a run, so that one machine can stand for several hosts."""
_LOOKS = 200
_SYSCALL = {"x86_64": 202}.get(platform.machine())
"""x86 makes a rank's writes visible in program order; with a weaker memory order a counter could become visible before
the data that it counts."""
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_TIMEOUT_S = 600.0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SECOND = _Timespec(1, 0)


class Counter:
    """An integer in shared memory that one rank increases and others wait for."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._value, self._libc = ctypes.c_int32.from_buffer(memory, offset), ctypes.CDLL(None, use_errno=True)
        self._at = ctypes.c_void_p(ctypes.addressof(self._value))

    @property
    def value(self) -> int:
        return self._value.value

    def tell(self, value: int) -> None:
        """Sets the value and wakes the waiting ranks. Whoever sees it also sees everything written before."""
        self._value.value = value
        self._libc.syscall(_SYSCALL, self._at, _WAKE, _ALL, None, None, 0)

    def reach(self, value: int, look: Callable[[], None] = lambda: None) -> None:
        """Waits until the counter has reached `value`.

        `look` is called about once a second; it should raise where the rank that counts has ended. Raises
        TimeoutError after ten minutes.
        """
        word = self._value
        for _ in range(_LOOKS):
            if reached(word.value, value):
                return
        until = time.monotonic() + _TIMEOUT_S
        while not reached(seen := word.value, value):
            self._libc.syscall(_SYSCALL, self._at, _WAIT, seen, ctypes.byref(_SECOND), None, 0)
            if reached(word.value, value):
                return
            look()
            if time.monotonic() > until:
                raise TimeoutError(f"a rank of this host has not come for {_TIMEOUT_S:.0f} s")


def reached(seen: int, value: int) -> bool:
    """Whether `seen` is `value` or beyond; counters are 32 bits wide and wrap around in a long run."""
    return (seen - value) & 0xFFFFFFFF < 0x80000000


def create(length: int) -> int | None:
    """Returns the descriptor of a file in memory, freed with its last user; None where shared memory is not available.

    Pages are allocated when they are written to, so a large `length` costs nothing by itself.
    """
    if _SYSCALL is None or os.environ.get(SWITCH) == "0" or not hasattr(os, "memfd_create"):
        return None
    with suppress(OSError):  # too many open files, or forbidden by the host
        made = os.memfd_create("trainyard", os.MFD_CLOEXEC)
        with suppress(OSError):
            os.ftruncate(made, length)
            return made
        os.close(made)
    return None


def address(file: int | None) -> str:
    """Returns where other processes find the file made by `create` while it is open here, and what identifies it."""
    if file is None:
        return "none"
    made = os.fstat(file)
    return f"{_host()} {made.st_dev}:{made.st_ino} /proc/{os.getpid()}/fd/{file}"


def open_file(where: str, length: int) -> mmap.mmap | None:
    """Returns the memory at an `address`; None where it is on another host, no longer exists, or cannot be opened."""
    host, _, there = where.partition(" ")
    if _SYSCALL is None or host != _host():
        return None
    identity, _, path = there.partition(" ")
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if f"{found.st_dev}:{found.st_ino}" == identity and found.st_size >= length:
                return mmap.mmap(file, length)
        finally:
            os.close(file)
    return None


def _host() -> str:
    """Identifies this boot of this machine and its pid namespace: containers of one machine have their own."""
    return f"{boot() or 'unknown'}/{os.environ.get(NODE, '')}"
