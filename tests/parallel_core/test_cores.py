"""The order in which cores become devices, for processors as Linux describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallel_core.observe.cores import before, core_of, cores, ordered


def described(system: Path, siblings: dict[int, str], **speeds: dict[int, int]) -> Path:
    """A folder like /sys/devices/system/cpu, with the threads that share a core and the given speeds."""
    for core, text in siblings.items():
        folder = system / f"cpu{core}"
        (folder / "topology").mkdir(parents=True)
        (folder / "cpufreq").mkdir()
        (folder / "topology/thread_siblings_list").write_text(f"{text}\n")
    for name, told in speeds.items():
        for core, speed in told.items():
            file = "cpu_capacity" if name == "capacity" else "cpufreq/cpuinfo_max_freq"
            (system / f"cpu{core}" / file).write_text(f"{speed}\n")
    return system


@pytest.mark.parametrize(
    ("siblings", "usable", "order"),
    [
        # Intel numbers the first threads of all cores first; AMD and most virtual machines number both threads of a
        # core in turn.
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, range(4), [0, 1, 2, 3]),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, range(4), [0, 2, 1, 3]),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, (1, 2, 3), [1, 2, 3]),  # a core whose first thread we may not use
        ({0: "0-3", 1: "0-3", 2: "0-3", 3: "0-3"}, range(4), [0, 1, 2, 3]),
        ({}, (5, 3), [3, 5]),  # the system has no such files
    ],
)
def test_whole_cores_come_before_second_threads(
    siblings: dict[int, str], usable: tuple[int, ...], order: list[int], tmp_path: Path
) -> None:
    assert ordered(usable, described(tmp_path, siblings)) == order


def test_fast_cores_come_before_slow_ones_and_both_before_second_threads(tmp_path: Path) -> None:
    """Two fast cores with two threads each and two slow ones with one, like laptops since 2021."""
    siblings = {0: "0", 1: "1", 2: "2-3", 3: "2-3", 4: "4-5", 5: "4-5"}
    clock = dict.fromkeys(range(2), 3_600_000) | dict.fromkeys(range(2, 6), 5_000_000)
    assert ordered(range(6), described(tmp_path, siblings, clock=clock)) == [2, 4, 0, 1, 3, 5]


def test_capacity_tells_more_than_the_clock(tmp_path: Path) -> None:
    system = described(tmp_path, {0: "0", 1: "1"}, clock=dict.fromkeys(range(2), 2_000_000), capacity={0: 446, 1: 1024})
    assert ordered(range(2), system) == [1, 0]


def test_a_second_thread_knows_whose_core_it_shares(tmp_path: Path) -> None:
    system = described(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert [before(core, range(4), system) for core in range(4)] == [[], [], [0], [1]]
    assert before(2, (1, 2), system) == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes are not bound to cores here")
def test_devices_go_round_the_cores_of_this_process() -> None:
    here = cores()
    assert set(here) == os.sched_getaffinity(0)
    assert [core_of(device) for device in range(2 * len(here))] == here * 2
