"""Costs of a measured step whose ranks wait for each other inside an operation: the wait is not communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.measured import Measured, measure
from parallel_core.simulate.replay import FREE, Change, replay
from parallel_core.spec import RunSpec

Row = tuple[Kind, int, float, float]
"""Kind, micro-batch, start, end."""
Spans = dict[int, np.ndarray]
MS = 1_000_000
EACH = 10
"""Collectives of 1 ms in each direction; 10 ms of compute before each in the forward, 20 ms in the backward."""


def straggler(i: int) -> tuple[float, float]:
    return 1.0, 3.0


def mild(i: int) -> tuple[float, float]:
    return 1.0, 1.3


def jitter(i: int) -> tuple[float, float]:
    return (1.2, 0.8) if i % 2 else (0.8, 1.2)


def step(inside: Kind, slower: Callable[[int], tuple[float, float]], *, replicas: bool = False) -> Spans:
    """A step of two ranks: `slower(i)` = factors on both ranks' compute before the i-th collective of a direction. Of
    replicas, each has its own micro-batch, and they add their gradients in 1 ms."""
    rows: dict[int, list[Row]] = {0: [], 1: []}
    now = 0.0
    for kind, compute in ((Kind.F, 10 * MS), (Kind.BW, 20 * MS)):
        begun, waits = now, []
        for i in range(EACH):
            came = [now + compute * factor for factor in slower(i)]
            now = max(came) + MS
            waits.append((came, now))
        for rank, own in rows.items():
            own += [(kind, rank * replicas, begun, now), *((inside, -1, came[rank], end) for came, end in waits)]
    last = [Kind.REDUCE_SCATTER] * replicas + [Kind.OPT_STEP]
    ending = [(kind, -1, now + i * MS, now + (i + 1) * MS) for i, kind in enumerate(last)]
    whole = (Kind.STEP, -1, 0, now + len(last) * MS)
    return {rank: _table([whole, *own, *ending]) for rank, own in rows.items()}


def _table(own: list[Row]) -> np.ndarray:
    table = np.zeros(len(own), SPAN)
    for name, column in zip(("kind", "micro_batch", "start", "end"), zip(*own, strict=True), strict=True):
        table[name] = np.array(column).astype(table[name].dtype)
    return table


def measured(split: dict[str, Any], spans: Spans) -> tuple[RunSpec, Measured]:
    model = {"layers": 2, "hidden": 32, "heads": 4, "seq": 32, "vocab": 64}
    made = RunSpec.model_validate({"model": model, "parallel": split, "train": {"global_batch": 8}})
    return made, measure(build(made), spans, Layout.of(made))


@pytest.mark.parametrize(
    ("slower", "total", "free"),
    [(straggler, 921, 901), (mild, 411, 391), (jitter, 381, 361)],
    ids=("3x", "1.3x", "jitter"),
)
def test_free_links_leave_the_wait_for_the_slower_tensor_rank(
    slower: Callable[[int], tuple[float, float]], total: int, free: int
) -> None:
    """The slowest rank before each collective sets the pace, not the mean of the ranks."""
    made, found = measured({"tp": 2}, step(Kind.TP_COLLECTIVE, slower))
    assert found.step == replay(made, found, Change()).step == total * MS
    assert replay(made, found, Change(links=FREE)).step == free * MS
    assert replay(made, found, Change(device=2)).step == (free / 2 + 2 * EACH) * MS


def test_free_links_leave_the_wait_for_the_slower_replica() -> None:
    made, found = measured({"dp": 2, "zero": 3}, step(Kind.UNSHARD, jitter, replicas=True))
    assert found.step == replay(made, found, Change()).step == 382 * MS
    assert replay(made, found, Change(links=FREE)).step == 361 * MS


def _recomputing(until: int, inside: int, outside: int) -> Spans:
    """A backward of 100 ms that recomputes for `until` ms, of which two collectives take `inside` after waiting 2 ms in
    all for the other rank; later one of `outside`."""
    half, middle, spans = inside // 2, until / 2, {}
    for rank in range(2):
        rows: list[Row] = [(Kind.STEP, -1, 0, 130), (Kind.F, 0, 0, 20), (Kind.BW, 0, 20, 120)]
        rows.append((Kind.R, -1, 20, 20 + until))
        for end in (middle, until):
            rows.append((Kind.TP_COLLECTIVE, -1, 20 + end - half - rank, 20 + end))
        rows += [(Kind.TP_COLLECTIVE, -1, 120 - outside, 120), (Kind.OPT_STEP, -1, 120, 130)]
        spans[rank] = _table([(kind, micro_batch, begin * MS, end * MS) for kind, micro_batch, begin, end in rows])
    return spans


@pytest.mark.parametrize(("inside", "outside"), [(10, 10), (48, 40)], ids=["some", "mostly collectives"])
def test_without_recomputation_its_collectives_are_gone_too(inside: int, outside: int) -> None:
    made, found = measured({"tp": 2, "recompute": "full"}, _recomputing(60, inside, outside))
    assert found.step == replay(made, found, Change()).step == 130 * MS
    assert replay(made, found, Change(no_recompute=True)).step == (130 - 60) * MS
    assert replay(made, found, Change(links=FREE)).step == (130 - inside - outside) * MS
    assert replay(made, found, Change(links=FREE, no_recompute=True)).step == (130 - 60 - outside) * MS
