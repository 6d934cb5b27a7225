"""How messages between ranks are timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from parallel_core.engine import host_memory
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.engine.near_groups import own_group
from parallel_core.layout import Layout
from parallel_core.profile import links
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

PAIR = RunSpec.model_validate({"parallel": {"dp": 2}, "train": {"global_batch": 2}})
Marks = list[tuple[str, float]]


class _Behind(CpuDevice):
    """A device that comes to the end of its work `behind` seconds later, as one whose core another rank has."""

    def __init__(self, behind: float, marks: Marks) -> None:
        super().__init__()
        self._behind, self._marks = behind, marks

    def synchronise(self) -> None:
        time.sleep(self._behind)
        self._marks.append(("end", time.monotonic()))


def _marks(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Marks:
    """When the rank began the work before each message, and when it was done with that and with the message."""
    marks: Marks = []
    groups = connect(meeting, rank, Layout.of(spec), "gloo")
    try:
        assert groups.store is not None
        group, device = own_group([(0, 1)], rank, groups.store), _Behind(0.005 * rank, marks)
        at = links.Meeting(rank, 2, groups.store, device, lambda: marks.append(("begin", time.monotonic())))
        links.collectives(at, group, 2, (1024,))
        return marks
    finally:
        disconnect()


@pytest.mark.parametrize("memory", ["1", "0"])
def test_no_rank_computes_while_another_still_has_the_message(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share a core would time each other's work as part of the message."""
    monkeypatch.setenv(host_memory.SWITCH, memory)
    first, second = ranks.run(PAIR, _marks, ranks.scratch())
    assert [what for what, _ in first] == [what for what, _ in second]
    done = 0.0
    for (what, at), (_, other) in zip(first, second, strict=True):
        assert what != "begin" or at >= done
        done = other if what == "end" else done
