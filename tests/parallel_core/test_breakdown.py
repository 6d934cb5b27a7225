"""The breakdown of a step: handmade steps with known results, and the correct sum for arbitrary spans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.analysis.breakdown import PHASES, Breakdown, accounts, breakdown, mean, phases
from parallel_core.analysis.waits import waited
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import FLIGHT, Kind
from parallel_core.spec import RunSpec

Rows = np.ndarray


def layout(**split: int | tuple[int, ...]) -> Layout:
    return Layout.of(RunSpec.model_validate({"parallel": split}))


def rows(*spans: tuple[Kind, int, int] | tuple[Kind, int, int, int, int]) -> Rows:
    """SPAN rows from (kind, start, end[, stage, micro-batch])."""
    table = np.zeros(len(spans), SPAN)
    for row, (kind, start, end, *place) in zip(table, spans, strict=True):
        row["kind"], row["start"], row["end"] = kind, start, end
        row["stage"], row["micro_batch"] = place or (0, 0)
    return table


def parts(result: Breakdown) -> dict[str, int]:
    return {name: value for name, value in result.as_dict().items() if value}


def test_compute_optimizer_data_and_the_rest() -> None:
    spans = rows(
        (Kind.STEP, 0, 100),
        (Kind.DATA, 0, 5),
        (Kind.SETUP, 5, 10),
        (Kind.F, 10, 40),
        (Kind.BW, 41, 90),
        (Kind.OPT_STEP, 90, 99),
    )
    assert parts(breakdown({0: spans}, layout())[0]) == {"compute": 79, "optimizer": 9, "data": 5, "other": 7}


def test_compute_is_divided_into_forward_and_backward() -> None:
    """A PAIR holds the spans of its forward and its backward."""
    spans = rows(
        (Kind.STEP, 0, 100),
        (Kind.F, 0, 20),
        (Kind.PAIR, 20, 60),
        (Kind.F, 20, 35),
        (Kind.BW, 37, 60),
        (Kind.B, 60, 70),
        (Kind.R, 60, 64),
        (Kind.W, 70, 75),
    )
    found = breakdown({0: spans}, layout())[0]
    assert (found.compute, found.forward, found.backward, found.undivided) == (71, 35, 36, None)
    assert parts(found) == {"compute": 71, "recompute": 4, "other": 25}


def test_what_was_stored_before_compute_was_divided_stays_whole() -> None:
    old, new = Breakdown(compute=10, bubble=3), Breakdown(compute=20, forward=7)
    assert (old.forward, old.backward, old.undivided) == (None, None, 10)
    assert mean([old, new]).forward is None and mean([new, Breakdown(compute=3, forward=1)]).forward == 4
    for one in (old, new):
        assert Breakdown(**one.stored()) == one


def test_recomputation_is_taken_out_of_the_backward_that_holds_it() -> None:
    spans = rows((Kind.STEP, 0, 50), (Kind.BW, 0, 50), (Kind.R, 0, 10), (Kind.R, 20, 30))
    assert parts(breakdown({0: spans}, layout())[0]) == {"compute": 30, "recompute": 20}


def test_a_receive_waits_until_the_send_begins() -> None:
    first = rows((Kind.STEP, 0, 50), (Kind.F, 0, 30, 0, 3), (Kind.SEND_ACT, 30, 34, 0, 3))
    second = rows((Kind.STEP, 0, 50), (Kind.RECV_ACT, 0, 36, 1, 3), (Kind.F, 36, 50, 1, 3))
    result = breakdown({0: first, 1: second}, layout(pp=2))
    assert parts(result[1]) == {"bubble": 30, "exposed_p2p": 6, "compute": 14}
    assert parts(result[0]) == {"compute": 30, "exposed_p2p": 4, "other": 16}


def test_phases_count_what_lies_in_another_span_once() -> None:
    """A tensor collective inside a forward, a recomputation inside a backward, a message behind computing."""
    own = rows(
        (Kind.STEP, 0, 100),
        (Kind.F, 0, 40),
        (Kind.TP_COLLECTIVE, 30, 40),
        (Kind.SEND_ACT, 38, 44),
        (Kind.BW, 44, 80),
        (Kind.R, 44, 56),
        (Kind.W, 80, 85),
        (Kind.DATA, 90, 95),
    )
    found = {name: ns for name, ns in phases(own).items() if ns}
    told = {"forward": 30, "communication": 14, "recompute": 12, "backward": 24, "weight": 5, "other": 5, "idle": 10}
    assert found == told and sum(told.values()) == 100
    part = {name: ns for name, ns in phases(own, window=(35, 50)).items() if ns}
    assert part == {"communication": 9, "recompute": 6}
    assert phases(own, window=(90, 200))["idle"] == 5 and sum(phases(own, window=(90, 200)).values()) == 10
    assert sum(phases(own, window=(300, 400)).values()) == 0 == sum(phases(own[:0]).values())


def test_phases_know_waits_as_the_breakdown_does() -> None:
    first = rows((Kind.STEP, 0, 50), (Kind.F, 0, 30, 0, 3), (Kind.SEND_ACT, 30, 34, 0, 3), (Kind.NORM, 34, 50))
    second = rows((Kind.STEP, 0, 50), (Kind.RECV_ACT, 0, 36, 1, 3), (Kind.F, 36, 48, 1, 3), (Kind.NORM, 48, 50))
    spans = {0: first, 1: second}
    known, parts_of = waited(spans, layout(pp=2)), breakdown(spans, layout(pp=2))
    for rank, own in spans.items():
        found, told = phases(own, known[rank]), parts_of[rank]
        assert (found["waiting"], found["communication"]) == (told.bubble, told.communication)
        assert found["forward"] == told.forward and sum(found.values()) == told.total
    assert phases(second)["waiting"] == 0 and phases(second)["communication"] == 38
    assert set(phases(second)) == set(PHASES)


def test_a_gradient_comes_from_the_stage_behind() -> None:
    first = rows((Kind.STEP, 0, 50), (Kind.RECV_GRAD, 0, 20, 0, 3))
    second = rows((Kind.STEP, 0, 50), (Kind.SEND_GRAD, 15, 16, 1, 3), (Kind.SEND_GRAD, 2, 3, 1, 4))
    assert parts(breakdown({0: first, 1: second}, layout(pp=2))[0]) == {"bubble": 15, "exposed_p2p": 5, "other": 30}


def test_a_receive_without_its_send_counts_as_communication() -> None:
    spans = rows((Kind.STEP, 0, 20), (Kind.RECV_ACT, 0, 20, 1, 9))
    assert parts(breakdown({1: spans}, layout(pp=2))[1]) == {"exposed_p2p": 20}


def test_tensor_collectives_are_taken_out_of_compute_and_split_at_the_last_arrival() -> None:
    early = rows((Kind.STEP, 0, 40), (Kind.F, 0, 40), (Kind.TP_COLLECTIVE, 10, 20), (Kind.TP_COLLECTIVE, 25, 30))
    late = rows((Kind.STEP, 0, 40), (Kind.F, 0, 40), (Kind.TP_COLLECTIVE, 16, 20), (Kind.TP_COLLECTIVE, 25, 30))
    result = breakdown({0: early, 1: late}, layout(tp=2))
    assert parts(result[0]) == {"compute": 25, "bubble": 6, "exposed_collective": 9}
    assert parts(result[1]) == {"compute": 31, "exposed_collective": 9}


@pytest.mark.parametrize(("inside", "split"), [(Kind.TP_COLLECTIVE, "tp"), (Kind.UNSHARD, "dp")])
def test_a_collective_behind_computation_is_reached_where_it_begins(inside: Kind, split: str) -> None:
    """Rank 0 waits while rank 1 still computes; both had begun by 8, so that nobody waited for rank 1."""
    first = rows((Kind.STEP, 0, 40), (Kind.BW, 0, 40), (FLIGHT[inside], 5, 20), (inside, 20, 24))
    second = rows((Kind.STEP, 0, 40), (Kind.BW, 0, 40), (FLIGHT[inside], 8, 28), (inside, 28, 30))
    spans, here = {0: first, 1: second}, layout(**{split: 2})
    result = breakdown(spans, here)
    assert parts(result[0]) == {"compute": 36, "exposed_collective": 4}
    assert parts(result[1]) == {"compute": 38, "exposed_collective": 2}
    assert [account.overlapped for account in accounts(spans, here).values()] == [15, 20]
    second["start"][2] = 22  # now it begins late, and rank 0 waits for that
    assert parts(breakdown(spans, here)[0]) == {"compute": 36, "bubble": 2, "exposed_collective": 2}


def test_gathers_on_a_stream_of_their_own_hide_behind_compute() -> None:
    """As of `fully_shard` on CUDA: each is a flight as a whole, and no rank is known to wait for another."""
    spans = rows((Kind.STEP, 0, 50), (Kind.F, 5, 45), (Kind.UNSHARD_FLIGHT, 0, 20), (Kind.UNSHARD_FLIGHT, 20, 40))
    account = accounts({0: spans, 1: spans}, layout(dp=2))[0]
    assert parts(account.parts) == {"compute": 40, "other": 10} and account.overlapped == 35


def test_only_the_collective_after_a_flight_began_with_it() -> None:
    """The others of the rank have no flight: they are reached where they start."""
    first = rows(
        (Kind.STEP, 0, 60),
        (Kind.TP_COLLECTIVE, 0, 10),
        (Kind.TP_FLIGHT, 12, 20),
        (Kind.TP_COLLECTIVE, 20, 30),
        (Kind.TP_COLLECTIVE, 40, 50),
    )
    second = rows(
        (Kind.STEP, 0, 60),
        (Kind.TP_COLLECTIVE, 4, 10),
        (Kind.TP_FLIGHT, 26, 28),
        (Kind.TP_COLLECTIVE, 28, 30),
        (Kind.TP_COLLECTIVE, 43, 50),
    )
    assert breakdown({0: first, 1: second}, layout(tp=2))[0].bubble == 4 + 6 + 3


def test_tensor_groups_do_not_wait_for_each_other() -> None:
    spans = [rows((Kind.STEP, 0, 40), (Kind.TP_COLLECTIVE, start, 30)) for start in (0, 5, 20, 20)]
    result = breakdown(dict(enumerate(spans)), layout(tp=2, pp=2))
    assert [result[rank].bubble for rank in range(4)] == [5, 0, 0, 0]


def test_of_a_wider_group_some_give_and_all_take() -> None:
    """Ranks 0 and 1 are the first stage's tensor group, rank 2 the second stage."""
    first = rows((Kind.STEP, 0, 50), (Kind.SEND_ACT, 12, 13, 0, 3), (Kind.RECV_GRAD, 20, 30, 0, 3))
    other = rows((Kind.STEP, 0, 50), (Kind.SEND_ACT, 5, 5, 0, 3), (Kind.RECV_GRAD, 20, 32, 0, 3))
    second = rows((Kind.STEP, 0, 50), (Kind.RECV_ACT, 0, 14, 1, 3), (Kind.SEND_GRAD, 26, 28, 1, 3))
    result = breakdown({0: first, 1: other, 2: second}, layout(pp=2, widths=(2, 1)))
    assert [result[rank].bubble for rank in range(3)] == [6, 6, 12]


