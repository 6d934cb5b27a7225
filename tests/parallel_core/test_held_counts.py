"""What a rank holds, counted from runs, against a full walk through its program; and programs written out from runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parallel_core.plan import held_counts as held
from parallel_core.plan.backward import walked
from parallel_core.plan.held_counts import HeldCounts, Moment, held_counts
from parallel_core.plan.peak import RankMemory, by_stage
from parallel_core.schedule import compute_only, places, runs_of
from parallel_core.schedule.ir import Kind, Op
from parallel_core.schedule.runs import Run, limited, operations
from parallel_core.spec import ParallelSpec, RunSpec

IN_RUNS = ("zb-h1", "zb-h2", "zb-v", "v-half", "v-min")


def split_of(name: str, pp: int, m: int) -> ParallelSpec:
    return ParallelSpec.model_validate({"pp": pp, "micro_batches": m, "schedule": name})


def stages_at(split: ParallelSpec, place: int) -> tuple[int, ...]:
    return tuple(stage for stage, where in enumerate(places(split)) if where == place)


def worst(counts: HeldCounts, sizes: np.ndarray, own: dict[Moment, int]) -> tuple[int, Moment, list[int]]:
    """The most that is held if one of a column has these `sizes` and a moment itself takes `own`; the first of equal
    ones."""
    total = counts.rows @ sizes + np.array([own[moment] for moment in counts.moments])[counts.which]
    most = int(np.argmax(total))
    return int(total[most]), counts.moments[counts.which[most]], counts.rows[most].tolist()


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[ParallelSpec, int, frozenset[int], frozenset[int]]:
    pp = draw(st.integers(2, 9))
    split = split_of(draw(st.sampled_from(IN_RUNS)), pp, draw(st.integers(1, 5 * pp)))
    stages = st.frozensets(st.integers(0, split.stages - 1))
    return split, draw(st.integers(0, pp - 1)), draw(stages), draw(stages)


def agree(split: ParallelSpec, place: int, again: frozenset[int], unfed: frozenset[int], seed: int) -> None:
    """For layers of any size runs and a walk find the same most, at the same first moment, with the same held."""
    stages = stages_at(split, place)
    columns = held._columns(stages)
    runs = held._kept(columns, held._of_runs(split, stages, columns, again, unfed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "saturated", lambda split: split)
        every = held._kept(columns, held._walk(split, stages, columns, 0, again, unfed))
    assert {*runs.moments} == {*every.moments} and len(runs.rows) <= len(every.rows)
    seen = {(every.moments[i], *row) for i, row in zip(every.which.tolist(), every.rows.tolist(), strict=True)}
    assert {(runs.moments[i], *row) for i, row in zip(runs.which.tolist(), runs.rows.tolist(), strict=True)} <= seen
    random = np.random.default_rng(seed)
    for _ in range(40):
        sizes = random.integers(0, 9, len(columns)) * random.integers(0, 2, len(columns))
        own = dict(zip(every.moments, random.integers(0, 9, len(every.moments)).tolist(), strict=True))
        assert worst(runs, sizes, own) == worst(every, sizes, own)
        assert worst(held._bends(every), sizes, own) == worst(every, sizes, own)


@given(pipelines(), st.integers(0, 2**32))
@example((split_of("zb-v", 6, 7), 2, frozenset(range(12)), frozenset[int]()), 0)
def test_runs_hold_as_much_as_a_walk_finds(
    drawn: tuple[ParallelSpec, int, frozenset[int], frozenset[int]], seed: int
) -> None:
    agree(*drawn, seed)


@pytest.mark.parametrize("m", [24, 33, 55])
@pytest.mark.parametrize("name", IN_RUNS)
def test_so_do_runs_that_are_counted_at_a_few_places_only(name: str, m: int) -> None:
    split = split_of(name, 24, m)
    for place in (0, 1, 9, 16, 22, 23):
        for again in (frozenset(range(48)), frozenset[int]()):
            agree(split, place, again, frozenset(), m)


@pytest.fixture
def fresh() -> Iterator[None]:
    held_counts.cache_clear()
    yield
    held_counts.cache_clear()


def memory(split: dict[str, Any], **fields: Any) -> list[RankMemory]:
    model = {"layers": 16, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
    train = {"global_batch": 2 * split["micro_batches"]}
    return by_stage(RunSpec.model_validate({"model": model, "parallel": split, "train": train, **fields}))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", [0, 2])
@pytest.mark.parametrize("name", IN_RUNS)
def test_memory_is_that_of_a_walk(
    fresh: None, monkeypatch: pytest.MonkeyPatch, name: str, zero: int, recompute: str
) -> None:
    splits = [
        {"pp": pp, "dp": 2, "zero": zero, "micro_batches": m, "schedule": name, "recompute": recompute}
        for pp, m in ((2, 1), (3, 3), (4, 30), (5, 9))
    ]
    found = list(map(memory, splits))
    held_counts.cache_clear()
    monkeypatch.setattr(held, "runs_of", lambda split, place: None)
    assert list(map(memory, splits)) == found


@pytest.mark.parametrize("name", IN_RUNS)
def test_a_pipeline_of_a_thousand_stages_is_counted_from_a_few_rows(fresh: None, name: str) -> None:
    """As many for one of any length, so that nothing need be left out."""
    short, long = (split_of(name, pp, 4 * pp) for pp in (64, 1024))
    rows = [len(held_counts(split, stages_at(split, 7), 0, frozenset(), frozenset()).rows) for split in (short, long)]
    assert rows[0] == pytest.approx(rows[1], rel=0.2) and rows[1] < 1_000
    assert walked(long) == 0 < walked(split_of("interleaved", 1024, 4096))


def test_what_a_walk_finds_serves_models_of_any_size(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    split = {"pp": 4, "micro_batches": 8, "schedule": "interleaved"}
    memory(split)
    monkeypatch.setattr(held, "_walk", lambda *given: pytest.fail("it was walked again"))
    memory(split, model={"layers": 24, "hidden": 64, "heads": 4, "seq": 16, "vocab": 64})


@pytest.mark.parametrize("name", IN_RUNS)
def test_programs_are_their_runs_written_out(name: str) -> None:
    """Each kind of operation of a stage takes every micro-batch once, in order."""
    for pp, m in ((2, 1), (3, 2), (4, 11), (5, 4)):
        split = split_of(name, pp, m)
        for place, program in enumerate(compute_only(name, pp, m).programs):
            assert list(program) == operations(runs_of(split, place) or ())
            for one in {(op.kind, op.stage) for op in program}:
                assert [op.micro_batch for op in program if (op.kind, op.stage) == one] == list(range(m))


def test_runs_are_cut_where_micro_batches_end() -> None:
    f, b = (Kind.F, 0), (Kind.BW, 0)
    runs = [Run(2, (f,)), Run(4, (f, b)), Run(3, (b,))]
    assert limited(runs, 4) == [Run(2, (f,)), Run(2, (f, b)), Run(2, (b,))]
    assert limited(runs, 0) == [] and limited(runs, 9) == runs
    cut = operations(limited(runs, 3))
    assert cut == [op for op in operations(runs) if op.micro_batch < 3]
    assert [later.kind for early, later in pairwise(cut) if early == Op(Kind.F, 0, 2)] == [Kind.BW]
