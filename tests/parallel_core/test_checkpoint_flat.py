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
        folders.write_part(where, rank, storage.write({"mean/x": share}, where / f"rank-{rank}.bin"))
    parts = folders.gather_parts(where, len(edges) - 1, 1.0)
    about = {"step": 1, "run": 0, "attempt": 0, "spec": {}, "scalars": {}}
    folders.publish(where, folder, folders.merge(parts, **about), keep=1)
    first, width = columns
    out = torch.zeros(5, width)
    mine = Share((5, 12), [(Box((0, first), (5, width)), out.view(-1))])
    path = folders.path_of(folder, 1)
    storage.load({"mean/x": mine}, path, manifests.read(path))
    assert torch.equal(out, full[:, first : first + width])
