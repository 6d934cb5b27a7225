"""Temporaries that several kinds of layers have while they run, in elements unless stated otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def apart(spec: RunSpec, elements: int) -> int:
    """Returns `elements` in 16-bit runs, for what exists both in 16 bits and in fp32; otherwise 0."""
    return elements if spec.fp32_elements > 1 else 0


def product(spec: RunSpec, matrix: int) -> int:
    """Returns the elements of a linear layer's weight gradient before it is added to a sum of another dtype; 0 where no
    such temporary exists: same dtype, or a layer under torch's fully_shard."""
    return 0 if spec.parallel.zero_backend == "fully_shard" else apart(spec, matrix)


def made(spec: RunSpec, weight: int) -> int:
    """Returns the elements of a weight's gradient as autograd makes it, before it is added; 0 under fully_shard, where
    it becomes the sum itself."""
    return 0 if spec.parallel.zero_backend == "fully_shard" else weight


def widened_rows(width: int) -> int:
    """Returns how many rows of `width` elements a CPU widens to fp32 at a time: as many as fit a core's cache."""
    return max(1, 2**16 // width)


def widened(spec: RunSpec, elements: int, width: int) -> int:
    """Returns the temporaries of widening a tensor of so many elements for sums over its rows (`models.row_sums`), in
    elements of the run's dtype; 0 where torch's own kernels sum."""
    if spec.train.device != "cpu" or spec.fp32_elements == 1:
        return 0
    return spec.fp32_elements * min(elements, widened_rows(width) * width)


FEW_ROWS = 3072
"""Up to so many rows PyTorch's CUDA kernel of an embedding's backward adds chunks of 32 rows to a 16-bit gradient, one
after the other; more are sorted, and summed in fp32 (`embedding_dense_backward_cuda` in ATen/native/cuda/Embedding.cu).
"""


def in_embedding(spec: RunSpec, table: int, out: int, width: int) -> int:
    """Returns what an embedding's backward holds in addition to the gradient of its output [`out` elements, rows of
    `width`]: the gradient of its `table`, in 16-bit runs where that is summed in fp32 (`models.row_sums`) of that size
    and with the rows that are widened for it."""
    block = widened(spec, out, width)
    if spec.train.device == "cuda" and spec.fp32_elements > 1 and out <= FEW_ROWS * width:
        block = spec.fp32_elements * out
    return table * spec.fp32_elements + block if block else made(spec, table)


def at_once(device: str) -> int:
    """Returns how many 64-bit numbers a dropout draws at a time: on a CPU as many as fit a core's cache."""
    return 2**14 if device == "cpu" else 2**20


def drawn(spec: RunSpec, elements: int) -> int:
    """Returns the temporaries of drawing a dropout mask of so many elements (`models.dropout`), in elements of the
    run's dtype.

    These are the mask, one byte per element, and four 64-bit numbers for every four elements, in blocks.
    """
    size = elements + 4 * 8 * min(at_once(spec.train.device), elements // 4)
    return size // spec.element_bytes if spec.model.dropout else 0
