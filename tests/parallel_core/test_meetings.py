"""Which collectives of imported ranks meet, and who came last to them."""

from __future__ import annotations

import numpy as np

from parallel_core.analysis.meetings import Groups, last_to_come
from parallel_core.analysis.waits import waited
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind


def rank(*sums: tuple[int, int], kind: Kind = Kind.BUCKET) -> np.ndarray:
    rows = np.zeros(len(sums), SPAN)
    rows["kind"], rows["lane"] = kind, 2
    rows["start"], rows["end"] = np.array(sums).reshape(-1, 2).T
    return rows


def found(spans: dict[int, np.ndarray], groups: Groups | None = None) -> dict[int, list[tuple[int, int]]]:
    met = last_to_come(spans, groups)
    return {one: list(zip(own.at.tolist(), own.ranks.tolist(), strict=True)) for one, own in met.items()}


def test_the_last_to_come_is_waited_for_and_waits_for_nobody() -> None:
    spans = {0: rank((10, 50), (60, 90)), 1: rank((40, 50), (55, 90))}
    assert found(spans) == {0: [(40, 1), (60, -1)], 1: [(40, -1), (60, 0)]}


def test_rows_may_have_any_order() -> None:
    spans = {0: rank((60, 90), (10, 50)), 1: rank((40, 50), (55, 90))}
    assert found(spans) == {0: [(40, 1), (60, -1)], 1: [(40, -1), (60, 0)]}
    waits = waited(spans, Layout.unknown(2), last_to_come(spans, None))
    assert waits[0].ns.tolist() == [0, 30] and waits[0].ranks.tolist() == [-1, 1]
    assert waits[1].ns.tolist() == [0, 5] and waits[1].ranks.tolist() == [-1, 0]


def test_who_ends_before_the_last_comes_did_not_wait_for_it() -> None:
    """The source of a broadcast leaves before the others come; so do ranks with clocks that do not agree."""
    assert found({0: rank((10, 20)), 1: rank((40, 50))}) == {0: [(10, -1)], 1: [(40, -1)]}


def test_without_names_ranks_meet_that_end_together() -> None:
    """Two groups of two: the k-th collectives of all four overlap, but each group ends its own at its own time."""
    ms = 1_000_000
    starts_ends = {0: (10, 50), 1: (20, 50), 2: (30, 80), 3: (45, 81)}
    spans = {one: rank((start * ms, end * ms)) for one, (start, end) in starts_ends.items()}
    assert found(spans) == {0: [(20 * ms, 1)], 1: [(20 * ms, -1)], 2: [(45 * ms, 3)], 3: [(45 * ms, -1)]}
    named = {one: ["all"] for one in spans}
    assert found(spans, named)[0] == [(45 * ms, 3)], "with a name they are one group, whatever their ends"


def test_groups_meet_by_their_names() -> None:
    spans = {0: rank((10, 50), (60, 90)), 1: rank((20, 90)), 2: rank((40, 50))}
    assert found(spans, {0: ["a", "b"], 1: ["b"], 2: ["a"]}) == {
        0: [(40, 2), (60, -1)],
        1: [(60, 0)],
        2: [(40, -1)],
    }


def test_nothing_is_said_where_it_is_not_known_which_meet() -> None:
    assert found({0: rank((10, 50), (60, 90)), 1: rank((20, 90))}) == {}
    assert found({0: rank((10, 50))}) == {}
    sends = rank((0, 5), kind=Kind.SEND_ACT)
    spans = {0: np.concatenate([sends, rank((10, 50))]), 1: rank((40, 50))}
    assert found(spans) == {} == found(spans, {0: [""], 1: ["a"]})
    assert found(spans, {0: ["a"], 1: ["a"]}) == {0: [(40, 1)], 1: [(40, -1)]}


def test_a_rank_without_collectives_is_alone() -> None:
    assert found({0: rank((10, 50)), 1: rank((10, 50)), 2: rank(), 3: rank()}, {0: ["a"], 1: ["a"], 2: [], 3: []}) == {
        0: [(10, -1)],
        1: [(10, -1)],
        2: [],
        3: [],
    }
