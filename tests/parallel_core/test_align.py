"""Two ranks compared operation by operation: what is equal, what differs, and the sentence about it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parallel_core.analysis.align import Side, align, sentence
from parallel_core.simulate import Costs
from tests.parallel_core.test_replay import spec, step

NAMES = st.lists(st.tuples(st.integers(0, 3), st.just(0), st.integers(0, 3)), max_size=20)


def said(a: int, b: int, **split: Any) -> str:
    made = spec(**split)
    spans = step(made, Costs.uniform(made.parallel.stages, 10, 10, 10, message=1))
    sides = Side(made, a, spans[a]), Side(made, b, spans[b])
    return sentence(*sides, align(*(side.operations() for side in sides)), (f"rank {a}", f"rank {b}"))


def test_replicas_do_the_same_on_other_samples() -> None:
    assert said(0, 1, dp=2, micro_batches=3) == (
        "The same 8 operations in the same order, the same parameters, different samples."
    )


def test_tensor_ranks_do_the_same_on_their_part() -> None:
    assert said(0, 1, tp=2) == "The same 3 operations in the same order, on its own part of the same layers."


def test_stages_differ_in_their_messages_and_layers() -> None:
    text = said(0, 1, pp=2, micro_batches=2, schedule="gpipe")
    assert text.startswith("5 operations are the same")
    assert "4 are only on rank 0, 4 are only on rank 1." in text
    assert "Rank 0 has" in text


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
