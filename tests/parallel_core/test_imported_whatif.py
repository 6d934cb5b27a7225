"""What-if for imported traces: unchanged it equals the measurement, and changes have the effect calculated by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.imported import replayed
from parallel_core.simulate.replay import FREE

MOVES = st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([Kind.F, Kind.BW, Kind.DATA, Kind.OPT_STEP]))


def rank(*rows: tuple[Kind, int, int]) -> NDArray[np.void]:
    """(kind, start, end) of each span, after a STEP that encloses them."""
    out = np.zeros(len(rows) + 1, SPAN)
    out["kind"][1:], out["start"][1:], out["end"][1:] = zip(*rows, strict=True)
    out["kind"][0], out["start"][0], out["end"][0] = Kind.STEP, out["start"][1:].min(), out["end"][1:].max()
    return out


def step_of(spans: dict[int, NDArray[np.void]]) -> int:
    return max(int(rows["end"].max()) for rows in spans.values())


TWO = {
    0: rank((Kind.F, 0, 10), (Kind.BUCKET, 12, 30), (Kind.BW, 10, 20), (Kind.OPT_STEP, 32, 36)),
    1: rank((Kind.F, 0, 14), (Kind.BUCKET, 18, 30), (Kind.BW, 14, 24), (Kind.OPT_STEP, 32, 36)),
}
"""Two replicas; the second is late, so the collective itself takes 12, of which 6 are not hidden."""


def test_changes_by_hand() -> None:
    assert step_of(replayed(TWO)) == 36
    free = replayed(TWO, links=FREE)
    assert step_of(free) == 24 + 4, (
        "the update follows the last gradient at once; the pause before it belonged to the collective"
    )
    assert free[0][free[0]["kind"] == Kind.BUCKET]["end"] == [18], "the first to arrive still waits for the other"
    assert step_of(replayed(TWO, links=2)) == 18 + 6 + 2 + 4
    assert step_of(replayed(TWO, device=2)) == 7 + 4 + 12 + 2 + 2, (
        "communication does not change, nor does the host's time"
    )


@given(st.lists(st.lists(MOVES, min_size=1, max_size=8), min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 9))
def test_unchanged_every_span_stays_where_it_was(
    ranks: list[list[tuple[int, int, Kind]]], collectives: int, late: int
) -> None:
    """For any overlap and order of spans; and no step gets longer with faster links."""
    spans = {}
    for i, moves in enumerate(ranks):
        rows, at = [], i
        for gap, took, kind in moves:
            rows.append((kind, at + gap, at + gap + took))
            at += gap + took // 2
        rows += [(Kind.BUCKET, 30 * k + i + 5, 30 * k + 20 + late) for k in range(collectives)]
        spans[i] = rank(*rows)
    zero = min(int(rows["start"].min()) for rows in spans.values())
    for i, after in replayed(spans).items():
        before = spans[i][1:][np.argsort(spans[i][1:]["start"], kind="stable")]
        assert (after[1:]["start"] == before["start"] - zero).all()
        assert (after[1:]["end"] == before["end"] - zero).all()
    assert step_of(replayed(spans, links=FREE)) <= step_of(replayed(spans))


def test_collectives_end_for_their_group_alone() -> None:
    """Ranks 0, 1 sum among themselves, as do 2, 3, which are slower; then 0 with 2, and 1 with 3."""
    quick, slow = ((Kind.BUCKET, 10, 20), (Kind.BUCKET, 40, 50)), ((Kind.BUCKET, 30, 40), (Kind.BUCKET, 40, 50))
    spans = {
        i: rank((Kind.F, 0, 10 if i < 2 else 30), *(quick if i < 2 else slow), (Kind.OPT_STEP, 50, 55))
        for i in range(4)
    }
    groups = {i: [f"tensor {i // 2}", f"data {i % 2}"] for i in range(4)}
    for i, after in replayed(spans, groups=groups).items():
        assert (after["end"] == spans[i]["end"]).all(), "without a change, nothing moves"
    free = replayed(spans, links=FREE, groups=groups)
    ends = {i: after["end"][after["kind"] == Kind.BUCKET].tolist() for i, after in free.items()}
    assert ends == {0: [10, 30], 1: [10, 30], 2: [30, 30], 3: [30, 30]}
    joined = replayed(spans, links=FREE)
    assert joined[0]["end"][joined[0]["kind"] == Kind.BUCKET][0] == 20, "all four as one group: it waits for the slow"
    assert step_of(replayed(spans, links=FREE, groups={0: ["one"]})) == step_of(joined), "not all are named"
    assert step_of(replayed(spans, links=FREE, groups=groups | {3: ["", "data 1"]})) == step_of(joined)
    with pytest.raises(ValueError, match="rank 2 has 1, rank 3 has 2"):
        replayed(spans, groups=groups | {2: ["tensor 1", "data 0"], 3: ["tensor 1", "tensor 1"]})
    del spans[3]
    assert step_of(replayed(spans, groups={i: groups[i] for i in spans})) == 55, "a group may have one rank here"


def test_what_cannot_be_known_is_refused() -> None:
    with pytest.raises(ValueError, match="which message a rank waited for"):
        replayed({0: rank((Kind.F, 0, 5), (Kind.RECV_ACT, 5, 9))})
    with pytest.raises(ValueError, match="rank 0 has 1, rank 1 has 0"):
        replayed({0: TWO[0], 1: rank((Kind.F, 0, 5))})
