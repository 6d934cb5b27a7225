"""Schedules as values: the known orders, and properties that hold for all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from parallel_core import schedule
from parallel_core.schedule import peaks, table, text
from parallel_core.schedule.ir import COMPUTE, P2P, Kind, Op, Schedule
from parallel_core.schedule.traits import CUSTOM, TRAITS, ScheduleName
from parallel_core.spec import RunSpec
from tests.parallel_core.strategies import run_specs

LINES = st.sampled_from([n for n, maker in schedule._MAKERS.items() if maker.in_flight and TRAITS[n].sync == "flush"])
"""Schedules with a closed form of what they keep."""


def orders(made: Schedule) -> list[str]:
    return [" ".join(f"{op.kind.name}{op.micro_batch}" for op in program) for program in made.programs]


def test_every_name_has_traits_and_a_maker() -> None:
    known = {"_MAKERS or _RUNS": (*schedule.names(), CUSTOM), "TRAITS": tuple(TRAITS)}
    names = get_args(ScheduleName)
    without = {place: sorted({*names} ^ {*own}) for place, own in known.items()}
    lacking = "; ".join(f"{place}: {', '.join(odd)}" for place, odd in without.items() if odd)
    assert not lacking, f"add (or drop) these schedules, see docs/extend.md: {lacking}"
    assert all(own == names for own in known.values()), "they are in the order of ScheduleName"


def test_naive_order() -> None:
    assert orders(schedule.compute_only("naive", 2, 2)) == ["F0 BW0 F1 BW1"] * 2


def test_gpipe_order() -> None:
    assert orders(schedule.compute_only("gpipe", 2, 3)) == ["F0 F1 F2 BW0 BW1 BW2"] * 2


def test_one_f_one_b_order() -> None:
    assert orders(schedule.compute_only("1f1b", 3, 4)) == [
        "F0 F1 F2 BW0 F3 BW1 BW2 BW3",
        "F0 F1 BW0 F2 BW1 F3 BW2 BW3",
        "F0 BW0 F1 BW1 F2 BW2 F3 BW3",
    ]


def test_zero_bubble_orders() -> None:
    """Figures 2 and 3 of Qi et al. 2024a, cut to two stages and three micro-batches. The first stage's B and W, which
    follow each other directly there, are one operation here.
    """
    assert orders(schedule.compute_only("zb-h1", 2, 3)) == [
        "F0 F1 BW0 F2 BW1 BW2",
        "F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]
    assert orders(schedule.compute_only("zb-h2", 2, 3)) == [
        "F0 F1 F2 BW0 BW1 BW2",
        "F0 B0 F1 B1 F2 B2 W0 W1 W2",
    ]


def test_one_f_one_b_with_fewer_micro_batches_than_stages() -> None:
    assert orders(schedule.compute_only("1f1b", 4, 2))[0] == "F0 F1 BW0 BW1"


def test_interleaved_order() -> None:
    """Figure 4 of Narayanan et al. 2021b, with p = 2, v = 2, m = 4: rounds of p micro-batches per chunk."""
    made = schedule.compute_only("interleaved", 2, 4)
    assert [" ".join(map(str, program)) for program in made.programs] == [
        "0F0 0F1 2F0 2F1 0F2 2BW0 0F3 2BW1 2F2 0BW0 2F3 0BW1 2BW2 2BW3 0BW2 0BW3",
        "1F0 1F1 3F0 3BW0 3F1 3BW1 1F2 1BW0 1F3 1BW1 3F2 3BW2 3F3 3BW3 1BW2 1BW3",
    ]
    assert made.placement == ((0,), (1,), (0,), (1,))


def test_a_rank_sums_all_its_stages_before_it_steps_any() -> None:
    spec = RunSpec.model_validate(
        {"parallel": {"dp": 2, "pp": 2, "schedule": "interleaved"}, "train": {"global_batch": 8}}
    )
    ends = [" ".join(map(str, program[-4:])) for program in schedule.build(spec).programs]
    assert ends[0] == ends[2] == "0ALLREDUCE 2ALLREDUCE 0OPT_STEP 2OPT_STEP"


def test_replicas_own_the_ids_congruent_to_them() -> None:
    made = schedule.compute_only("gpipe", 2, 2, replicas=2)
    assert orders(made) == ["F0 F2 BW0 BW2"] * 2 + ["F1 F3 BW1 BW3"] * 2
    assert made.placement == ((0, 2), (1, 3))


@pytest.mark.parametrize("name", schedule.names())
def test_without_stages_micro_batches_are_accumulated(name: str) -> None:
    assert orders(schedule.compute_only(name, 1, 3)) == ["F0 BW0 F1 BW1 F2 BW2"]


def test_lowered_programs_of_a_pipeline() -> None:
    spec = RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 2, "schedule": "1f1b"}})
    assert [" ".join(map(str, program)) for program in schedule.build(spec).programs] == [
        "0F0 0SEND_ACT0 0F1 0SEND_ACT1 0RECV_GRAD0 0BW0 0RECV_GRAD1 0BW1 0OPT_STEP",
        "1RECV_ACT0 1F0 1BW0 1SEND_GRAD0 1RECV_ACT1 1F1 1BW1 1SEND_GRAD1 1OPT_STEP",
    ]


def test_replicas_reduce_before_the_optimizer() -> None:
    spec = RunSpec.model_validate({"parallel": {"dp": 2}})
    assert orders(schedule.build(spec)) == ["F0 BW0 ALLREDUCE-1 OPT_STEP-1", "F1 BW1 ALLREDUCE-1 OPT_STEP-1"]


@given(run_specs())
def test_passes_keep_the_order_of_compute(spec: RunSpec) -> None:
    split = spec.parallel
    plain = schedule.compute_only(split.schedule, split.pp, split.micro_batches, split.dp, split.chunks_per_rank)
    lowered = schedule.build(spec)
    assert [tuple(op for op in program if op.kind in COMPUTE) for program in lowered.programs] == list(plain.programs)


@given(run_specs())
def test_peers_are_neighbouring_stages_of_the_same_replica(spec: RunSpec) -> None:
    for rank, program in enumerate(schedule.build(spec).programs):
        for op in program:
            if op.kind in P2P:
                assert (op.peer - rank) % spec.parallel.pp in (1, spec.parallel.pp - 1)
                assert op.peer // spec.parallel.pp == rank // spec.parallel.pp
            else:
                assert op.peer == -1


@given(LINES, st.integers(1, 8), st.integers(1, 12))
def test_micro_batches_in_flight_match_the_formula(name: str, stages: int, micro_batches: int) -> None:
    counted = peaks.peak_in_flight(schedule.compute_only(name, stages, micro_batches))
    assert counted == tuple(schedule.in_flight(name, stage, stages, micro_batches) for stage in range(stages))


@given(st.integers(2, 8), st.integers(1, 12))
def test_one_f_one_b_keeps_less_than_gpipe(stages: int, micro_batches: int) -> None:
    one, gpipe = (peaks.peak_in_flight(schedule.compute_only(n, stages, micro_batches)) for n in ("1f1b", "gpipe"))
    assert one == tuple(min(stages - stage, micro_batches) for stage in range(stages))
    assert gpipe == (micro_batches,) * stages


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (Op(Kind.F, 1, 3), "forward 3 of stage 1"),
        (Op(Kind.RECV_GRAD, 0, 12), "receive gradient 12 of stage 0"),
        (Op(Kind.OPT_STEP, 0), "optimizer of stage 0"),
        ("1F3 of held-out samples", "forward 3 of stage 1 of held-out samples"),
        ("building", "building"),
        ("3NONSENSE1", "3NONSENSE1"),
    ],
)
def test_an_operation_is_said_in_words(op: Op | str, words: str) -> None:
    assert text.spoken(str(op)) == words


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("0RECV_GRAD0", "receiving gradient 0 of stage 0"),
        ("1SEND_ACT3", "sending activation 3 of stage 1"),
        ("1F3", "forward 3 of stage 1"),
        ("2R1", "recomputing 1 of stage 2"),
        ("reading data", "reading data"),
        ("send it", "send it"),
    ],
)
def test_what_a_rank_is_in_is_said_as_what_it_is_doing(op: str, words: str) -> None:
    """A page said "in receive gradient 0"."""
    assert text.under_way(op) == words


def test_grid_marks_and_cuts_to_the_neighbourhood() -> None:
    made = schedule.compute_only("naive", 2, 20)
    lines = text.grid(made, (1, 20)).splitlines()
    assert lines[0] == "naive: operations 14 to 26 of 40"
    assert ">1F10<" in lines[2]
    assert ">" not in lines[1]


@st.composite
def pipelines(draw: st.DrawFn) -> Schedule:
    """The compute operations of any named schedule with a pipeline."""
    name, pp = draw(st.sampled_from(schedule.names())), draw(st.integers(2, 6))
    traits = TRAITS[name]
    least = 2 * pp if traits.pairs else 1
    chunks = draw(st.integers(traits.least, traits.most or 4))
    return schedule.compute_only(name, pp, draw(st.integers(least, least + 20)), chunks=chunks)


@given(pipelines())
def test_weight_gradients_of_a_stage_come_in_micro_batch_order(made: Schedule) -> None:
    """This gives sums of gradients the same bits under every schedule."""
    for stage, (rank,) in enumerate(made.placement):
        parts = [part for op in made.programs[rank] for part in op.parts() if part.stage == stage]
        added = [part.micro_batch for part in parts if part.kind in (Kind.W, Kind.BW)]
        assert added == list(range(made.micro_batches))
        assert [part.micro_batch for part in parts if part.kind is Kind.F] == added


@given(pipelines())
def test_a_split_backward_is_split_where_its_traits_say_so(made: Schedule) -> None:
    kinds = {part.kind for program in made.programs for op in program for part in op.parts()}
    traits = TRAITS[made.name]
    assert ((Kind.B in kinds), (Kind.W in kinds)) == (traits.split, traits.split)
    assert any(op.kind is Kind.PAIR for program in made.programs for op in program) == traits.pairs


@pytest.mark.parametrize(
    ("name", "theirs", "chunks"),
    [
        ("zb-v", schedules.ScheduleZBVZeroBubble, 2),
        ("dualpipe-v", schedules.ScheduleDualPipeV, 2),
        ("interleaved", schedules.ScheduleInterleaved1F1B, 3),
    ],
)
@pytest.mark.parametrize(("pp", "micro_batches"), [(2, 4), (3, 9), (4, 8), (4, 12)])
def test_order_is_that_of_pytorch(name: str, theirs: Any, chunks: int, pp: int, micro_batches: int) -> None:
    """The published orders, as in torch.distributed.pipelining; idle slots, which torch writes as None, are left
    out.
    """
    made = schedule.compute_only(name, pp, micro_batches, chunks=chunks)
    rows = table.to_csv(made).splitlines()
    asked = SimpleNamespace(
        pp_group_size=pp,
        _n_microbatches=micro_batches,
        num_stages=chunks * pp,
        _num_stages=chunks * pp,
        n_local_stages=chunks,
        rounds=micro_batches // pp,
        number_of_rounds=micro_batches // pp,
        microbatches_per_round=pp,
    )
    for rank, row in enumerate(rows):
        ops = theirs._calculate_single_rank_operations(asked, rank)
        assert row == ",".join(str(op) for op in ops if op is not None)
