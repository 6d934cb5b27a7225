"""Memory that ranks of one host share, and numbers in it that can be waited for.

Waiting is a futex (man 2 futex) behind a short look, so ranks that share a core do not take turns at looking. Linux
on x86 alone has both: elsewhere, and between hosts, `open_file` says None, and gloo it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SWITCH = "TRAINYARD_SHARED_MEMORY"
"""The environment variable that turns it off where it is 0, for all ranks of a run."""
NODE = "TRAINYARD_NODE"
"""The environment variable that tells apart what a run knows as two hosts, though one machine may be both."""
_LOOKS = 200
_SYSCALL = {"x86_64": 202}.get(platform.machine())
"""x86 alone shows others a rank's writes in the order in which they were made; elsewhere a counter could run ahead of
what it counts."""
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_TIMEOUT_S = 600.0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SECOND = _Timespec(1, 0)


class Counter:
    """A number in shared memory that one rank counts up, and that others can wait for."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._value, self._libc = ctypes.c_int32.from_buffer(memory, offset), ctypes.CDLL(None, use_errno=True)
        self._at = ctypes.c_void_p(ctypes.addressof(self._value))

    @property
    def value(self) -> int:
        return self._value.value

    def tell(self, value: int) -> None:
        """Everything that was written before is there for whoever sees it."""
        self._value.value = value
        self._libc.syscall(_SYSCALL, self._at, _WAKE, _ALL, None, None, 0)

    def reach(self, value: int, look: Callable[[], None] = lambda: None) -> None:
        """`look` is called about once a second, and raises where nobody is left who could count on.

        Raises TimeoutError after ten minutes.
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
    """Counted in 32 bits, which a long run goes through more than once."""
    return (seen - value) & 0xFFFFFFFF < 0x80000000


def create(length: int) -> int | None:
    """A file in memory, which goes when the last of its users does; None where there is none to be had.

    Pages come as they are written to, so a length costs nothing by itself.
    """
    if _SYSCALL is None or os.environ.get(SWITCH) == "0" or not hasattr(os, "memfd_create"):
        return None
    with suppress(OSError):  # too many files are open, or the host forbids it
        made = os.memfd_create("trainyard", os.MFD_CLOEXEC)
        with suppress(OSError):
            os.ftruncate(made, length)
            return made
        os.close(made)
    return None


def address(file: int | None) -> str:
    """Where others find what `create` made, as long as it is open here; how they know that it is this one."""
    if file is None:
        return "none"
    made = os.fstat(file)
    return f"{_host()} {made.st_dev}:{made.st_ino} /proc/{os.getpid()}/fd/{file}"


def open_file(told: str, length: int) -> mmap.mmap | None:
    """The memory at an `address`; None where it is another host's, nobody's, or cannot be had."""
    host, _, there = told.partition(" ")
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
    """Of this boot of this machine, and of these names of processes: containers of a machine have their own."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.environ.get(NODE, '')}"
    return "unknown"
