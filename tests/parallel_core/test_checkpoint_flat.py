"""Ranges of flattened tensors in a checkpoint, expressed as boxes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import parts
from parallel_core.checkpoint.cover import covers
from parallel_core.engine import storage
from parallel_core.engine.shares import Box, Share, boxes, split

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=SHAPES, data=st.data())
def test_boxes_cover_a_flat_range_in_order(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    numbers = np.arange(size).reshape(shape)
    found = boxes(shape, start, stop)
    picked = [numbers[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].ravel() for box in found]
    assert np.concatenate([np.empty(0, int), *picked]).tolist() == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.sets(st.integers(1, 59), max_size=4), columns=st.sampled_from([(0, 12), (3, 6), (0, 5)]))
def test_flat_pieces_of_several_ranks_are_read_as_columns(
    tmp_path_factory: pytest.TempPathFactory, cuts: set[int], columns: tuple[int, int]
) -> None:
    """For example, an optimizer state that ZeRO divided flat over replicas is read by a tensor-parallel run."""
    folder, full = tmp_path_factory.mktemp("flat"), torch.arange(60.0).view(5, 12)
    edges = [0, *sorted(cuts), 60]
    where = folders.saving(folder, 0, 1)
    for rank, (a, b) in enumerate(pairwise(edges)):
        share = Share((5, 12), split((5, 12), (0, 0), full.view(-1)[a:b], (5, 12), a))
        parts.write_part(where, rank, storage.write({"mean/x": share}, where / f"rank-{rank}.bin"))
    written = parts.gather_parts(where, len(edges) - 1, 1.0)
    about = {"step": 1, "run": 0, "attempt": 0, "spec": {}, "scalars": {}}
    folders.publish(where, folder, parts.merge(written, **about), keep=1)
    first, width = columns
    out = torch.zeros(5, width)
    mine = Share((5, 12), [(Box((0, first), (5, width)), out.view(-1))])
    path = folders.path_of(folder, 1)
    storage.load({"mean/x": mine}, path, manifests.read(path))
    assert torch.equal(out, full[:, first : first + width])


@settings(deadline=None)
@given(shape=st.lists(st.integers(1, 3), max_size=3), data=st.data())
def test_pieces_cover_a_tensor_if_they_hold_each_element_once(shape: list[int], data: st.DataObject) -> None:
    """Of up to four boxes that begin anywhere in it, some end outside, or are empty."""
    ends = [st.tuples(st.integers(0, n), st.integers(0, n)) for n in shape]
    drawn = data.draw(st.lists(st.tuples(*ends), max_size=4))
    found = [(tuple(at for at, _ in box), tuple(size for _, size in box)) for box in drawn]
    counts = np.zeros([2 * n for n in shape], int)
    for offsets, sizes in found:
        counts[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))] += 1
    inside = np.zeros_like(counts)
    inside[tuple(slice(n) for n in shape)] = 1
    assert covers(shape, found) is bool((counts == inside).all() and all(math.prod(sizes) for _, sizes in found))


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_what_replicas_cut_flat_covers_the_tensor(parts: int) -> None:
    shape, size = (4, 3, 2), 24
    edges = [size * part // parts for part in range(parts + 1)]
    cut = [box for start, stop in pairwise(edges) for box in boxes(shape, start, stop)]
    assert covers(shape, cut)
    assert not covers(shape, cut[1:])
    assert not covers(shape, [*cut[1:], cut[-1]])
