"""Groups for a profile, where the first ranks belong to more groups than the others; through shared memory or
sockets.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parallel_core.engine import host_memory
from parallel_core.engine.collectives import all_reduce
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, common_group, connect, disconnect
from parallel_core.engine.host_group import HostGroup
from parallel_core.layout import Layout
from parallel_core.profile import links
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

SIZES = (1024,)


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[float], list[tuple[str, int]]]:
    """Returns the sums over each group that the rank belongs to, and the links that it measured."""
    groups = connect(meeting, rank, Layout.of(spec), "gloo")
    assert groups.store is not None
    try:
        sums = []
        for members in ((0, 1), (0, 1, 2, 3), (2, 3), (0, 1), range(6)):
            group = common_group(members, rank, groups.store)
            assert (group is None) == (rank not in members)
            if group is not None:
                assert isinstance(group, HostGroup) == (host_memory.create(8) is not None)
                told = torch.ones(1) * (rank + 1)
                all_reduce(told, group).wait()
                sums.append(float(told))
        found = links.measure(links.Meeting(rank, 6, groups.store, open_device("cpu")), SIZES)
        dist.barrier()
        return sums, [(link.what, link.ranks) for link in found]
    finally:
        disconnect()


@pytest.mark.parametrize("memory", ["1", "0"])
def test_every_rank_asks_and_its_members_get_it(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_memory.SWITCH, memory)
    spec = RunSpec.model_validate({"parallel": {"dp": 6}, "train": {"global_batch": 6}})
    told = ranks.run(spec, _work, ranks.scratch())
    assert [sums for sums, _ in told] == [[3, 10, 3, 21]] * 2 + [[10, 7, 21]] * 2 + [[21]] * 2
    assert {many for what, many in told[0][1] if what == "all_reduce"} == {2, 4, 6}
    assert all(not found for _, found in told[1:])
