"""Schedules as files: torch's own parser reads our CSV and its output reads back; JSON keeps everything; custom
programs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError
from torch.distributed.pipelining.schedules import _Action

from parallel_core import schedule
from parallel_core.layout import Layout
from parallel_core.schedule import custom as own
from parallel_core.schedule.ir import COMPUTE, Kind, Schedule
from parallel_core.schedule.table import TableError, from_csv, from_json, to_csv, to_json
from parallel_core.spec import RunSpec, field_errors
from tests.parallel_core.strategies import run_specs
from tests.parallel_core.test_schedule import pipelines

GPIPE = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


@given(pipelines())
def test_csv_goes_through_pytorchs_own_parser_and_back(made: Schedule) -> None:
    text = to_csv(made)
    theirs = [[_Action.from_str(cell) for cell in row.split(",")] for row in text.splitlines()]
    assert "".join(",".join(map(str, row)) + "\n" for row in theirs) == text
    kinds = {str(action.computation_type.value) for row in theirs for action in row}
    assert kinds <= {"F", "I", "B", "W", "OVERLAP_F_B"}
    back = from_csv(text)
    # the CSV has no versions
    flat = tuple(tuple(replace(op, version=0) for op in program) for program in made.programs)
    assert (back.programs, back.placement, back.micro_batches) == (flat, made.placement, made.micro_batches)


@given(run_specs().filter(lambda spec: spec.parallel.flushes))
def test_csv_of_a_run_is_the_compute_of_one_replica(spec: RunSpec) -> None:
    split = spec.parallel
    plain = schedule.compute_only(split.schedule, split.pp, split.micro_batches, chunks=split.chunks_per_rank)
    assert replace(from_csv(to_csv(schedule.build(spec))), name=plain.name) == plain


def test_stages_with_their_own_replicas_have_no_csv() -> None:
    split = {"pp": 2, "replicas": [2, 1], "micro_batches": 4}
    with pytest.raises(TableError, match="their own numbers of replicas have no such table; use JSON"):
        to_csv(schedule.build(RunSpec.model_validate({"parallel": split})))


@given(run_specs())
def test_json_keeps_everything(spec: RunSpec) -> None:
    made = schedule.build(spec)
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "the program is no JSON: Expecting value"),
        ("[" * 100_000, "lists are nested too deeply"),
        *(("[[" + "[" * deep + "]" * deep + "]]", "is no operation|too deeply") for deep in range(700, 1000, 20)),
        ("[]", '"programs" holds no operations; write a list for each pipeline rank'),
        ('{"programs": 3}', '"programs" holds no operations'),
        ('[["0F0"]]', 'cell 1 of rank 0\'s row: "0F0" is no operation; write kind .F, BW, B or W., stage'),
        ('[["F", 0, 0], [["F", 1, 0]]]', 'cell 1 of rank 0\'s row: "F" is no operation'),
        ('[[["F", 0, 0]], [["F", 1, 0], ["X", 1, 0]]]', r"cell 2 of rank 1's row: \[\"X\", 1, 0\] is no operation"),
        ('[[["F", 0, true]]]', "cell 1 of rank 0's row"),
        ('[[["F", -1, 0]]]', "cell 1 of rank 0's row"),
        ('[[["F", 0, -1]]]', "cell 1 of rank 0's row"),
        ('[[[["F"], 0, 0]]]', "cell 1 of rank 0's row"),
        ('[[["F", 0, 0, 0, 0, -1, [1, 0]]]]', "cell 1 of rank 0's row"),
        ('[[["PAIR", 0, 0, 0, 0, -1, [1]]]]', "cell 1 of rank 0's row"),
        ('[[["F", 0, 999999]]]', "0F999999 in rank 0's row is numbered too high"),
        ('[[["SEND_ACT", 0, 0]]]', "the program computes nothing; write a forward and a backward of each micro-batch"),
        ('[[["F", 0, 0]], [["F", 0, 1]]]', "stage 0 is given to ranks 0 and 1; leave it in one row"),
        ('[[["F", 0, 0, 2]]]', "stage 0 has no replica 0; its replicas are numbered from 0 without a gap"),
        ('{"programs": [[["F", 0, 0]]], "sync": "often"}', '"sync" is "often"; write one of flush, none, stash, 2bw'),
        ('{"programs": [[["F", 0, 0]]], "per_step": 1.5}', '"per_step" is 1.5; write a whole number from 0'),
    ],
)
def test_wrong_json_is_named(text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        from_json(text)


def test_spelling() -> None:
    """torch's B is our BW, its I our B."""
    made = from_csv("0F0,0I0,0W0\n1F0,1B0\n")
    assert [[op.kind for op in program] for program in made.programs] == [[Kind.F, Kind.B, Kind.W], [Kind.F, Kind.BW]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    assert from_csv(GPIPE.replace("\n", end)).programs == from_csv(GPIPE).programs


def test_empty_cells_are_idle() -> None:
    assert from_csv("0F0,,,0B0\n,1F0,1B0\n\n").programs == from_csv("0F0,0B0\n1F0,1B0\n").programs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the program is empty"),
        ("0F0,0X0", r"cell 2 of rank 0's row: '0X0' is no operation; write stage, kind \(F, B, I or W\)"),
        ("0F0,0SEND_F0", "Communication is added automatically"),
        ("0F0,0B0\n0F1,0B1", "stage 0 is given to ranks 0 and 1; leave it in one row"),
        ("0F0,0B0\n2F0,2B0", "stage 1 is missing; stages are numbered 0 to 1 without a gap"),
        ("0F" + "9" * 4000, "is no operation"),
        (
            "0F999999,0B999999",
            "0F999999 in rank 0's row is numbered too high: micro-batches are numbered from 0 to 4095",
        ),
        ("999999F0", "999999F0 in rank 0's row is numbered too high: stages are numbered from 0 to 1025"),
        ("0F" + "9" * 200_000, r"the program is no CSV: field larger than field limit \(131072\)\."),
    ],
)
def test_wrong_csv_is_named(text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        from_csv(text)


def custom(program: str | None = GPIPE, **split: Any) -> RunSpec:
    parallel = {"pp": 2, "micro_batches": 2, "schedule": "custom", "program": program, **split}
    return RunSpec.model_validate({"parallel": parallel})


def test_a_program_of_ones_own_is_what_is_built() -> None:
    made = schedule.build(custom(dp=2))
    compute = [" ".join(str(op) for op in program if op.kind in COMPUTE) for program in made.programs]
    assert compute == ["0F0 0F2 0BW0 0BW2", "1F0 1F2 1BW0 1BW2", "0F1 0F3 0BW1 0BW3", "1F1 1F3 1BW1 1BW3"]


@pytest.mark.parametrize("text", [to_json(from_csv(GPIPE)), "\ufeff " + to_json(schedule.build(custom()))])
def test_a_program_may_be_json(text: str) -> None:
    """What is added to a program automatically may be in it: communication, reductions, updates."""
    assert schedule.build(custom(text)) == schedule.build(custom(GPIPE))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"schedule": "1f1b-stash"}, '"sync" is stash, and a schedule of your own ends every step with a flush'),
        ({"dp": 2}, "Stage 0 has 2 replicas; write the programs of one, and set data."),
    ],
)
def test_json_of_another_kind_of_schedule_is_refused(split: dict[str, Any], message: str) -> None:
    run = {"parallel": {"pp": 2, "micro_batches": 2} | split, "train": {"clip": "stage"} if "schedule" in split else {}}
    with pytest.raises(ValidationError) as caught:
        custom(to_json(schedule.build(RunSpec.model_validate(run))))
    assert message in field_errors(caught.value)["parallel.program"]


