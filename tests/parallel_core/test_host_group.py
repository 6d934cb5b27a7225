"""Collectives through shared memory: exact sums in rank order, for any size, and gloo where shared memory is off."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from parallel_core import launch
from parallel_core.engine import host_memory
from parallel_core.engine.async_all_gather import AsyncAllGather
from parallel_core.engine.collectives import all_gather, all_reduce, irecv, isend, reduce_scatter
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups, Rendezvous, connect, disconnect
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.host_group import HALF, HostGroup
from parallel_core.engine.host_links import SLOTS, ChannelLayout, HostLinks
from parallel_core.engine.norm import StageNorm
from parallel_core.engine.shared_gradients import SharedGradients
from parallel_core.layout import Layout
from parallel_core.observe.memory import MemoryMeter
from parallel_core.spec import RunSpec
from tests.parallel_core.ranks import run

RANKS = 3
SIZES = (0, 1, 1000, HALF // 8 + 5)
"""Elements in a rank's part: the last one needs several pieces."""
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)


shared = pytest.mark.skipif(
    platform.machine() != "x86_64" or not hasattr(os, "memfd_create"), reason="ranks share memory on Linux on x86 alone"
)


def spec() -> RunSpec:
    return RunSpec.model_validate({"parallel": {"dp": RANKS}, "train": {"global_batch": RANKS}})


