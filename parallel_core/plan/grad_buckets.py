"""Offsets of parameters in a rank's flat buffers, and the buckets into which these are cut for communication.

The engine builds its buffers and the memory model predicts them by these rules. Offsets go from the last layer to the
first, the order in which backward finishes gradients. Under ZeRO every bucket is cut into equal parts, one for each
replica, so its size is rounded up to a multiple of that. Under ZeRO-2, where unsharded buckets exist only while
backward fills them, buckets are smaller and never span two stages. Under ZeRO-3 a bucket is a layer: what is gathered
when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from parallel_core.outline.unit_cost import ALIGN, aligned
from parallel_core.spec import RunSpec

BUCKET_BYTES = {"cpu": 16 * 2**20, "cuda": 25 * 2**20}
"""Size from which a bucket is reduced, by device kind. Large on CPU: with few cores communication hides nothing, so
fewer messages are better. CUDA uses DDP's size."""
LEAN_BUCKET_BYTES = {"cpu": 2**18, "cuda": 25 * 2**20}
"""The same under ZeRO-2, where up to two unsharded buckets exist at a time and reduce its saving."""
PIECE_BYTES = 2**20
"""Size from which a part of a CPU bucket is sent between hosts, where the transfer overlaps with compute: the size of
DDP's first bucket."""
GATHERS_AHEAD = {"cpu": False, "cuda": True}
"""Whether ZeRO-3 prefetches the next layer's parameters, by device kind. A CPU core either computes or communicates, so
there prefetching would only raise the peak."""
BucketKey = tuple[int, ...]
"""See `bucket_key`."""
TIED = "embed.token.weight"
"""Name of the matrix that embedding and head share where they are tied."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Elements start .. stop - 1 of the flat buffers, which hold the parameters `names`."""

    start: int
    stop: int
    names: tuple[str, ...]
    stage: int = 0
    """Their stage under ZeRO-2 and 3, else 0."""

    def part(self, index: int, shards: int) -> slice:
        """Elements that replica `index` of `shards` owns."""
        size = (self.stop - self.start) // shards
        return slice(self.start + index * size, self.start + (index + 1) * size)

    def pieces(self, starts: Mapping[str, int], elements: int) -> list[Bucket]:
        """The bucket cut between parameters into consecutive pieces of at least `elements` (the last may be
        smaller)."""
        cuts, first = [], 0
        for number, name in enumerate(self.names):
            if number > first and starts[name] - starts[self.names[first]] >= elements:
                cuts.append(number)
                first = number
        edges = [0, *cuts, len(self.names)]
        at = [self.start, *(starts[self.names[cut]] for cut in cuts), self.stop]
        return [
            Bucket(at[i], at[i + 1], self.names[edges[i] : edges[i + 1]], self.stage) for i in range(len(edges) - 1)
        ]


@dataclass(frozen=True, slots=True)
class Places:
    """`starts`: parameter -> its first element; `size`: elements of a flat buffer."""

    starts: dict[str, int]
    buckets: tuple[Bucket, ...]
    size: int

    def pieces(self, item: int) -> list[Bucket]:
        """Pieces reduced one at a time where CPU buckets travel between hosts; `item`: bytes of a gradient element."""
        return [piece for bucket in self.buckets for piece in bucket.pieces(self.starts, PIECE_BYTES // item)]


def place(
    sizes: Mapping[str, int],
    bucket: int | None,
    shards: int = 1,
    alone: Collection[str] = (),
    key_of: Callable[[str], BucketKey] = lambda name: (),
) -> Places:
    """Offsets and buckets of parameters with `sizes` elements, given in layer order.

    Consecutive parameters share a bucket until it has `bucket` elements (None: no limit); those named in `alone` have
    one of their own, and those with different keys `key_of` share none.
    """
    buckets: list[Bucket] = []
    starts: dict[str, int] = {}
    for names in _neighbours(sizes, bucket, alone, key_of):
        first = at = buckets[-1].stop if buckets else 0
        for name in names:
            starts[name] = at
            at += aligned(sizes[name])
        whole = shards * ALIGN
        stop = first + -(-(at - first) // whole) * whole
        buckets.append(Bucket(first, stop, tuple(names), next(iter(key_of(names[0])), 0)))
    return Places(starts, tuple(buckets), buckets[-1].stop)


def _neighbours(
    sizes: Mapping[str, int], bucket: int | None, alone: Collection[str], key_of: Callable[[str], BucketKey]
) -> list[list[str]]:
    """The parameter names of each bucket, last layers first, since their gradients are done first."""
    groups: list[list[str]] = []
    held = 0
    # A tied parameter's gradient is complete only with its first layer's: a mapping keeps its first place.
    for name in reversed(list(sizes)):
        last = groups[-1][-1] if groups else ""
        full = bucket is not None and held >= bucket
        if not groups or full or name in alone or last in alone or key_of(name) != key_of(last):
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += aligned(sizes[name])
    return groups


def bucket_bytes(spec: RunSpec) -> int | None:
    """Size from which a bucket of the run is reduced; None: when its layer is done (ZeRO-3)."""
    if spec.parallel.zero > 2:
        return None
    return (LEAN_BUCKET_BYTES if spec.parallel.zero > 1 else BUCKET_BYTES)[spec.train.device]


def bucket_key(spec: RunSpec, stage: int, unit: int) -> BucketKey:
    """Bucket key: () / (stage,) / (stage, unit) for ZeRO <= 1 / 2 / 3; different keys never share a bucket."""
    return (stage, unit)[: max(spec.parallel.zero - 1, 0)]


def gathers_ahead(spec: RunSpec) -> bool:
    """Whether ZeRO-3 prefetches the next layer's parameters. With full recomputation a layer is gathered when it
    reruns."""
    return GATHERS_AHEAD[spec.train.device] and spec.parallel.recompute != "full"


def shards_of(spec: RunSpec) -> int:
    """Shards of optimizer state (ZeRO-1), gradients (2) and parameters (3): one a replica, 1 without ZeRO."""
    return spec.parallel.dp if spec.parallel.zero else 1


def alone_of(spec: RunSpec) -> frozenset[str]:
    """Parameters with a bucket of their own: under ZeRO a matrix tied over two stages, so that a replica owns the same
    part on both; under ZeRO-3 also one tied over two layers, since it is needed longer than either of them."""
    apart = spec.parallel.zero > 2 or (spec.parallel.zero and spec.parallel.pp > 1)
    return frozenset({TIED} if spec.model.tied and apart else ())
