"""Gradient reductions that overlap with backward: when each may start, and what remains after backward."""

from __future__ import annotations

import pytest

from parallel_core.plan.grad_buckets import PIECE_BYTES, Bucket, place
from parallel_core.simulate.gradient_overlap import early, exposed, shortened
from parallel_core.simulate.network import Exchange


def test_a_sum_may_begin_when_the_first_of_its_layers_is_done() -> None:
    """Backward of layers 0 to 2 takes 1, 2 and 4 s: layer 2 is done 3 s before its end, layer 1 one second, layer 0 at
    the end.
    """
    sums = [Bucket(0, 8, ("2.1", "2.0")), Bucket(8, 16, ("1.0",)), Bucket(16, 24, ("0.1", "embed.token.weight"))]
    assert early(sums, {0: 1.0, 1: 2.0, 2: 4.0}) == [3.0, 1.0, 0.0]
    assert early([Bucket(0, 8, ("2.1", "1.0"))], {0: 1.0, 1: 2.0, 2: 4.0}) == [1.0], "two layers: the first counts"
    assert early([Bucket(0, 8, ("5.0",))], {0: 1.0, 1: 2.0}) == [3.0], "a layer of a stage whose backward ended earlier"


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        ([1.0, 1.0, 0.5], 0.5),  # the first two are finished when backward ends
        ([5.0, 1.0, 0.5], 3.5),  # it started 3 s before the end of backward
        ([1.0, 3.0, 0.5], 2.5),  # the link was idle from -2 to -1
        ([0.0, 0.0, 0.0], 0.0),
    ],
)
def test_what_is_left_when_backward_ends(seconds: list[float], left: float) -> None:
    begin = [3.0, 1.0, 0.0]
    assert exposed(begin, seconds) == left
    found = shortened([Exchange(each, True, each / 2) for each in seconds], begin)
    assert sum(one.seconds for one in found) == pytest.approx(left)
    assert sum(one.moving for one in found) == pytest.approx(left / 2)


def test_pieces_are_the_bucket_in_its_order() -> None:
    """A bucket of 4 MiB with parameters of 0.6 MiB each: two per piece, the padding with the last one."""
    elements = 6 * PIECE_BYTES // 10 // 4
    found = place({f"{unit}.0": elements for unit in range(7)}, 16 * PIECE_BYTES)
    (bucket,), pieces = found.buckets, found.pieces(4)
    assert [name for piece in pieces for name in piece.names] == list(bucket.names)
    assert [len(piece.names) for piece in pieces] == [2, 2, 2, 1]
    assert [pieces[0].start, *(piece.stop for piece in pieces)] == [*(piece.start for piece in pieces), found.size]
    assert all(piece.start == found.starts[piece.names[0]] for piece in pieces)
