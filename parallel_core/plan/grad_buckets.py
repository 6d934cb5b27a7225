"""Where parameters lie in a rank's flat buffers, and the buckets these are cut into for communication.

The engine builds its buffers by it and memory is predicted by it. Places go from the last layer to the first, the order
in which backward finishes gradients. Under ZeRO every bucket is cut into as many equal parts as there are replicas, one
part a replica, so buckets are rounded up to that. Under ZeRO-2, where whole buckets live only while backward fills
them, they are smaller and none holds parameters of two stages. Under ZeRO-3 a bucket is a layer: what is gathered when
it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from parallel_core.outline.base import ALIGN, aligned
from parallel_core.spec import RunSpec

BUCKET_BYTES = {"cpu": 16 * 2**20, "cuda": 25 * 2**20}
"""Size from which a bucket is sent, by device kind: large enough to hide the cost of a message. A CPU's is large: on
few cores communication hides nothing, so fewer is better. CUDA's is that of DDP."""
LEAN_BUCKET_BYTES = {"cpu": 2**18, "cuda": 25 * 2**20}
"""The same under ZeRO-2, where up to two buckets are whole at a time and what they take is not saved."""
PIECE_BYTES = 2**20
"""Size from which a part of a CPU's bucket goes between hosts, where the wire carries it while the core computes. That
of DDP's first bucket."""
GATHERS_AHEAD = {"cpu": False, "cuda": True}
"""Whether ZeRO-3 gathers the next layer's parameters while a layer works, by device kind. A core computes or
communicates, so on a CPU it would only make the peak higher."""
Home = tuple[int, ...]
"""What the parameters of a bucket have in common (see `home`)."""
TIED = "embed.token.weight"
"""The matrix that embedding and head share where they are tied."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Elements start .. stop of the flat buffers, which hold the parameters `names`."""

    start: int
    stop: int
    names: tuple[str, ...]
    stage: int = 0
    """Under ZeRO-2 and 3 theirs, else 0."""

    def part(self, index: int, shards: int) -> slice:
        """Elements that replica `index` of `shards` owns."""
        size = (self.stop - self.start) // shards
        return slice(self.start + index * size, self.start + (index + 1) * size)

    def pieces(self, starts: Mapping[str, int], elements: int) -> list[Bucket]:
        """The bucket cut between parameters, behind at least so many elements each, in their order."""
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
        """What is summed at a time where a CPU's buckets go between hosts; a gradient has `item` bytes."""
        return [piece for bucket in self.buckets for piece in bucket.pieces(self.starts, PIECE_BYTES // item)]


def place(
    sizes: Mapping[str, int],
    bucket: int | None,
    shards: int = 1,
    alone: Collection[str] = (),
    home_of: Callable[[str], Home] = lambda name: (),
) -> Places:
    """Places of parameters of `sizes` elements, given in layer order.

    Neighbours share a bucket until it has `bucket` elements (None: however many); those named in `alone` have one of
    their own, and those of different homes share none.
    """
    buckets: list[Bucket] = []
    starts: dict[str, int] = {}
    for names in _neighbours(sizes, bucket, alone, home_of):
        first = at = buckets[-1].stop if buckets else 0
        for name in names:
            starts[name] = at
            at += aligned(sizes[name])
        whole = shards * ALIGN
        stop = first + -(-(at - first) // whole) * whole
        buckets.append(Bucket(first, stop, tuple(names), next(iter(home_of(names[0])), 0)))
    return Places(starts, tuple(buckets), buckets[-1].stop)


def _neighbours(
    sizes: Mapping[str, int], bucket: int | None, alone: Collection[str], home_of: Callable[[str], Home]
) -> list[list[str]]:
    """The names in each bucket, the last layers first: their gradients are done first."""
    groups: list[list[str]] = []
    held = 0
    # A tied parameter is complete only when its first layer is done: a mapping keeps the first place it had.
    for name in reversed(list(sizes)):
        last = groups[-1][-1] if groups else ""
        full = bucket is not None and held >= bucket
        if not groups or full or name in alone or last in alone or home_of(name) != home_of(last):
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += aligned(sizes[name])
    return groups


def bucket_bytes(spec: RunSpec) -> int | None:
    """Size from which a bucket of the run is sent; None: when a layer is done (ZeRO-3)."""
    if spec.parallel.zero > 2:
        return None
    return (LEAN_BUCKET_BYTES if spec.parallel.zero > 1 else BUCKET_BYTES)[spec.train.device]


def home(spec: RunSpec, stage: int, unit: int) -> Home:
    """Of the parameters of a layer, the `unit`-th of the model: nothing, its stage (ZeRO-2), or itself (ZeRO-3)."""
    return (stage, unit)[: max(spec.parallel.zero - 1, 0)]


def gathers_ahead(spec: RunSpec) -> bool:
    """Whether a layer's parameters are on their way while the one next to it works (ZeRO-3). Where whole blocks are
    recomputed a layer gathers when it is run again."""
    return GATHERS_AHEAD[spec.train.device] and spec.parallel.recompute != "full"


def shards_of(spec: RunSpec) -> int:
    """Parts that the optimizer's state (ZeRO-1), gradients (2) and values (3) are cut into: one a replica, else 1."""
    return spec.parallel.dp if spec.parallel.zero else 1


def alone_of(spec: RunSpec) -> frozenset[str]:
    """Under ZeRO a matrix tied over two stages has its own bucket: then replica r owns the same part on both. So has,
    under ZeRO-3, one tied over two layers: it is there longer than either of them."""
    apart = spec.parallel.zero > 2 or (spec.parallel.zero and spec.parallel.pp > 1)
    return frozenset({TIED} if spec.model.tied and apart else ())
