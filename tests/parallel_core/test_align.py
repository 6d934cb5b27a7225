"""Two ranks compared operation by operation: what is equal, what differs, and the sentence about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.analysis.align import MOST, Name, Side, align, align_sides, comparable, sentence
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from tests.parallel_core.test_breakdown import rows
from tests.parallel_core.test_replay import spec, step

NAMES = st.lists(st.tuples(st.integers(0, 3), st.just(0), st.integers(0, 3)), max_size=20)


def said(a: int, b: int, **split: Any) -> str:
    made = spec(**split)
    spans = step(made, Costs.uniform(made.parallel.stages, 10, 10, 10, message=1))
    sides = Side(made, a, spans[a]), Side(made, b, spans[b])
    return sentence(*sides, align_sides(*sides), (f"rank {a}", f"rank {b}"))


def test_replicas_do_the_same_on_other_samples() -> None:
    assert said(0, 1, dp=2, micro_batches=3) == (
        "The same 8 operations in the same order, the same parameters, different samples."
    )


def test_tensor_ranks_do_the_same_on_their_part() -> None:
    assert said(0, 1, tp=2) == "The same 3 operations in the same order, on its own part of the same layers."


def test_stages_differ_in_their_messages_and_layers() -> None:
    text = said(0, 1, pp=2, micro_batches=2, schedule="gpipe")
    assert text == (
        "Rank 0 has embed to block.3.mlp, rank 1 block.4.attn to head. "
        "5 operations are of the same kind and micro-batch, 4 only on rank 0, 4 only on rank 1."
    ), "a forward of other layers is not the same operation"
    moved = said(0, 1, pp=2, micro_batches=4, schedule="1f1b")
    assert "elsewhere in the order" in moved
    assert max(len(sentence.split()) for sentence in moved.split(". ")) <= 25


def test_layers_of_a_rank_with_several_stages_are_named_stretch_by_stretch() -> None:
    folded = said(0, 1, pp=2, micro_batches=2, schedule="zb-v")
    assert folded.startswith(
        "Rank 0 has embed to block.1.mlp and block.6.attn to head, rank 1 block.2.attn to block.5.mlp. "
    )
    looped = said(0, 1, pp=2, micro_batches=2, schedule="interleaved", chunks=8)
    assert looped.startswith("Rank 0 has embed to block.0.attn, block.1.attn, block.2.attn and 5 more parts, rank 1 ")


def test_an_operation_elsewhere_has_moved() -> None:
    f0, f1, f2 = ((0, 0, i) for i in range(3))
    found = align([f0, f1, f2], [f1, f2, f0])
    assert [row.status for row in found.rows] == ["moved_a", "same", "same", "moved_b"]
    assert (found.same, found.moved, found.only_a, found.only_b) == (2, 1, 0, 0)


@given(NAMES, NAMES)
def test_every_operation_is_accounted_for(a: list[Any], b: list[Any]) -> None:
    found = align(a, b)
    assert [row.a for row in found.rows if row.a is not None] == a
    assert [row.b for row in found.rows if row.b is not None] == b
    assert found.same + found.moved + found.only_a == len(a)
    assert found.same + found.moved + found.only_b == len(b)
    assert all(row.a == row.b for row in found.rows if row.status == "same")
    assert found.equal == (a == b)


@given(NAMES, NAMES)
def test_no_alignment_has_more_in_order(a: list[Any], b: list[Any]) -> None:
    """The length of a longest common subsequence, from its definition."""

    @cache
    def longest(i: int, j: int) -> int:
        if not i or not j:
            return 0
        pair = longest(i - 1, j - 1) + 1 if a[i - 1] == b[j - 1] else 0
        return max(pair, longest(i - 1, j), longest(i, j - 1))

    assert align(a, b).same == longest(len(a), len(b))


def test_repeated_layers_are_not_matched_with_their_neighbours() -> None:
    """Two operations more on one side: everything else is the same and in order."""
    layer = [(kind, 0, -1) for kind in (1, 2, 3, 2, 4, 5, 2, 3, 2, 6)]
    first, last = [(7, 0, -1), (8, 0, -1)], [(9, 0, -1)]
    a = [*first, *(layer * 24), *last]
    more = [*layer[:4], layer[1], *layer[4:]]
    b = [*first, *layer, *more, *(layer * 12), *more, *(layer * 9), *last]
    found = align(a, b)
    assert (found.same, found.only_a, found.only_b, found.moved) == (len(a), 0, 2, 0)


@dataclass(frozen=True)
class Given(Side):
    """A side whose operations are given."""

    names: Sequence[Name] = ()

    def operations(self) -> list[Name]:
        return list(self.names)


def given_side(names: Sequence[Name]) -> Given:
    return Given(spec(), 0, np.zeros(0, SPAN), names)


@given(NAMES, NAMES)
def test_as_many_as_possible_are_in_order(a: list[Any], b: list[Any]) -> None:
    found = align_sides(given_side(a), given_side(b))
    assert [row.a for row in found.rows if row.a is not None] == a
    assert [row.b for row in found.rows if row.b is not None] == b
    assert found.same + found.moved + found.only_a == len(a)
    assert found.equal == (a == b)
    once = len(set(a)) == len(a) and len(set(b)) == len(b)
    assert not once or found.same >= align(a, b).same


def test_a_collective_more_in_a_forward_moves_none_of_the_backward() -> None:
    def side(more: int) -> Given:
        forward = [(Kind.F, 0, 0), *[(Kind.TP_COLLECTIVE, 0, 0)] * (2 + more)]
        return given_side([*forward, (Kind.BW, 0, 0), *[(Kind.TP_COLLECTIVE, 0, 0)] * 3])

    found = align_sides(side(0), side(1))
    assert (found.same, found.only_a, found.only_b, found.moved) == (7, 0, 1, 0)


def test_the_longest_step_is_aligned_without_comparing_all_pairs() -> None:
    """As two stages do: every other operation is on one of them alone."""
    forwards, half = [(Kind.F, 0, i) for i in range(MOST)], MOST // 2
    sent = given_side([name for f in forwards for name in (f, (Kind.SEND_ACT, 0, f[2]))])
    received = given_side([name for f in forwards for name in ((Kind.RECV_ACT, 0, f[2]), f)])
    found = align_sides(sent, received)
    assert (found.same, found.only_a, found.only_b, found.cut) == (half, half, half, True)


def test_gathers_are_compared_only_where_both_sides_have_them() -> None:
    """As of a run by `fully_shard` on CUDA, which has flights alone, and one by this engine."""
    f, bw, step = (Kind.F, 0, 9), (Kind.BW, 10, 40), (Kind.STEP, 0, 40)
    torch = Side(spec(dp=2), 0, rows(step, f, bw, (Kind.UNSHARD_FLIGHT, 0, 3), (Kind.UNSHARD_FLIGHT, 12, 20)))
    own = Side(
        spec(dp=2), 0, rows(step, f, bw, (Kind.UNSHARD, 0, 3), (Kind.UNSHARD_FLIGHT, 12, 20), (Kind.UNSHARD, 20, 22))
    )
    for pair in ((torch, own), (own, torch)):
        found = align_sides(*pair)
        assert found.equal and found.same == 2
        assert [len(side.ordered) for side in comparable(*pair)] == [len(of) for of in found.statuses] == [2, 2]
    assert align_sides(own, own).same == 4, "both have them"
    plain = Side(spec(dp=2), 0, rows(step, f, bw))
    assert align_sides(plain, own).only_b == 2, "a run that gathers nothing has no flight either"


def test_a_flight_is_part_of_its_collective() -> None:
    """Steps that were recorded before flights were have the same operations."""
    f, bw, ended = (Kind.F, 0, 9), (Kind.BW, 10, 40), [(Kind.TP_COLLECTIVE, 20, 24), (Kind.TP_COLLECTIVE, 32, 36)]
    old = Side(spec(tp=2), 0, rows((Kind.STEP, 0, 40), f, bw, *ended))
    new = Side(
        spec(tp=2), 0, rows((Kind.STEP, 0, 40), f, (Kind.TP_FLIGHT, 12, 20), bw, *ended, (Kind.TP_FLIGHT, 26, 32))
    )
    found = align_sides(old, new)
    assert found.equal and found.same == 4
    assert [len(statuses) for statuses in found.statuses] == [len(old.ordered), len(new.ordered)]
    assert new.ordered["start"].tolist() == [0, 10, 20, 32]
