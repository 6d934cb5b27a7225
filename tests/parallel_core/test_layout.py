"""Positions of ranks: coordinates, groups, stages and micro-batches, for any (dp, tp, pp)."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given

from parallel_core import schedule
from parallel_core.layout import Coords, Layout
from parallel_core.schedule.ir import P2P
from parallel_core.spec import RunSpec
from tests.parallel_core.strategies import run_specs


def layout(**split: object) -> Layout:
    return Layout.of(RunSpec.model_validate({"parallel": split}))


def test_tensor_ranks_are_neighbours_then_replicas_then_stages() -> None:
    box = layout(dp=2, tp=2, pp=2)
    assert [box.coords(rank) for rank in (0, 1, 2, 4, 7)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)]
    assert box.tensor_groups() == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert box.data_groups() == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert [box.pipeline_rank(rank) for rank in range(8)] == [0, 0, 2, 2, 1, 1, 3, 3]


def test_places_with_different_numbers_of_replicas() -> None:
    box = layout(pp=3, replicas=(2, 1, 3), tp=2, schedule="1f1b", micro_batches=4)
    assert box.world == 12 and [box.coords(rank) for rank in (3, 4, 11)] == [(0, 1, 1), (1, 0, 0), (2, 2, 1)]
    assert box.data_groups() == ((0, 2), (1, 3), (4,), (5,), (6, 8, 10), (7, 9, 11))
    assert [box.pipeline_rank(rank) for rank in range(0, 12, 2)] == list(range(6)) == list(box.linked(1))


def test_rank_outside_the_box() -> None:
    with pytest.raises(ValueError, match=r"rank 4 is outside 0 \.\. 3"):
        layout(dp=4).coords(4)


def test_cuts_are_followed() -> None:
    assert layout(pp=3, cuts=[2, 9]).stage_units == ((0, 1), (2, 3, 4, 5, 6, 7, 8), (9,))


@given(run_specs(in_turn=True))
def test_coordinates_and_ranks_are_inverse(spec: RunSpec) -> None:
    box = Layout.of(spec)
    assert [box.rank(*box.coords(rank)) for rank in range(box.world)] == list(range(box.world))


@given(run_specs(in_turn=True))
def test_groups_cover_every_rank_once(spec: RunSpec) -> None:
    box = Layout.of(spec)
    for groups in (box.tensor_groups(), box.data_groups()):
        assert sorted(chain(*groups)) == list(range(box.world))
    for group in box.data_groups():
        assert [box.coords(rank) for rank in group] == [
            Coords(box.coords(group[0]).place, replica, box.coords(group[0]).tensor) for replica in range(len(group))
        ]
    assert sorted(map(len, box.data_groups())) == sorted(
        n for n, width in zip(box.replicas, box.widths, strict=True) for _ in range(width)
    )


@given(run_specs(in_turn=True))
def test_every_layer_and_every_micro_batch_has_one_home(spec: RunSpec) -> None:
    box = Layout.of(spec)
    assert list(chain(*box.stage_units)) == list(range(len(spec.model.units())))
    assert all(box.stage_units)
    for place, copies in enumerate(box.replicas):
        ids = sorted(chain(*(box.micro_batches_of(place, replica) for replica in range(copies))))
        assert ids == list(range(spec.parallel.per_step))


@given(run_specs(in_turn=True))
def test_stages_and_places_are_inverse(spec: RunSpec) -> None:
    box = Layout.of(spec)
    assert box.stages == spec.parallel.stages
    assert [(stage, place) for place in range(box.pp) for stage in box.stages_of(place)] == sorted(
        ((stage, box.place(stage)) for stage in range(box.stages)), key=lambda pair: (pair[1], pair[0])
    )


def test_stages_on_more_devices_hold_more_layers() -> None:
    shapes: list[dict[str, object]] = [{}, {"widths": (2, 1)}, {"replicas": (2, 1)}]
    even, wide, copied = (layout(pp=2, micro_batches=4, **shape) for shape in shapes)
    assert len(even.stage_units[0]) < len(wide.stage_units[0]) == len(copied.stage_units[0])
    assert layout(pp=2, micro_batches=4, replicas=(2, 1), widths=(1, 2)).stage_units == even.stage_units


def test_stages_go_round_and_round() -> None:
    box = layout(pp=2, schedule="interleaved", chunks=3)
    assert [box.place(stage) for stage in range(6)] == [0, 1, 0, 1, 0, 1]
    assert box.stages_of(1) == (1, 3, 5)


def test_a_v_turns_at_the_last_place() -> None:
    box = layout(pp=3, schedule="zb-v")
    assert [box.place(stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]
    assert box.stages_of(0) == (0, 5)


@given(run_specs(in_turn=True))
def test_layout_and_schedule_agree(spec: RunSpec) -> None:
    box, made = Layout.of(spec), schedule.build(spec)
    for rank in range(box.world):
        place, replica, tensor = box.coords(rank)
        q = box.pipeline_rank(rank)
        assert q in box.linked(replica) and box.position(q) == (place, replica)
        assert {op.peer for op in made.programs[q] if op.kind in P2P} <= {*box.linked(replica)}
        assert [stage for stage, ranks in enumerate(made.placement) if q in ranks] == [*box.stages_of(place)]
        assert box.tensor_group(q)[tensor] == rank
        ids = {op.micro_batch for op in made.programs[q] if op.micro_batch >= 0}
        assert ids == set(box.micro_batches_of(place, replica))


def test_places_with_different_numbers_of_tensor_ranks() -> None:
    box = layout(pp=3, replicas=(2, 1, 1), widths=(1, 4, 2), schedule="1f1b", micro_batches=4)
    assert box.world == 8 and [box.coords(rank) for rank in (1, 5, 7)] == [(0, 1, 0), (1, 0, 3), (2, 0, 1)]
    assert box.tensor_groups() == ((0,), (1,), (2, 3, 4, 5), (6, 7))
    assert box.data_groups() == ((0, 1), (2,), (3,), (4,), (5,), (6,), (7,))
    assert [box.neighbours(rank, 1) for rank in (0, 1, 6, 7)] == [
        ((2,), (2, 3, 4, 5)),
        ((2,), (2, 3, 4, 5)),
        ((2,), (2, 4)),
        ((3,), (3, 5)),
    ]
    assert [box.neighbours(rank, 2) for rank in (2, 3, 4, 5)] == [((6,), (6,)), ((7,), (7,)), ((6,), ()), ((7,), ())]
    assert len(set(box.unit_widths())) == 3


@given(run_specs(in_turn=True))
def test_who_takes_has_one_giver(spec: RunSpec) -> None:
    box = Layout.of(spec)
    for rank in range(box.world):
        others = [q for q in box.linked(box.coords(rank).replica) if q != box.pipeline_rank(rank)]
        for q in others:
            assert all(box.sender(receiver, box.pipeline_rank(rank)) == rank for receiver in box.receivers(rank, q))
            assert rank in box.receivers(box.sender(rank, q), box.pipeline_rank(rank))
            assert {rank, box.sender(rank, q)} <= set(box.pipeline_of(rank))
            assert box.pipeline_of(box.sender(rank, q)) == box.pipeline_of(rank)
