"""What a rank holds for its messages, operation by operation: little under any schedule, and every message counted
once.
"""

from __future__ import annotations

from itertools import product

import pytest

from parallel_core.plan import backward
from parallel_core.plan.in_flight import in_flight
from parallel_core.plan.messages import HeldMessages
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import AHEAD, Kind
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.spec import RunSpec

BIG = 100


def in_hand(name: str, here: int, pp: int = 2, m: int = 4, again: bool = False) -> list[tuple[Kind, int, int, int]]:
    """(kind, stage, micro-batch, elements held) of each compute operation; every message between stages has one
    element.
    """
    made = communicate(compute_only(name, pp, m))
    edges = {stage: int(0 < stage < made.stages) for stage in range(made.stages + 1)}
    stages = frozenset(range(made.stages)) if again else frozenset()
    return [(op.kind, op.stage, op.micro_batch, size) for op, size in HeldMessages(made, here, edges, stages).walk()]


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
    """In GPipe's last stage, all sends come after all receives."""
    assert [size for kind, *_, size in in_hand("gpipe", 1) if kind is Kind.BW] == [0, 1, 2, 3]


@pytest.mark.parametrize(("here", "to"), [(0, 1), (1, 0)])
def test_what_a_narrower_stage_takes_from_another_tensor_rank_is_in_no_hand(here: int, to: int) -> None:
    """Only receives that were posted count."""
    made = communicate(compute_only("gpipe", 2, 4))
    walked = HeldMessages(made, here, {0: 0, 1: 1, 2: 0}, frozenset({0, 1}), frozenset({to})).walk()
    assert [size for op, size in walked if op.kind is Kind.BW] == ([2, 2, 1, 0] if here == 0 else [0] * 4)


def test_between_stages_of_one_rank_nothing_is_sent() -> None:
    """The fold of a V: rank 1 of two holds stages 1 and 2."""
    made = communicate(compute_only("zb-v", 2, 4))
    edges = {0: 0, 1: 0, 2: BIG, 3: 0, 4: 0}
    walked = list(HeldMessages(made, 1, edges, frozenset()).walk())
    assert all(size in (0, BIG) for _, size in walked), "at most a gradient that waits for its stage"
    assert any(op.kind is Kind.F for op, _ in walked)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "naive"])
def test_the_closed_form_is_what_a_walk_finds_while_all_is_in_flight(name: str, recompute: str) -> None:
    for pp, m in product((2, 3, 4), (1, 2, 3, 4, 8, 12)):
        split = {"pp": pp, "micro_batches": m, "schedule": name, "recompute": recompute}
        spec = RunSpec.model_validate({"model": {"layers": 4}, "parallel": split, "train": {"global_batch": 24}})
        made = communicate(compute_only(name, pp, m))
        for stage in range(pp):
            edges, again = {stage: int(stage > 0), stage + 1: int(stage < pp - 1)}, recompute == "full"
            messages = HeldMessages(made, stage, edges, frozenset({stage} if again else ()))
            said = backward.messages(spec, stage, edges[stage], edges[stage + 1], backward.RankVariant(0, frozenset()))
            assert said + again * backward.unproven(spec, stage) == _while_full(messages, in_flight(spec, stage))


def _while_full(messages: HeldMessages, most: int) -> int:
    """The largest amount held during a backward while `most` micro-batches are in flight."""
    held, under_way = [], 0
    for op, size in messages.walk():
        under_way += op.kind is Kind.F
        held += [size] * (op.kind is Kind.BW and under_way == most)
        under_way -= op.kind is Kind.BW
    return max(held)
