"""Memory that ranks free stays with their process, so the next step does not page-fault for it again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parallel_core import launch, processes

_ROUND = 48 << 20
_PROGRAM = f"""
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [libc.malloc({_ROUND} // 16) for _ in range(16)] + [libc.malloc({_ROUND})]
    for at, size in zip(held, [{_ROUND} // 16] * 16 + [{_ROUND}]):
        ctypes.memset(at, 1, size)
    for at in held:
        libc.free(at)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults[1:])
"""


def _faults(env: dict[str, str]) -> list[int]:
    """Page faults of each round, except the first, that allocates, fills and frees the same blocks."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not processes.LINUX, reason="glibc's settings")
def test_what_a_step_lets_go_of_is_not_faulted_in_again() -> None:
    env = launch.environment()
    usual = {key: value for key, value in env.items() if key != "GLIBC_TUNABLES"}
    assert max(_faults(env)) < 64 < min(_faults(usual))


def test_a_setting_of_ones_own_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
    assert launch.environment()["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=2"
