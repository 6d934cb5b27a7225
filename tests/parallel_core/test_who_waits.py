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
    ("split", "ops", "waits"),
    [
        ({"pp": 2}, ("0RECV_GRAD1",), "Rank 0 waits for rank 1. Whether rank 1 waits"),
        ({"pp": 2}, ("0RECV_GRAD1", "saving"), "Rank 0 waits for rank 1. Whether rank 1 waits"),
        (
            {"dp": 2, "pp": 2},
            ("0ALLREDUCE", "0ALLREDUCE", "1OPT_STEP", "1F0"),
            "Rank 0 waits for rank 1, rank 1 waits for rank 0 and rank 2 waits for ranks 0, 1 and 3. "
            "Whether rank 3 waits",
        ),
        ({"pp": 4}, ("saving", "1F0", "2RECV_ACT0"), ""),
        ({"pp": 4}, ("saving", "1SEND_ACT0"), "Rank 1 waits for rank 2. Whether ranks 0, 2 and 3 wait"),
    ],
)
def test_where_it_is_not_known_whether_a_rank_waits_the_network_is_named_with_that(
    split: dict[str, Any], ops: tuple[str, ...], waits: str
) -> None:
    """The others may as well wait for it while it computes: it was said of no rank then."""
    found = said(split, *ops)
    assert found == (
        f"{waits}, too, is not known: if so, {DROPS}" if waits else "Rank 2 waits for rank 1; rank 1 computes."
    )


@pytest.mark.parametrize(
    ("split", "ops", "hosts"),
    [
        ({"pp": 2}, ("0RECV_GRAD1", "1RECV_ACT3"), "a"),
        ({"pp": 2}, ("saving",), "ab"),
        ({"pp": 4}, ("0SEND_ACT0", "saving", "saving", "saving"), "ab"),
    ],
)
def test_nothing_is_said_where_it_is_not_known_or_within_a_host(
    split: dict[str, Any], ops: tuple[str, ...], hosts: str
) -> None:
    assert said(split, *ops, hosts=hosts) == ""
