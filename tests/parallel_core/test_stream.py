"""Schedules that never flush, as values: windows of a stream, weight versions and their verification, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from parallel_core.plan.strategy import ideal_speedup, label
from parallel_core.schedule import build, plain
from parallel_core.schedule.check import check
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import AHEAD, COMPUTE, Kind, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.peaks import peak_copies, peak_in_flight
from parallel_core.schedule.stream import Window, Windows, end_of, steps_apart
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import RunSpec, field_errors
from tests.parallel_core.test_check import again, alter, damaged, drop, ends_though_sends_block, swap

NAMES = [name for name, traits in TRAITS.items() if traits.sync != "flush"]


def spec_of(name: str = "1f1b-stash", pp: int = 2, micro_batches: int = 4, dp: int = 1, **train: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"layers": 8},
            "parallel": {"schedule": name, "pp": pp, "micro_batches": micro_batches, "dp": dp},
            "train": {"global_batch": micro_batches * dp, "clip": "stage"} | train,
        }
    )


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    name, pp = draw(st.sampled_from(NAMES)), draw(st.integers(2, 5))
    least = pp - 1 if name == "1f1b-2bw" else 1
    return spec_of(name, pp, draw(st.integers(least, least + 5)), draw(st.integers(1, 3)))


@given(specs(), st.integers(1, 4))
def test_streams_are_right_and_end_even_if_sends_block(spec: RunSpec, steps: int) -> None:
    ends_though_sends_block(build(spec, steps), AHEAD)


@given(specs(), st.data())
def test_a_long_stream_is_read_off_a_short_one(spec: RunSpec, data: st.DataObject) -> None:
    windows = Windows(spec)
    steps = data.draw(st.integers(1, 3 * windows.edge + 2))
    step = data.draw(st.integers(0, steps - 1))
    assert windows.window(step, steps).programs == Window(build(spec, steps), step, windows.per_step).programs


@given(specs(), st.integers(1, 6))
def test_the_windows_of_a_stream_are_all_of_it(spec: RunSpec, steps: int) -> None:
    made, windows = build(spec, steps), Windows(spec)
    parts = [Window(made, step, windows.per_step).programs for step in range(steps)]
    for rank, program in enumerate(made.programs):
        assert sum(len(part[rank]) for part in parts) == len(program)
        for part in parts:
            backwards = [op.micro_batch for op in part[rank] if op.kind is Kind.BW]
            assert backwards == list(range(program[0].replica, windows.per_step, spec.parallel.dp))


def versions(made: Schedule, kind: Kind) -> list[list[int]]:
    return [[op.version for op in program if op.kind is kind] for program in made.programs]


def test_versions_of_pipedream() -> None:
    """Narayanan et al. 2019, figure 4 and section 3.3, on three stages: stage s is p - 1 - s micro-batches late."""
    late = [[0, 0, 0, 1, 2, 3], [0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert versions(build(spec_of("1f1b-stash", 3, 6)), Kind.F) == late
    assert versions(build(spec_of("1f1b-stash", 3, 6)), Kind.BW) == late
    assert versions(build(spec_of("1f1b-vertical", 3, 6)), Kind.F) == [late[0]] * 3
    assert versions(build(spec_of("1f1b-naive", 3, 6)), Kind.F) == late
    assert versions(build(spec_of("1f1b-naive", 3, 6)), Kind.BW) == [[0, 1, 2, 3, 4, 5]] * 3


def test_versions_of_2bw() -> None:
    """Narayanan et al. 2021a, section 3.1: the weights of step t come from gradients computed with those of step t -
    1.
    """
    assert versions(build(spec_of("1f1b-2bw", 3, 2), 4), Kind.F) == [[0, 0, 0, 0, 2, 2, 4, 4]] * 3
    assert versions(build(spec_of("1f1b-2bw", 3, 2), 4), Kind.OPT_STEP) == [[2, 4, 6, 8]] * 3


def test_a_group_of_replicas_updates_once_for_all() -> None:
    made = build(spec_of("1f1b-stash", 2, 3, dp=2))
    assert versions(made, Kind.OPT_STEP) == [[2, 4, 6]] * 4
    assert versions(made, Kind.F) == [[0, 0, 2], [0, 2, 4]] * 2


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("1f1b-naive", (0, 0, 0, 0)),
        ("1f1b-stash", (3, 2, 1, 0)),
        ("1f1b-vertical", (3, 3, 3, 3)),
        ("1f1b-2bw", (1, 1, 1, 1)),
    ],
)
def test_older_versions_kept(name: str, copies: tuple[int, ...]) -> None:
    made = build(spec_of(name, 4, 4), 4)
    assert tuple(map(peak_copies, made.programs)) == copies
    assert peak_in_flight(made) == (4, 3, 2, 1)


@pytest.mark.parametrize("name", NAMES)
def test_no_bubble_between_steps(name: str) -> None:
    """Every step of a full pipeline takes as long as its work; a flush would add p - 1 slots of F and B."""
    p, m, steps = 4, 4, 6
    spans = simulate(build(spec_of(name, p, m), steps), Costs.uniform(p, 1, 1, 1))
    assert max(int(rows["end"].max()) for rows in spans.values()) == (steps * m + p - 1) * 3
    assert ideal_speedup(spec_of(name, p, m)) == p


@pytest.mark.parametrize(
    ("rank", "change", "message"),
    [
        (0, alter("0F2", version=0), "0F2 uses weight version 0; its stage has 1|0BW2 uses weight version 1, its"),
        (0, alter("0BW2", version=2), "0BW2 uses weight version 2, its forward 1"),
        (0, drop("0STASH1"), "0BW2 uses weight version 1; its stage has 2"),
        (0, swap("0DROP2", "0BW2"), "0BW2 uses weight version 1; its stage has 2"),
        (0, again("0DROP2"), "drops version 1, which is not stashed"),
        (0, drop("0DROP2"), "weight version 1 is never dropped"),
        (0, alter("0STASH1", version=0), "stashes version 0, the present one is 1"),
        (0, drop("0OPT_STEP1"), "version"),
        (0, alter("0OPT_STEP1", version=3), r"makes version 3 of 1 and the gradients of \[1\]"),
        (1, drop("1OPT_STEP3"), "the gradients of micro-batches from 3 on are never applied"),
    ],
)
def test_damage_is_named(rank: int, change: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(damaged(build(spec_of()), rank, change))


def test_replicas_sum_before_they_update() -> None:
    with pytest.raises(ScheduleError, match="updates before the replicas have summed"):
        check(damaged(build(spec_of(dp=2)), 0, swap("0ALLREDUCE2", "0OPT_STEP2")))


def test_vertical_sync_is_the_same_version_on_all_stages() -> None:
    made = build(spec_of("1f1b-vertical"))

    def fresh(program: list[Any]) -> None:
        alter("1F3", version=3)(program)
        alter("1BW3", version=3)(program)

    with pytest.raises(ScheduleError, match="1F3 uses weight version 3, another stage 2"):
        check(damaged(made, 1, fresh))


def test_2bw_keeps_two_versions_at_most() -> None:
    made = build(spec_of("1f1b-2bw"), 3)
    with pytest.raises(ScheduleError, match="2bw has two at most"):
        check(damaged(made, 0, drop("0DROP7")))


def test_names() -> None:
    assert label(spec_of("1f1b-naive")) == "PP-1F1B async, no stash"
    assert label(spec_of("1f1b-2bw", dp=2)) == "DP 2 x PP-2BW 2"


def test_compute_alone_is_that_of_1f1b() -> None:
    spec = RunSpec.model_validate({"parallel": {"pp": 3, "micro_batches": 4}})
    flushed = [[str(op) for op in program if op.kind in COMPUTE] for program in build(spec).programs]
    for name in NAMES:
        made = build(spec_of(name, 3, 4)).programs
        assert [[str(op) for op in program if op.kind in COMPUTE] for program in made] == flushed


@pytest.mark.parametrize(
    ("rooms", "field", "message"),
    [
        (
            {"parallel": {"pp": 1}},
            "parallel.schedule",
            "schedule=1f1b-stash keeps a pipeline full, and pp=1 is none; use pp=2 or more, or schedule=1f1b.",
        ),
        (
            {"train": {"clip": "global"}},
            "train.clip",
            "schedule=1f1b-stash updates each stage on its own, so there is no moment at which the norm exists that "
            "clip=global holds to clip_norm=1; use clip=stage, or schedule=1f1b, or leave clip_norm empty.",
        ),
        (
            {"model": {"tied": True}, "train": {"clip": "global", "clip_norm": 2.0}},
            "train.clip",
            "schedule=1f1b-stash updates each stage on its own, so there is no moment at which the norm exists that "
            "clip=global holds to clip_norm=2; use schedule=1f1b.",
        ),
        (
            {"model": {"tied": True}},
            "model.tied",
            "tied=true shares one matrix between the first and the last stage, which schedule=1f1b-stash updates at "
            "different times; use tied=false.",
        ),
        (
            {"parallel": {"zero": 1, "dp": 2}},
            "parallel.zero",
            "zero=1 gathers parameters after each update while schedule=1f1b-stash still uses older versions; use "
            "zero=0.",
        ),
        (
            {"parallel": {"schedule": "1f1b-2bw", "pp": 4, "micro_batches": 2}},
            "parallel.micro_batches",
            "schedule=1f1b-2bw with pp=4 needs at least 3 micro-batches, or two versions do not last; got 2; "
            "use micro_batches=3 or more.",
        ),
        (
            {"parallel": {"schedule": "1f1b", "zero": 1, "dp": 2}},
            "train.clip",
            "clip=stage needs a stage's whole gradients on each replica, and zero=1 shards them; use clip=global, or "
            "zero=0.",
        ),
        (
            {"model": {"tied": True}, "parallel": {"schedule": "1f1b", "micro_batches": 4}},
            "train.clip",
            "clip=stage multiplies each stage's gradients by a factor of its own, and tied=true has one matrix on the "
            "first and the last of pp=2, which would drift apart; use clip=global, or tied=false, or "
            "schedule=zb-v, which has both on one rank.",
        ),
    ],
)
def test_refused(rooms: dict[str, Any], field: str, message: str) -> None:
    whole = {"parallel": {"schedule": "1f1b-stash", "pp": 2}, "train": {"clip": "stage"}}
    spec = {room: whole.get(room, {}) | rooms.get(room, {}) for room in ("model", "parallel", "train")}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(spec)
    assert field_errors(caught.value) == {field: message}


def test_a_tied_matrix_may_be_clipped_by_stage_where_both_its_layers_are_on_one_rank() -> None:
    parallel = {"schedule": "zb-v", "pp": 2, "micro_batches": 4}
    spec = {"model": {"tied": True}, "parallel": parallel, "train": {"clip": "stage"}}
    assert RunSpec.model_validate(spec).model.tied


def test_without_clipping_its_kind_does_not_matter() -> None:
    assert spec_of(clip="global", clip_norm=None).train.clip_norm is None


@pytest.mark.parametrize(
    ("replicas", "micro_batches", "apart"),
    [((1, 1, 1), 1, 2), ((1, 1, 1), 4, 1), ((2, 2, 1), 2, 2), ((4, 4, 4), 4, 2), ((3, 3, 3, 3), 3, 3)],
)
def test_no_rank_waits_for_the_totals_of_a_step(replicas: tuple[int, ...], micro_batches: int, apart: int) -> None:
    """Simulated with balanced stages, where one with r replicas has r times the work: whenever a rank of a full
    pipeline has ended a step, every other has ended the step `steps_apart` before it.
    """
    split = {"schedule": "1f1b-stash", "pp": len(replicas), "micro_batches": micro_batches, "replicas": replicas}
    train = {"global_batch": micro_batches, "clip": "stage"}
    spec = RunSpec.model_validate({"model": {"layers": 8}, "parallel": split, "train": train})
    assert steps_apart(spec) == apart
    steps = 16
    made = communicate(plain(spec.parallel, steps))
    took = {(s, kind): n * ns for s, n in enumerate(replicas) for kind, ns in ((Kind.F, 1), (Kind.BW, 2))}
    spans = simulate(made, Costs(took))
    ended = [
        [int(spans[q]["end"][end_of(program, (step + 1) * micro_batches) - 1]) for step in range(steps)]
        for q, program in enumerate(made.programs)
    ]
    for step in range(steps // 2, 3 * steps // 4):
        assert max(rank[step - apart] for rank in ended) <= min(rank[step] for rank in ended)
