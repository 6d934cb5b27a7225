"""The metered step of a pipeline that never flushes: one in which every rank keeps its most."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest

from parallel_core.observe.observed_steps import extra_steps, first_traced, followed_steps, is_traced, metered_step
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind, Program
from parallel_core.schedule.stream import Windows, end_of, stream_end
from parallel_core.spec import RunSpec

CHANGES = {Kind.STASH: (1, 0), Kind.DROP: (-1, 0), Kind.F: (0, 1), Kind.BW: (0, -1)}


def spec(warmup: int = 3, steps: int = 20, every: int = 0, traced: int = 0, **split: Any) -> RunSpec:
    train = {"global_batch": 48, "clip": "stage", "steps": steps, "warmup_steps": warmup, "checkpoint_every": every}
    made = {"model": {"layers": 8}, "parallel": split, "train": train, "trace": {"trace_every": traced}}
    return RunSpec.model_validate(made)


Kept = frozenset[tuple[int, int]]


def kept(program: Program, per_step: int, steps: int) -> list[Kept]:
    """The most old weight versions and micro-batches that a rank keeps at a time in each step of a stream."""
    now = list(accumulate((CHANGES.get(op.kind, (0, 0)) for op in program), _added, initial=(0, 0)))
    edges = [0, *(end_of(program, per_step * (step + 1)) for step in range(steps - 1)), len(program)]
    return [_most(now[a : b + 1]) for a, b in pairwise(edges)]


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _most(states: Iterable[tuple[int, int]]) -> Kept:
    """Those that no other exceeds in one number without having less of the other."""
    every = set(states)
    more = {one for one in every for other in every - {one} if other[0] >= one[0] and other[1] >= one[1]}
    return frozenset(every - more)


@pytest.mark.parametrize("warmup", [0, 9], ids=["extra", "warm-up"])
@pytest.mark.parametrize("schedule", ["1f1b-naive", "1f1b-stash", "1f1b-vertical", "1f1b-2bw"])
@pytest.mark.parametrize(
    "split",
    [
        {"pp": 2, "micro_batches": 4},
        {"pp": 4, "micro_batches": 1},
        {"pp": 4, "micro_batches": 2, "dp": 2},
        {"pp": 8, "micro_batches": 2},
        {"pp": 3, "micro_batches": 2, "replicas": (2, 1, 1)},
        {"pp": 2, "micro_batches": 3, "replicas": (1, 3)},
        {"pp": 2, "micro_batches": 3, "replicas": (2, 3)},
    ],
    ids=str,
)
def test_every_rank_keeps_its_most_in_the_metered_step(warmup: int, schedule: str, split: dict[str, Any]) -> None:
    """Steps of the run and those of the extra stream after it, which does not end too soon for that."""
    ranks = sum(split["replicas"]) if "replicas" in split else split["pp"]
    if schedule == "1f1b-2bw" and split["micro_batches"] < ranks - 1:
        split = split | {"micro_batches": 2 * split["pp"]}
    made = spec(warmup, schedule=schedule, **split)
    assert bool(extra_steps(made)) == (warmup == 0)
    _assert_most_is_kept(made)


def _assert_most_is_kept(made: RunSpec, first: int = 0) -> None:
    """In the metered step of a run from step `first` on: as much as in any step of a long stream."""
    metered, windows = metered_step(made, first), Windows(made)
    extra = extra_steps(made, first)
    assert bool(extra) == (metered >= made.train.steps)
    begin, steps = (extra.start, len(extra)) if extra else (first, stream_end(made.train, first) - first)
    assert followed_steps(made, first) == {*range(begin, metered + 1)}, "all from the one on in which it began to fill"
    long = windows.longest
    for own, of_long in zip(build(made, steps).programs, build(made, long).programs, strict=True):
        here = kept(own, windows.per_step, steps)[metered - begin]
        assert here == _most(chain(*kept(of_long, windows.per_step, long)))


@pytest.mark.parametrize(
    ("micro_batches", "pp", "train", "first", "extra"),
    [
        (1, 4, {"warmup": 10, "every": 4}, 0, True),
        (1, 8, {"warmup": 10, "every": 8}, 0, True),
        (2, 8, {"warmup": 10, "every": 5}, 0, True),
        (1, 4, {"warmup": 4, "steps": 5}, 0, True),
        (1, 4, {"warmup": 10, "every": 3}, 0, True),
        (1, 4, {"warmup": 10, "every": 6}, 0, True),
        (1, 4, {"warmup": 10, "every": 7}, 0, False),
        (1, 4, {"warmup": 4, "steps": 7}, 0, False),
        (1, 4, {"warmup": 4, "every": 12}, 10, True),
        (1, 4, {"warmup": 4, "every": 16}, 9, False),
        (8, 4, {"warmup": 3, "every": 2}, 0, True),
        (8, 4, {"warmup": 3, "every": 3}, 0, False),
    ],
)
def test_a_warm_up_step_is_metered_only_if_its_stream_is_long_enough(
    micro_batches: int, pp: int, train: dict[str, int], first: int, *, extra: bool
) -> None:
    """A stream ends at a checkpoint and after the last step: the pipeline is not full in what follows or drains."""
    made = spec(**train, schedule="1f1b-stash", pp=pp, micro_batches=micro_batches)
    assert bool(extra_steps(made, first)) == extra
    _assert_most_is_kept(made, first)


@pytest.mark.parametrize(
    ("warmup", "split", "first", "metered"),
    [
        (4, {"pp": 4, "micro_batches": 1}, 0, 3),
        (3, {"pp": 4, "micro_batches": 1}, 0, 23),
        (4, {"pp": 4, "micro_batches": 1}, 10, 13),
        (2, {"pp": 4, "micro_batches": 8}, 0, 1),
        (1, {"pp": 4, "micro_batches": 8}, 0, 21),
    ],
)
def test_it_is_a_warm_up_step_where_that_is_long_enough(
    warmup: int, split: dict[str, int], first: int, metered: int
) -> None:
    made = spec(warmup, schedule="1f1b-stash", **split)
    assert metered_step(made, first) == metered
    assert not any(is_traced(made, step, first) for step in followed_steps(made, first))
    assert (metered in extra_steps(made, first)) == (metered >= made.train.steps)


def test_under_a_flush_one_extra_step_is_enough() -> None:
    made = spec(0, schedule="1f1b", pp=4, micro_batches=2)
    assert (metered_step(made), extra_steps(made), followed_steps(made)) == (20, range(20, 21), {20})
    assert not extra_steps(spec(2, schedule="1f1b", pp=4, micro_batches=2))


@pytest.mark.parametrize("traced", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("steps", [12, 50])
def test_the_first_traced_step_may_come_long_after_the_first_multiple(steps: int, traced: int) -> None:
    """The steps before it are followed by the memory meter."""
    made = spec(10, steps=steps, traced=traced, schedule="1f1b-stash", pp=8, micro_batches=1)
    assert first_traced(made) == next(step for step in range(steps) if is_traced(made, step))


def test_without_a_memory_meter_no_step_is_followed() -> None:
    measured = spec(0, schedule="1f1b-stash", pp=4, micro_batches=2)
    made = measured.model_copy(update={"trace": measured.trace.model_copy(update={"memory": False})})
    assert followed_steps(measured) and not followed_steps(made) and not extra_steps(made)
