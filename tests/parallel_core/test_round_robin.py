"""1F1B-RR, with different numbers of replicas per stage: as values, checked and simulated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.schedule import compute_only as one_f_one_b
from parallel_core.schedule import lower, round_robin
from parallel_core.schedule.check import check
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import AHEAD, P2P, Kind, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.peaks import peak_copies, peak_in_flight
from parallel_core.simulate import Costs, simulate
from tests.parallel_core.test_check import damaged, drop, ends_though_sends_block

NAMES = st.sampled_from(["1f1b", "1f1b-naive", "1f1b-stash", "1f1b-vertical"])
REPLICAS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def build(name: str, replicas: Sequence[int], micro_batches: int, steps: int = 1) -> Schedule:
    return lower(round_robin.compute_only(name, replicas, micro_batches, steps))


def versions(made: Schedule, kind: Kind) -> list[list[int]]:
    return [[op.version for op in program if op.kind is kind] for program in made.programs]


@pytest.mark.parametrize(
    ("replicas", "held"), [((15, 1), [2, 1]), ((2, 1, 1), [2, 2, 1]), ((2, 1), [2, 1]), ((1, 2), [3, 1])]
)
def test_noam(replicas: tuple[int, ...], held: list[int]) -> None:
    """Narayanan et al. 2019, section 3.2: NOAM = ceil(devices / replicas of the input stage); figure 8 shows 2-1."""
    assert [round_robin.under_way(replicas, stage) for stage in range(len(replicas))] == held
    made = build("1f1b-stash", replicas, 30)
    ends_though_sends_block(made, AHEAD)
    assert peak_in_flight(made) == tuple(n for n, count in zip(held, replicas, strict=True) for _ in range(count))


@given(NAMES, REPLICAS, st.integers(0, 12), st.integers(1, 3))
def test_every_stream_is_right_and_ends(name: str, replicas: list[int], more: int, steps: int) -> None:
    """Any number of micro-batches, so the last round of a step may be short: none of its gradients may be dropped."""
    ends_though_sends_block(build(name, replicas, max(replicas) + more, steps), AHEAD)


@given(NAMES, REPLICAS, st.integers(0, 12))
def test_forward_and_backward_go_to_the_same_replica(name: str, replicas: list[int], more: int) -> None:
    made = build(name, replicas, max(replicas) + more)
    for stage, ranks in enumerate(made.placement):
        for replica, rank in enumerate(ranks):
            for kind in (Kind.F, Kind.BW):
                ids = [op.micro_batch for op in made.programs[rank] if op.kind is kind]
                assert ids == list(range(replica, made.micro_batches, len(ranks))), (stage, replica)


def test_a_replica_group_updates_once_a_round_and_a_short_last_one_counts() -> None:
    made = build("1f1b-stash", (2, 1), 5)
    assert versions(made, Kind.OPT_STEP) == [[2, 4, 5], [2, 4, 5], [1, 2, 3, 4, 5]]
    assert versions(made, Kind.ALLREDUCE) == [[2, 4, 5], [2, 4, 5], []]
    assert versions(made, Kind.F) == [[0, 0, 2], [0, 0], [0, 1, 2, 3, 4]]


def test_rounds_begin_anew_with_each_step() -> None:
    """Both replicas hold version 3 when the first step of three micro-batches ends, and start the next one together."""
    made = build("1f1b-stash", (2, 1), 3, 2)
    assert versions(made, Kind.OPT_STEP) == [[2, 3, 5, 6], [2, 3, 5, 6], [1, 2, 3, 4, 5, 6]]
    assert [[op.micro_batch for op in p if op.kind is Kind.F] for p in made.programs[:2]] == [[0, 2, 3, 5], [1, 4]]


@given(REPLICAS, st.integers(1, 12), st.integers(1, 3))
def test_2bw_keeps_two_versions(replicas: list[int], more: int, steps: int) -> None:
    micro_batches = round_robin.least_micro_batches("1f1b-2bw", replicas) + more - 1
    ends_though_sends_block(build("1f1b-2bw", replicas, micro_batches, steps), AHEAD)


def test_vertical_sync_takes_the_newest_version_that_all_stages_have() -> None:
    """That is a multiple of the least common multiple of the replica counts."""
    made = build("1f1b-vertical", (2, 3, 1), 24)
    used = {op.micro_batch: op.version for program in made.programs for op in program if op.kind is Kind.F}
    assert set(used.values()) == {0, 6, 12, 18}
    for program in made.programs:
        assert all(used[op.micro_batch] == op.version for op in program if op.kind in (Kind.F, Kind.BW))


def test_equal_numbers_are_1f1b() -> None:
    rectangle = one_f_one_b("1f1b-stash", 3, 4, replicas=2)
    made = round_robin.compute_only("1f1b-stash", (2, 2, 2), 8)
    order = [rank for ranks in rectangle.placement for rank in ranks]
    assert [rectangle.programs[rank] for rank in order] == list(made.programs)
    flushed = round_robin.compute_only("1f1b", (2, 2, 2), 8)
    assert [[str(op) for op in p] for p in flushed.programs] == [[str(op) for op in p] for p in made.programs]


def balanced(replicas: tuple[int, ...]) -> Costs:
    """A stage with r replicas has r times the work."""
    return Costs({(s, kind): n * ns for s, n in enumerate(replicas) for kind, ns in ((Kind.F, 1), (Kind.BW, 2))})


@pytest.mark.parametrize(("replicas", "filling"), [((2, 1), 6), ((2, 1, 1), 9), ((1, 1, 1), 6), ((2, 2), 6)])
def test_balanced_stages_are_always_busy_once_it_is_full(replicas: tuple[int, ...], filling: int) -> None:
    """Simulated without the reductions between replicas: m micro-batches take 3 m plus the time to fill."""
    made = communicate(round_robin.compute_only("1f1b-stash", replicas, 60))
    assert max(int(rows["end"].max()) for rows in simulate(made, balanced(replicas)).values()) == 3 * 60 + filling


def test_fifteen_to_one() -> None:
    """The paper's split of VGG-16: two micro-batches per replica of the first stage, one older version each."""
    made = build("1f1b-stash", (15, 1), 60, 2)
    ends_though_sends_block(made, AHEAD)
    assert [peak_copies(program) for program in made.programs] == [1] * 15 + [0]
    assert len({op.peer for op in made.programs[15] if op.kind in P2P}) == 15


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="15 replicas need as many micro-batches, got 4"):
        build("1f1b-stash", (15, 1), 4)
    with pytest.raises(ValueError, match="schedule=gpipe has as many replicas of every stage; try 1f1b, 1f1b-naive"):
        build("gpipe", (2, 1), 4)


def test_a_lost_message_of_one_replica_is_named() -> None:
    with pytest.raises(ScheduleError, match="0F1 has no SEND_ACT after it"):
        check(damaged(build("1f1b-stash", (2, 1), 4), 1, drop("0SEND_ACT1")))