def test_places_are_those_of_the_program() -> None:
    spec = custom("1F0,2F0,2B0,1B0\n0F0,3F0,3B0,0B0\n", micro_batches=1)
    assert spec.parallel.stages == 4
    assert [Layout.of(spec).place(stage) for stage in range(4)] == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("program", "split", "field", "message"),
    [
        (None, {}, "parallel.program", "schedule=custom has no program; give one, or use schedule=1f1b."),
        (
            GPIPE,
            {"schedule": "1f1b"},
            "parallel.program",
            "schedule=1f1b takes no program; use schedule=custom, or leave program empty",
        ),
        (GPIPE, {"pp": 3}, "parallel.pp", "pp=3 does not fit the program; use 2."),
        (GPIPE, {"micro_batches": 4}, "parallel.micro_batches", "micro-batches=4 does not fit the program; use 2."),
        (GPIPE, {"chunks": 2}, "parallel.chunks", "chunks=2 does not fit the program; use 1."),
        (GPIPE.replace("0B1", "0X1"), {}, "parallel.program", "Cell 4 of rank 0's row: '0X1' is no operation"),
        (GPIPE + "2F0,2F1,2B0,2B1,3F0\n", {"pp": 3}, "parallel.program", "Row 0 holds 1 stages, row 2 holds 2"),
        ("0F0,1F0,1B0,0B0", {"pp": 1, "micro_batches": 1}, "parallel.program", "A program of one row holds one stage"),
        ("0F0,0B0\n1B0,1F0\n", {"micro_batches": 1}, "parallel.program", "1B0 comes before its forward."),
        ("0F0,0B0\n1I0,1F0,1W0\n", {"micro_batches": 1}, "parallel.program", "1I0 comes before its forward."),
        ("0F0,0I0\n1F0,1B0\n", {"micro_batches": 1}, "parallel.program", "0W0 is missing."),
        ("0F0\n1F0,1B0\n", {"micro_batches": 1}, "parallel.program", "0B0 is missing."),
        (
            "0F0,0B0,0W0\n1F0,1B0\n",
            {"micro_batches": 1},
            "parallel.program",
            "0B0 is the whole backward; write it alone, or 0I0 and 0W0 instead.\n",
        ),
        (
            '[[["F", 0, 0], ["B", 0, 0], ["BW", 0, 0]], [["F", 1, 0], ["BW", 1, 0]]]',
            {"micro_batches": 1},
            "parallel.program",
            "0BW0 is the whole backward; write it alone, or 0B0 and 0W0 instead.\n",
        ),
        ("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", {}, "parallel.program", "sends and receives differ in order."),
    ],
)
def test_a_program_is_proven_when_a_spec_is_validated(
    program: str | None, split: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        custom(program, **split)
    errors = field_errors(caught.value)
    assert list(errors) == [field]
    assert message in errors[field]


def test_a_refusal_spells_a_csv_as_it_is_written() -> None:
    """The engine's BW is B in a CSV, its B is I."""
    with pytest.raises(ValidationError) as caught:
        custom("0F0,0I0,0F1,0B1\n1F0,1B0,1F1,1B1\n")
    rows = field_errors(caught.value)["parallel.program"].splitlines()[2:]
    assert rows == [
        "rank 0 | 0I0         0F1        0SEND_ACT1 0RECV_GRAD1 0B1         0OPT_STEP >missing<",
        "rank 1 | 1SEND_GRAD0 1RECV_ACT1 1F1        1B1         1SEND_GRAD1 1OPT_STEP",
    ]


def test_a_csv_may_begin_with_a_byte_order_mark() -> None:
    assert from_csv(f"\ufeff{GPIPE}") == from_csv(GPIPE)


def test_a_program_that_would_hang_is_refused_with_its_grid() -> None:
    """Each rank waits for the other first: rank 0 for the gradient of micro-batch 0, rank 1 for the activation of 1."""
    with pytest.raises(ValidationError) as caught:
        custom("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    error = field_errors(caught.value)["parallel.program"]
    assert error.startswith("deadlock: rank 0 waits in 0RECV_GRAD0 for rank 1; rank 1 waits in 1RECV_ACT1 for rank 0.")
    assert ">0RECV_GRAD0<" in error


def test_a_program_has_a_limit() -> None:
    with pytest.raises(ValidationError) as caught:
        custom("0F0," * 200_000)
    assert list(field_errors(caught.value)) == ["parallel.program"]


def test_a_program_that_is_refused_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec that holds it is validated in many places."""
    reads: list[str] = []

    def checked(program: str) -> Schedule:
        reads.append(program)
        return from_csv("?")

    monkeypatch.setattr(own, "_checked", checked)
    for _ in range(3):
        with pytest.raises(TableError, match="is no operation"):
            own.read("refused, and read once")
    assert len(reads) == 1
