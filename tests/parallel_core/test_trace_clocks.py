"""Clocks of the hosts of a job: which are compared, which are moved, and what is said of the others."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.traces import kineto
from parallel_core.traces.job_trace import JobTrace, join


@pytest.mark.parametrize(("hosts", "said"), [(("a", "b"), True), (("a", "a"), False), (("", ""), False)])
def test_clocks_that_nothing_compares_are_said(hosts: tuple[str, str], said: bool) -> None:
    traces = [(f"rank{rank}.json", rank, kineto.RankTrace(host=host)) for rank, host in enumerate(hosts)]
    assert any("without a collective to tell by: rank 1." in note for note in join(traces).notes) == said


def stage_of(stage: int, host: str, late_ms: int = 0) -> kineto.RankTrace:
    """Two stages forward and back in 60 ms: stage 1 reduces its gradients at 50 ms, stage 0 at 70 ms."""
    named = {
        0: [(Kind.F, 0, 10), (Kind.SEND_ACT, 10, 12), (Kind.RECV_GRAD, 40, 42), (Kind.BW, 42, 60)],
        1: [(Kind.RECV_ACT, 0, 12), (Kind.F, 12, 22), (Kind.BW, 22, 40), (Kind.SEND_GRAD, 40, 42)],
    }[stage]
    rows = np.zeros(len(named) + 1, SPAN)
    for row, (kind, start, end) in zip(rows, [*named, (Kind.BUCKET, 0, 70 - 20 * stage)], strict=True):
        row["kind"], row["stage"], row["micro_batch"] = kind, stage, 0
        row["start"], row["end"] = start * 10**6, end * 10**6
    rows["stage"][-1] = rows["micro_batch"][-1] = -1
    trace = kineto.RankTrace(steps={0: rows}, host=host, stages=1, micro_batches=1)
    trace.move(late_ms * 10**6)
    return trace


def joined_stages(*traces: kineto.RankTrace) -> JobTrace:
    return join([(f"rank{rank}.json", rank, trace) for rank, trace in enumerate(traces)])


def test_stages_on_two_hosts_reduce_at_times_of_their_own() -> None:
    found = joined_stages(stage_of(0, "a"), stage_of(0, "a"), stage_of(1, "b"), stage_of(1, "b"))
    assert [trace.steps[0]["end"].max() for trace in found.ranks.values()] == [70e6, 70e6, 50e6, 50e6]
    assert not any("was moved" in note for note in found.notes)
    assert "Rank 2 has other collectives than rank 0: their clocks were not compared." in found.notes


def test_a_host_is_moved_as_a_whole_by_the_stage_that_it_shares() -> None:
    found = joined_stages(stage_of(0, "a"), stage_of(1, "a"), stage_of(1, "b", 30), stage_of(0, "b", 30))
    assert [trace.steps[0]["end"].max() for trace in found.ranks.values()] == [70e6, 50e6, 50e6, 70e6]
    assert [note for note in found.notes if "clock" in note] == [
        "The clock of ranks 2, 3 is roughly 30 ms ahead of that of rank 1; it was moved by the ends of 1 collective, "
        "whose groups nothing names."
    ]


def unnamed(trace: kineto.RankTrace) -> kineto.RankTrace:
    """The trace without its annotations."""
    for rows in trace.steps.values():
        rows["stage"] = rows["micro_batch"] = -1
    trace.stages = trace.micro_batches = 0
    return trace


def last_ms(found: JobTrace) -> list[float]:
    return [float(trace.steps[0]["end"].max()) / 1e6 for trace in found.ranks.values()]


@pytest.mark.parametrize("named", [True, False])
def test_a_clock_that_is_far_off_is_moved_roughly_where_no_stage_is_shared(named: bool) -> None:
    traces = stage_of(0, "a"), stage_of(1, "b", 300)
    found = joined_stages(*traces if named else map(unnamed, traces))
    assert last_ms(found) == [70, 70]
    assert [note for note in found.notes if "clock" in note.lower()] == [
        "The clock of rank 1 is roughly 280 ms ahead of that of rank 0; it was moved by the ends of 1 collective, "
        "which may be those of other stages."
    ]


def test_replicas_that_nothing_names_are_moved_where_they_are_far_off_alone() -> None:
    far = joined_stages(unnamed(stage_of(0, "a")), unnamed(stage_of(0, "b", 300)))
    assert last_ms(far) == [70, 70]
    near = joined_stages(unnamed(stage_of(0, "a")), unnamed(stage_of(0, "b", 30)))
    assert last_ms(near) == [70, 100]
    assert [note for note in near.notes if "clock" in note] == [
        "Nothing names the stages of ranks 0, 1, which would say whose collectives are the same: on rank 1, the clock "
        "was not compared with that of rank 0."
    ]


def test_a_stage_shared_with_a_host_that_was_moved_roughly_counts_for_more() -> None:
    found = joined_stages(stage_of(0, "a"), stage_of(1, "b", 300), stage_of(1, "c", 900))
    assert last_ms(found) == [70, 70, 70]
    assert any("rank 2 is roughly 880 ms ahead of that of rank 1;" in note for note in found.notes)


def test_a_rank_without_collectives_is_moved_with_its_host() -> None:
    silent = stage_of(0, "b", 300)
    silent.steps[0] = silent.steps[0][silent.steps[0]["kind"] != Kind.BUCKET]
    found = joined_stages(stage_of(0, "a"), stage_of(0, "b", 300), silent)
    assert last_ms(found) == [70, 70, 60]
    assert [note for note in found.notes if "clock" in note.lower()] == [
        "The clock of ranks 1, 2 is roughly 300 ms ahead of that of rank 0; it was moved by the ends of 1 collective, "
        "whose groups nothing names."
    ]


def replica_of(rank: int, host: str, late_ms: int = 0, named: str = "tensor data") -> kineto.RankTrace:
    """One of two tensor-parallel groups of two: four sums inside, which take 20 % longer on ranks 2 and 3, then the sum
    of the gradients with the rank of the other group, which ends at 60 ms on both.
    """
    each = 10 if rank < 2 else 12
    ends = [each * i for i in range(1, 5)] + [60]
    rows = np.zeros(len(ends), SPAN)
    rows["kind"], rows["stage"], rows["micro_batch"] = Kind.BUCKET, -1, -1
    rows["end"] = np.array(ends) * 10**6
    rows["start"] = rows["end"] - 10**6
    trace = kineto.RankTrace(steps={0: rows}, host=host)
    groups = {name: f"{name} {index}" * (name in named) for name, index in (("tensor", rank // 2), ("data", rank % 2))}
    if named:
        trace.groups = {0: [groups["tensor"]] * 4 + [groups["data"]]}
    trace.move(late_ms * 10**6)
    return trace


def replicas(late_ms: int, named: str = "tensor data") -> JobTrace:
    return joined_stages(*(replica_of(rank, "ab"[rank // 2], late_ms * (rank // 2), named) for rank in range(4)))


@pytest.mark.parametrize("named", ["tensor data", "data"])
def test_a_slow_group_is_no_clock_that_is_ahead(named: str) -> None:
    right = replicas(0, named)
    assert last_ms(right) == [60] * 4 and not any("clock" in note for note in right.notes)
    moved = replicas(30, named)
    assert last_ms(moved) == [60] * 4
    assert [note for note in moved.notes if "clock" in note] == [
        "The clock of ranks 2, 3 is 30 ms ahead of that of rank 0; it was moved by the ends of 1 collective."
    ]


def test_ranks_of_different_groups_are_not_compared() -> None:
    found = joined_stages(replica_of(0, "a"), replica_of(3, "b", 10))
    assert last_ms(found) == [60, 70]
    assert "Rank 1 has other collectives than rank 0: their clocks were not compared." in found.notes


def test_without_names_of_groups_a_clock_is_moved_roughly() -> None:
    (said,) = (note for note in replicas(30, named="").notes if "clock" in note)
    assert "is roughly 34 ms ahead" in said and "5 collectives, whose groups nothing names" in said


def test_clocks_that_are_hours_apart_are_said_in_hours() -> None:
    """A host's clock may count from its boot."""
    (said,) = (note for note in replicas(7_500_000).notes if "clock" in note)
    assert " 2 h 5 min ahead of that of rank 0;" in said


