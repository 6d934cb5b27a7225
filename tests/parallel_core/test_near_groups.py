"""Groups in memory and torch groups side by side: all members of a group open it under one name, however many groups
each of them is in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.engine import host_memory, near_groups
from parallel_core.engine.collectives import Group, all_gather, all_reduce, irecv, isend
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous, connect, disconnect, groups_of, pairs, shard_group
from parallel_core.engine.host_group import HostGroup
from parallel_core.engine.near_groups import own_group
from parallel_core.layout import Layout
from parallel_core.profile import links
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.strategies import run_specs

SIZES = (1024,)
LIMIT_S = 60.0
MODEL = {"layers": 6, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
Names = list[tuple[tuple[int, ...], tuple[tuple[int, ...], int]]]
"""The torch groups of a rank, in the order in which it opens them: their ranks, and the name under which they meet."""


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[float], list[tuple[str, int]]]:
    """Returns the sums over each group that the rank belongs to, and the links that it measured."""
    groups = connect(meeting, rank, Layout.of(spec), "gloo")
    assert groups.store is not None
    try:
        sums = []
        for members in ((0, 1), (0, 1, 2, 3), (2, 3), (0, 1), range(6)):
            group = own_group([members], rank, groups.store)
            assert (group is None) == (rank not in members)
            if group is not None:
                assert isinstance(group, HostGroup) == (host_memory.create(8) is not None)
                sums.append(_sum(rank, group))
        found = links.measure(links.Meeting(rank, 6, groups.store, open_device("cpu"), lambda: None), SIZES)
        dist.barrier()
        return sums, [(link.what, link.ranks) for link in found]
    finally:
        disconnect()


def _sum(rank: int, group: Group) -> float:
    told = torch.ones(1) * (rank + 1)
    all_reduce(told, group).wait()
    return float(told)


@pytest.mark.parametrize("memory", ["1", pytest.param("0", marks=pytest.mark.full)])
def test_every_rank_asks_and_its_members_get_it(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_memory.SWITCH, memory)
    spec = RunSpec.model_validate({"parallel": {"dp": 6}, "train": {"global_batch": 6}})
    told = ranks.run(spec, _work, ranks.scratch())
    assert [sums for sums, _ in told] == [[3, 10, 3, 21]] * 2 + [[10, 7, 21]] * 2 + [[21]] * 2
    assert {many for what, many in told[0][1] if what == "all_reduce"} == {2, 4, 6}
    assert all(not found for _, found in told[1:])


def _over_hosts(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, hosts: Sequence[int]) -> bool:
    """Uses every group, and the links in both directions, of a rank of `hosts`[rank]."""
    os.environ[host_memory.NODE] = str(hosts[rank])
    layout = Layout.of(spec)
    groups = connect(meeting, rank, layout, "gloo", spec.model.tied)
    try:
        _use(groups, rank, layout)
        assert shard_group(rank, layout, groups.data) is not None or layout.dp == 1
        dist.barrier()
        return True
    finally:
        disconnect()


def _use(groups: Groups, rank: int, layout: Layout) -> None:
    for group, sets in ((groups.tensor, layout.tensor_groups()), (groups.data, layout.data_groups())):
        (members,) = (ranks for ranks in sets if rank in ranks)
        if len(members) > 1:
            assert _sum(rank, group) == sum(member + 1 for member in members)
    every = torch.empty(layout.world)
    all_gather(every, torch.ones(1) * rank, groups.totals).wait()
    assert every.tolist() == list(range(layout.world))
    for kind, link in sorted(groups.links.items()):
        for sender, receiver in pairs(rank, layout, kind):
            told = torch.ones(1) * (sender if sender == rank else -1)
            (isend(told, receiver, link) if sender == rank else irecv(told, sender, link)).wait()
            assert float(told) == sender


def test_ranks_spread_unevenly_over_hosts_find_each_other() -> None:
    """Pipelines and groups that lie inside a host beside others that do not."""
    splits: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({"dp": 2, "pp": 2, "micro_batches": 2}, (0, 0, 0, 1)),
        ({"dp": 2, "tp": 2}, (0, 0, 0, 1)),
        ({"dp": 2, "tp": 2}, (0, 0, 1, 2)),
        ({"tp": 2, "pp": 2, "micro_batches": 2, "schedule": "1f1b-stash"}, (0, 0, 0, 1)),
    ]
    turns = []
    for split, hosts in splits:
        raw = {"model": MODEL, "parallel": split, "train": {"global_batch": 8, "clip": "stage"}}
        turns.append((RunSpec.model_validate(raw), partial(_over_hosts, hosts=hosts)))
    assert ranks.run_each(turns, LIMIT_S) == [[True] * 4] * len(splits)


@st.composite
def _spread(draw: st.DrawFn) -> tuple[RunSpec, list[int]]:
    """A run, and the host of each of its ranks, which are in rank order as `placement.spread` places them."""
    spec = draw(run_specs(in_turn=True))
    first = draw(st.sets(st.integers(1, max(1, spec.parallel.world - 1)), max_size=3))
    return spec, [sum(rank >= start for start in first) for rank in range(spec.parallel.world)]


@given(_spread())
def test_members_open_a_group_under_one_name(spread: tuple[RunSpec, list[int]]) -> None:
    spec, hosts = spread
    layout = Layout.of(spec)
    alone = [_opened(layout, rank, hosts, spec.model.tied)[0] for rank in range(layout.world)]
    told = [torch.stack(parts).sum(0) for parts in zip(*alone, strict=True)]
    names = [_opened(layout, rank, hosts, spec.model.tied, told)[1] for rank in range(layout.world)]
    for own in names:
        for members, _ in own:
            seen = {tuple(name for ranks, name in names[member] if ranks == members) for member in members}
            assert len(seen) == 1, (members, seen)
    met = {name: members for own in names for members, name in own}
    assert all(met[name] == members for own in names for members, name in own), "one name for two groups"
    assert all([name for _, name in own] == sorted(name for _, name in own) for own in names), "they could deadlock"


def _opened(
    layout: Layout, rank: int, hosts: Sequence[int], tied: bool, told: Sequence[torch.Tensor] = ()
) -> tuple[list[torch.Tensor], Names]:
    """What a rank tells the others, and the torch groups that it opens if all ranks together have `told` this.

    Names are torch's: how many groups were asked for, or for members alone how many the rank is in already.
    """
    said: list[torch.Tensor] = []
    opened: Names = []
    asked = 0

    def near(ranks: Sequence[int], *_: object) -> object | None:
        return object() if len({hosts[member] for member in ranks}) == 1 else None

    def new_group(ranks: list[int], use_local_synchronization: bool = False, **_: object) -> object:
        nonlocal asked
        asked += not use_local_synchronization
        if rank in ranks:
            members = tuple(ranks)
            opened.append((members, (members, len(opened)) if use_local_synchronization else ((), asked)))
        return object()

    def told_by_all(tensor: torch.Tensor) -> None:
        said.append(tensor.clone())
        if told:
            tensor.copy_(told[len(said) - 1])

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open_group", "open_links", "open_async_all_gather"):
            patch.setattr(near_groups, name, near)
        patch.setattr(dist, "new_group", new_group)
        patch.setattr(dist, "all_reduce", told_by_all)
        patch.setattr(dist, "get_backend", lambda: "gloo")
        patch.setattr(dist, "get_world_size", lambda: layout.world)
        groups_of(rank, layout, dist.HashStore(), tied)
    return said, opened