def test_a_wider_stage_takes_from_the_stage_before_it() -> None:
    """Rank 2 is the second of three stages and sends to both ranks of the third, 3 and 4."""
    idle = rows((Kind.STEP, 0, 50))
    middle = rows((Kind.STEP, 0, 50), (Kind.SEND_ACT, 12, 13, 1, 3))
    last = rows((Kind.STEP, 0, 50), (Kind.RECV_ACT, 0, 14, 2, 3))
    result = breakdown({0: idle, 1: idle, 2: middle, 3: last, 4: last}, layout(pp=3, widths=(2, 1, 2)))
    assert [result[rank].bubble for rank in (3, 4)] == [12, 12]


def test_only_the_uncovered_part_of_a_bucket_counts() -> None:
    spans = rows((Kind.STEP, 0, 60), (Kind.BW, 0, 40), (Kind.BUCKET, 20, 50), (Kind.BUCKET, 30, 55))
    assert parts(breakdown({0: spans}, layout())[0]) == {"compute": 40, "exposed_collective": 15, "other": 5}


def test_allreduce_waits_for_the_slowest_replica_and_norm_for_the_slowest_rank() -> None:
    fast = rows((Kind.STEP, 0, 100), (Kind.BW, 0, 40), (Kind.ALLREDUCE, 40, 70), (Kind.NORM, 70, 90))
    slow = rows((Kind.STEP, 0, 100), (Kind.BW, 0, 60), (Kind.ALLREDUCE, 60, 70), (Kind.NORM, 80, 90))
    result = breakdown({0: fast, 1: slow}, layout(dp=2))
    assert parts(result[0]) == {"compute": 40, "bubble": 30, "exposed_collective": 20, "other": 10}
    assert parts(result[1]) == {"compute": 60, "exposed_collective": 20, "other": 20}