def steps_of(host: str, steps: tuple[int, ...], named: bool, late_ms: int = 0) -> kineto.RankTrace:
    """Steps of 100 ms, one after another, each with a sum that ends 60 ms after its begin."""
    trace = kineto.RankTrace(host=host)
    for step in steps:
        rows = np.zeros(1, SPAN)
        rows["kind"], rows["stage"], rows["micro_batch"] = Kind.BUCKET, -1, -1
        rows["start"], rows["end"] = (np.array([10, 60])[:, None] + 100 * step) * 10**6
        trace.steps[step] = rows
    trace.groups = {step: ["data"] for step in steps} if named else {}
    trace.move(late_ms * 10**6)
    return trace


def ends_ms(found: JobTrace) -> list[dict[int, float]]:
    return [{step: float(rows["end"][0]) / 1e6 for step, rows in own.steps.items()} for own in found.ranks.values()]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("late_ms", [0, 30])
@pytest.mark.parametrize("steps", [(0, 1, 2), (1, 2, 3), (2,)])
def test_clocks_are_compared_by_the_steps_that_both_ranks_have(
    steps: tuple[int, ...], late_ms: int, named: bool
) -> None:
    """A cycle of one rank is missing: the k-th collective of one is not the k-th of the other."""
    found = joined_stages(steps_of("a", (0, 1, 2), named), steps_of("b", steps, named, late_ms))
    assert ends_ms(found) == [{step: 60 + 100 * step for step in own} for own in ((0, 1, 2), steps)]
    assert any(f" {late_ms} ms ahead of that of rank 0;" in note for note in found.notes) == (late_ms > 0)


def test_stages_far_apart_are_compared_by_the_steps_that_both_ranks_have() -> None:
    """The roughly moved clock: rank 0 lacks step 1, rank 1 lacks step 2."""
    traces = [stage_of(stage, host, late) for stage, host, late in ((0, "a", 0), (1, "b", 300))]
    for trace, other in zip(traces, (2, 1), strict=True):
        trace.steps[other] = trace.steps[0].copy()
        trace.steps[other]["start"] += 10**8 * other
        trace.steps[other]["end"] += 10**8 * other
    found = joined_stages(*traces)
    assert last_ms(found) == [70, 70]
    assert any(
        "rank 1 is roughly 280 ms ahead of that of rank 0; it was moved by the ends of 1 " in n for n in found.notes
    )


def test_ranks_without_a_common_step_are_not_compared() -> None:
    found = joined_stages(steps_of("a", (0, 1), True), steps_of("b", (2, 3), True, 500))
    assert ends_ms(found)[1] == {2: 760, 3: 860}
    assert "Rank 1 has no step in common with rank 0: their clocks were not compared." in found.notes
    assert "Not every step is in the traces of ranks 0, 1." in found.notes
