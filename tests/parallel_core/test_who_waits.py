"""Which ranks wait for which where none moves, and what that says about the network."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from parallel_core.who_waits import sentence

DROPS = "the network between a and b may drop packets."


def said(split: dict[str, Any], *ops: str, hosts: str = "ab", steps: tuple[int, ...] = ()) -> str:
    """The sentence on ranks that stand in these operations, spread evenly over hosts."""
    layout = Layout.of(RunSpec.model_validate({"model": {"layers": 8}, "parallel": split, "train": {"clip": "stage"}}))
    each = layout.world // len(hosts)
    places = {rank: (steps[rank] if steps else 7, op) for rank, op in enumerate(ops)}
    return sentence(places, layout, lambda rank: hosts[rank // each])


@pytest.mark.parametrize(
    ("split", "ops", "waits"),
    [
        ({"pp": 2}, ("0RECV_GRAD1", "1RECV_ACT3"), "Rank 0 waits for rank 1 and rank 1 waits for rank 0: "),
        ({"pp": 2}, ("0SEND_ACT3", "1RECV_ACT3"), "Rank 0 waits for rank 1 and rank 1 waits for rank 0: "),
        ({"dp": 2}, ("0ALLREDUCE", "0ALLREDUCE"), "Rank 0 waits for rank 1 and rank 1 waits for rank 0: "),
        (
            {"dp": 2, "pp": 2},
            ("0OPT_STEP", "0ALLREDUCE", "1OPT_STEP", "1OPT_STEP"),
            "Rank 0 waits for rank 1, rank 1 waits for rank 0, rank 2 waits for rank 1 and rank 3 waits for rank 1: ",
        ),
        ({"tp": 2}, ("0F1", "0F1"), "Rank 0 waits for rank 1 and rank 1 waits for rank 0: "),
        ({"dp": 8}, ("0OPT_STEP",) * 8, "7 ranks, rank 1 waits for 7 ranks, "),
    ],
)
def test_where_each_rank_waits_for_another_packets_may_be_dropped(
    split: dict[str, Any], ops: tuple[str, ...], waits: str
) -> None:
    found = said(split, *ops)
    assert waits in found and found.endswith(DROPS)
    assert found.count("waits for") <= 4 and ("and 4 more wait, too: " in found) == (len(ops) == 8)


def test_a_rank_that_computes_keeps_the_others_waiting() -> None:
    found = said({"pp": 2}, "0RECV_GRAD1", "1F0")
    assert found == "Rank 0 waits for rank 1; rank 1 computes."
    assert said({"dp": 2}, "0ALLREDUCE", "0ALLREDUCE", steps=(8, 7)).endswith(DROPS)


@pytest.mark.parametrize(
    ("split", "ops", "hosts"),
    [
        ({"pp": 2}, ("0RECV_GRAD1", "1RECV_ACT3"), "a"),
        ({"pp": 2}, ("0RECV_GRAD1",), "ab"),
        ({"pp": 2}, ("0RECV_GRAD1", "saving"), "ab"),
        ({"dp": 2, "pp": 2}, ("0ALLREDUCE", "0ALLREDUCE", "1OPT_STEP", "1F0"), "ab"),
    ],
)
def test_nothing_is_said_where_it_is_not_known_or_within_a_host(
    split: dict[str, Any], ops: tuple[str, ...], hosts: str
) -> None:
    assert said(split, *ops, hosts=hosts) == ""