def drawn(seed: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rounded_once(given: list[torch.Tensor]) -> torch.Tensor:
    """The sum in rank order; 16-bit numbers are added in fp32 and rounded at the end."""
    narrow = given[0].is_floating_point() and given[0].itemsize < 4
    first, second, third = (one.float() if narrow else one for one in given)
    return ((first + second) + third).to(given[0].dtype)


def _wrong(group: Any, rank: int, size: int, dtype: torch.dtype) -> list[str]:
    """Names of the concurrent collectives, in parts of `size`, that do not give the exact result."""
    given = [drawn(100 * r + size % 7, RANKS * size, dtype) for r in range(RANKS)]
    total = rounded_once(given)
    summed, largest = given[rank].clone(), given[rank].clone()
    part, whole = torch.empty(size, dtype=dtype), torch.empty(RANKS * size, dtype=dtype)
    works = [
        all_reduce(summed, group),
        all_reduce(largest, group, dist.ReduceOp.MAX),
        reduce_scatter(part, given[rank], group),
        all_gather(whole, given[rank][:size], group),
    ]
    works[2].wait()  # implies all before it
    works[0].wait()  # already finished
    pairs = {
        "sum": (summed, total),
        "max": (largest, torch.stack(given).amax(0)),
        "part": (part, total[rank * size : (rank + 1) * size]),
    }
    works[3].wait()
    pairs["whole"] = (whole, torch.cat([one[:size] for one in given]))
    return [f"{what} of {size} {dtype}" for what, (got, want) in pairs.items() if not torch.equal(got, want)]


def _talk(of: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    groups = connect(meeting, rank, Layout.of(of), "gloo")
    group = groups.data
    try:
        wrong = [told for dtype in TYPES for size in SIZES for told in _wrong(group, rank, size, dtype)]
        meter, mine = MemoryMeter(), torch.ones(9)
        with meter.measure():
            all_reduce(mine, group).wait()
        return type(group).__name__, wrong, meter.peak_total, float(mine[0])
    finally:
        disconnect()


@shared
def test_sums_parts_and_wholes_are_exact_on_every_rank(tmp_path: Path) -> None:
    for kind, wrong, metered, one in run(spec(), _talk, tmp_path):
        assert kind == HostGroup.__name__ and not wrong
        assert metered <= 9 * 4, "memory shared between ranks is not counted as activations"
        assert one == RANKS


def _gloo(of: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    groups = connect(meeting, rank, Layout.of(of), "gloo")
    try:
        mine = torch.full((5,), float(rank + 1))
        all_reduce(mine, groups.data).wait()
        return isinstance(groups.data, HostGroup), mine.tolist()
    finally:
        disconnect()


def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_memory.SWITCH, "0")
    assert run(spec(), _gloo, tmp_path) == [(False, [6.0] * 5)] * RANKS


def _apart(of: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    """The last rank cannot open the first one's memory, as if on another host."""
    if rank == RANKS - 1:
        host_memory.open_file = lambda told, length: None  # type: ignore[assignment]
    return _gloo(of, rank, meeting, folder)


def test_ranks_that_share_no_memory_all_take_gloo(tmp_path: Path) -> None:
    assert run(spec(), _apart, tmp_path) == [(False, [6.0] * 5)] * RANKS


def _totals(rank: int, groups: Groups) -> list[torch.Tensor]:
    """A norm's gradient summed over the tensor group, and the norm of a stage."""
    name, module = "block.0.attn.norm.weight", torch.nn.LayerNorm(999)
    flat = FlatParameters([(name, module, "weight")], torch.float32, CpuDevice())
    flat.grads.copy_(drawn(rank, flat.size, torch.float32))
    SharedGradients(flat, groups, sequence=True).sum()
    squares = StageNorm(flat, groups.tensor, 0, "pairs").of(drawn(50 + rank, 1, torch.float64))
    return [flat.grads, torch.as_tensor(squares)]


def _of_two_replicas(of: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    """The same numbers in a tensor group on one host, and in one on several."""
    groups = connect(meeting, rank, Layout.of(of), "gloo")
    try:
        near = replace(groups, tensor=groups.data)
        return _totals(rank, near), _totals(rank, replace(near, tensor=dist.group.WORLD)), type(near.tensor).__name__
    finally:
        disconnect()


@shared
def test_replicas_sum_alike_although_the_tensor_group_of_one_spans_hosts(tmp_path: Path) -> None:
    for one, other, kind in run(spec(), _of_two_replicas, tmp_path):
        assert kind == HostGroup.__name__
        assert all(map(torch.equal, one, other)), "replicas would drift apart"


@pytest.mark.parametrize(("seen", "value", "reached"), [(4, 5, False), (5, 5, True), (2**31 - 1, -(2**31), False)])
def test_turns_are_counted_around_the_end_of_their_word(seen: int, value: int, reached: bool) -> None:
    assert host_memory.reached(seen, value) is reached
    assert host_memory.reached(value, seen) is (not reached or seen == value)


def _post(of: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    """Sends more messages than a channel has slots before they are received; then back and forth, in two dtypes and
    sizes.
    """
    groups = connect(meeting, rank, Layout.of(of), "gloo")
    (forth, back), wrong = (groups.links[True, True], groups.links[False, False]), 0
    try:
        for link in (forth, back):
            if isinstance(link, HostLinks):
                link.layout = ChannelLayout(4096 * 8)
        for i in range(3 * SLOTS):
            if rank == 0:
                isend(torch.full((i % 7 + 1,), float(i)), 1, forth).wait()
            else:
                irecv(got := torch.empty(i % 7 + 1), 0, forth).wait()
                wrong += got.tolist() != [float(i)] * (i % 7 + 1)
        for i in range(20):
            mine, theirs = (forth, back) if rank == 0 else (back, forth)
            answers = [torch.empty(2048 * (n + 1), dtype=torch.float64) for n in range(2)]
            coming = [irecv(answer, 1 - rank, theirs) for answer in answers]
            going = [isend(drawn(i + n + rank, 2048 * (n + 1), torch.float64), 1 - rank, mine) for n in range(2)]
            for work in (*coming, *going):
                work.wait()
            wanted = [drawn(i + n + 1 - rank, 2048 * (n + 1), torch.float64) for n in range(2)]
            wrong += sum(not torch.equal(*pair) for pair in zip(answers, wanted, strict=True))
        return type(forth).__name__, wrong
    finally:
        disconnect()


@shared
def test_messages_come_whole_and_in_order(tmp_path: Path) -> None:
    pipeline = RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 2}, "train": {"global_batch": 2}})
    assert run(pipeline, _post, tmp_path) == [(HostLinks.__name__, 0)] * 2


def _steps_apart(of: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    """The first rank waits for all but its last gather, while the others have started theirs and wait for none."""
    groups = connect(meeting, rank, Layout.of(of), "gloo")
    store, steps = groups.store, 5
    assert store is not None
    try:
        table = [torch.empty(2 * 3, dtype=torch.float64) for _ in range(steps)]
        mine = [torch.full((3,), 10.0 * step + rank, dtype=torch.float64) for step in range(steps)]
        works = [all_gather(*given, groups.totals) for given in zip(table[:-1], mine[:-1], strict=True)]
        if rank:
            store.get("the first rank has waited")
            works.append(all_gather(table[-1], mine[-1], groups.totals))
            store.set("the others wait", "")
        for work in works:
            work.wait()
        if not rank:
            works.append(all_gather(table[-1], mine[-1], groups.totals))
            store.set("the first rank has waited", "")
            store.get("the others wait")
            works[-1].wait()
        return type(groups.totals).__name__, [row[::3].tolist() for row in table]
    finally:
        disconnect()


@pytest.mark.parametrize("switch", ["1", "0"])
def test_totals_of_ranks_that_are_steps_apart(switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_memory.SWITCH, switch)
    split = {"pp": 2, "micro_batches": 2, "schedule": "1f1b-stash"}
    stream = RunSpec.model_validate({"parallel": split, "train": {"global_batch": 2, "clip_norm": None}})
    for kind, rows in run(stream, _steps_apart, tmp_path):
        assert rows == [[10.0 * step, 10.0 * step + 1] for step in range(5)]
        assert (kind == AsyncAllGather.__name__) is (switch == "1" and platform.machine() == "x86_64")


def test_the_switch_reaches_the_ranks_of_a_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_memory.SWITCH, "0")
    monkeypatch.setenv("TRAINYARD_TOKEN", "secret")
    given = launch.environment()
    assert given[host_memory.SWITCH] == "0"
    assert "TRAINYARD_TOKEN" not in given
