"""Limits of a container, a systemd unit or a batch job, in the files by which Linux tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_core.observe import control_group
from parallel_core.observe.control_group import Room
from parallel_core.observe.cores import cores

GIB = 1 << 30
FIRST = "4:memory:/docker/f1\n2:cpu,cpuacct:/docker/f1\n1:name=systemd:/docker/f1\n0::/docker/f1\n"
"""Membership in version 1, as Docker shows it to a container whose mounts begin at its own groups."""


class Groups:
    """Folders like /sys/fs/cgroup, and a file like /proc/self/cgroup."""

    def __init__(self, folder: Path, membership: str) -> None:
        self.at, self._told = folder / "cgroup", folder / "membership"
        self.at.mkdir()
        self._told.write_text(membership)

    @property
    def where(self) -> tuple[Path, Path]:
        return self.at, self._told

    def group(self, name: str, **files: str) -> None:
        (self.at / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (self.at / name / file.replace("__", ".")).write_text(f"{text}\n")


def test_a_container_of_version_2(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/\n")
    stat = f"anon {GIB}\nfile {GIB // 2}\ninactive_file {GIB // 4}"
    groups.group(".", memory__max=str(4 * GIB), memory__current=str(2 * GIB), memory__stat=stat)
    groups.group(".", cpu__max="150000 100000", memory__events="oom 3\noom_kill 2\noom_group_kill 0")
    assert control_group.memory(*groups.where) == Room(4 * GIB, 2 * GIB + GIB // 4)  # what the cache gives up is left
    assert control_group.processors(*groups.where) == 1.5
    assert control_group.oom_kills(*groups.where) == 2


def test_a_container_of_version_1(tmp_path: Path) -> None:
    groups = Groups(tmp_path, FIRST)
    files = {"memory__limit_in_bytes": str(2 * GIB), "memory__usage_in_bytes": str(GIB)}
    groups.group(
        "memory", **files, memory__stat="inactive_file 5\ntotal_inactive_file 7", memory__oom_control="oom_kill 1"
    )
    groups.group("cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert control_group.memory(*groups.where) == Room(2 * GIB, GIB + 7)
    assert control_group.processors(*groups.where) == 0.5
    assert control_group.oom_kills(*groups.where) == 1


def test_no_limit(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/user.slice\n")
    groups.group("user.slice", memory__max="max", memory__current=str(GIB), cpu__max="max 100000")
    assert control_group.memory(*groups.where) is None
    assert control_group.processors(*groups.where) is None
    assert control_group.oom_kills(*groups.where) is None


def test_no_limit_of_version_1(tmp_path: Path) -> None:
    groups = Groups(tmp_path, FIRST)
    groups.group("cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert control_group.processors(*groups.where) is None


def test_the_groups_above_limit_too(tmp_path: Path) -> None:
    """A job's limit is that of its steps, and other steps of the job use some of it."""
    groups = Groups(tmp_path, "0::/slurm/job_7/step_0\n")
    groups.group("slurm/job_7", memory__max=str(8 * GIB), memory__current=str(7 * GIB), cpu__max="400000 100000")
    groups.group("slurm/job_7/step_0", memory__max=str(16 * GIB), memory__current=str(GIB), cpu__max="max 100000")
    assert control_group.memory(*groups.where) == Room(8 * GIB, GIB)
    assert control_group.processors(*groups.where) == 4


@pytest.mark.parametrize("membership", ["", "nonsense\n", "0::/../../elsewhere\n"])
def test_a_group_that_is_not_shown(membership: str, tmp_path: Path) -> None:
    groups = Groups(tmp_path, membership)
    groups.group("elsewhere", memory__max="5", memory__current="1")
    assert control_group.memory(*groups.where) is None
    assert control_group.memory(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(("share", "count"), [(None, None), (0.5, 1), (1.9, 1), (10_000.0, None)])
def test_devices_are_as_many_cores_as_the_group_may_fill(
    share: float | None, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_group, "processors", lambda: None)
    usable = cores()
    monkeypatch.setattr(control_group, "processors", lambda: share)
    assert cores() == usable[:count]
