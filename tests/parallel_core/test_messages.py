"""What a rank holds for its messages, operation by operation: few, whatever the schedule, and each once."""

from __future__ import annotations

import pytest

from parallel_core.plan.messages import Hands
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import AHEAD, Kind
from parallel_core.schedule.passes.communicate import communicate

BIG = 100


def in_hand(name: str, here: int, pp: int = 2, m: int = 4, again: bool = False) -> list[tuple[Kind, int, int, int]]:
    """(kind, stage, micro-batch, elements) of each compute operation; every edge between stages has one element."""
    made = communicate(compute_only(name, pp, m))
    edges = {stage: int(0 < stage < made.stages) for stage in range(made.stages + 1)}
    stages = frozenset(range(made.stages)) if again else frozenset()
    return [(op.kind, op.stage, op.micro_batch, size) for op, size in Hands(made, here, edges, stages).walk()]


def test_the_first_stage_of_1f1b_waits_for_gradients_alone() -> None:
    walked = in_hand("1f1b", 0)
    assert [size for *_, size in walked if size > AHEAD] == [], "its sends end graphs"
    assert walked[-1][3] == 0, "the last backward waits for nothing more"


def test_outputs_that_are_made_again_count_until_they_are_known_to_be_taken() -> None:
    plain, again = in_hand("1f1b", 0), in_hand("1f1b", 0, again=True)
    more = [b[3] - a[3] for a, b in zip(plain, again, strict=True)]
    assert max(more) >= 1 and min(more) == 0


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "v-half", "dualpipe-v"])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_in_hand_does_not_grow_with_the_micro_batches(name: str, again: bool) -> None:
    few, many = (max(size for *_, size in in_hand(name, 1, m=m, again=again)) for m in (8, 16))
    assert many <= few + 1


def test_gradients_that_nothing_answers_are_kept_to_the_end() -> None:
    """GPipe's last stage: all its sends are behind all its receives."""
    assert [size for kind, *_, size in in_hand("gpipe", 1) if kind is Kind.BW] == [0, 1, 2, 3]


def test_between_stages_of_one_rank_nothing_is_sent() -> None:
    """The fold of a V: rank 1 of two holds stages 1 and 2."""
    made = communicate(compute_only("zb-v", 2, 4))
    edges = {0: 0, 1: 0, 2: BIG, 3: 0, 4: 0}
    walked = list(Hands(made, 1, edges, frozenset()).walk())
    assert all(size in (0, BIG) for _, size in walked), "a gradient that waits for its stage, and no more"
    assert any(op.kind is Kind.F for op, _ in walked)