def test_alone_the_norm_is_part_of_the_optimizer() -> None:
    spans = rows((Kind.STEP, 0, 50), (Kind.BW, 0, 30), (Kind.OPT_STEP, 30, 50), (Kind.NORM, 31, 40))
    assert parts(breakdown({0: spans}, layout())[0]) == {"compute": 30, "optimizer": 20}


def test_mean_of_ranks() -> None:
    result = mean([Breakdown(compute=10, bubble=3), Breakdown(compute=20)])
    assert (result.compute, result.bubble, result.total) == (15, 1, 16)
    with pytest.raises(ValueError, match="no breakdown"):
        mean([])


KINDS = st.sampled_from([kind for kind in Kind if kind is not Kind.STEP])
SPANS = st.lists(
    st.tuples(KINDS, st.integers(-50, 1050), st.integers(0, 300), st.integers(0, 1), st.integers(0, 3)), max_size=30
)


@given(st.lists(SPANS, min_size=8, max_size=8), st.integers(0, 10**18))
def test_components_add_up_to_the_step_for_any_spans(
    ranks: list[list[tuple[Kind, int, int, int, int]]], zero: int
) -> None:
    tables = {
        rank: rows(
            (Kind.STEP, zero, zero + 1000),
            *((kind, zero + start, zero + start + length, stage, mb) for kind, start, length, stage, mb in spans),
        )
        for rank, spans in enumerate(ranks)
    }
    for result in breakdown(tables, layout(dp=2, tp=2, pp=2)).values():
        assert result.total == 1000
        assert min(result.as_dict().values()) >= 0


def test_a_hundred_thousand_spans_are_no_trouble() -> None:
    """Every other nanosecond computes and the rest is a message: the sums stay exact at this size."""
    n = 50_000
    table = np.zeros(2 * n, SPAN)
    table["kind"][:n], table["kind"][n:] = Kind.F, Kind.SEND_ACT
    table["start"][:n], table["start"][n:] = 2 * np.arange(n), 2 * np.arange(n) + 1
    table["end"] = table["start"] + 1
    assert parts(breakdown({0: table}, layout())[0]) == {"compute": n, "exposed_p2p": n}
