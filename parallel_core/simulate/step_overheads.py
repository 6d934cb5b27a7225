"""Costs of a step besides its layers: data, zeroing, collectives of replicas, optimizer and norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

from parallel_core.layout import Layout
from parallel_core.outline import UnitCost, aligned, block_of, outline_of
from parallel_core.outline.recompute import recomputed
from parallel_core.plan.fully_sharded import by_torch
from parallel_core.plan.grad_buckets import Bucket, Places, shards_of
from parallel_core.plan.peak import places_of, unsharded
from parallel_core.plan.traffic import sums_in_order, vectors_by_rows
from parallel_core.plan.units import unit_costs
from parallel_core.profile.curves import What
from parallel_core.profile.table import CostTable, Fixed
from parallel_core.schedule.ir import REPLICA_COLLECTIVES, Kind, Op
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate.gradient_overlap import early, shortened
from parallel_core.simulate.network import Among, Exchange, Network, Pattern
from parallel_core.simulate.noise import lag
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, RunSpec

_NORM_BYTES = 8
"""Bytes of one squared norm in the gather of the gradient norm."""


def update_bytes(spec: RunSpec) -> int:
    """Bytes that an update moves for each element: the weight and every state are read and written, the gradient is
    read; 16-bit weights are rounded from their master weights afterwards."""
    size, main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
    return main * (3 + 2 * spec.train.optimizer_states) + (main + size if size < main else 0)


def share_of_adamw(spec: RunSpec) -> float:
    """Duration of the run's update relative to that of AdamW, which profiles measure: updates are memory-bound, so that
    of the bytes.

    It leaves out arithmetic (the root and the division of AdamW), what the kernel costs however small it is, and caches
    that hold the fewer bytes of SGD but not those of AdamW. With large buffers on one CPU core both kinds of SGD took
    what this says to a tenth."""
    adamw = spec.train.model_copy(update={"optimizer": "adamw"})
    return update_bytes(spec) / update_bytes(spec.model_copy(update={"train": adamw}))


class Seconds(NamedTuple):
    """Seconds by stage and kind of operation: work (`compute`), time without work (`waits`), and, by kind of group as
    well, the part of the latter with bytes on an inter-host link (`moving`)."""

    compute: dict[tuple[int, Kind], float]
    waits: dict[tuple[int, Kind], float]
    moving: dict[tuple[int, Kind, Among], float]

    def add(self, stage: int, kind: Kind, among: Among, exchanges: Iterable[Exchange]) -> None:
        """Adds collectives of an operation, one after the other."""
        for one in exchanges:
            into = self.waits if one.waited else self.compute
            into[stage, kind] = into.get((stage, kind), 0.0) + one.seconds
            self.moving[stage, kind, among] = self.moving.get((stage, kind, among), 0.0) + one.moving


class Ends:
    """Costs besides the layers for the ranks of one run, with `busy` devices of the host at work.

    `of_layer(unit, kind)`: seconds of one layer in an operation of that kind, for one micro-batch.
    """

    def __init__(
        self,
        spec: RunSpec,
        table: CostTable,
        layout: Layout,
        busy: int,
        network: Network,
        of_layer: Callable[[int, Kind], float],
    ) -> None:
        self._spec, self._table, self._layout, self._busy = spec, table, layout, busy
        self._network, self._of_layer = network, of_layer

    @cached_property
    def _costs(self) -> list[UnitCost]:
        return unit_costs(self._spec)

    def _places(self, place: int) -> Places:
        stages = self._layout.stages_of(place)
        return places_of(self._spec, self._costs, [self._layout.stage_units[stage] for stage in stages])

    def add(self, program: Sequence[Op], known: Seconds) -> None:
        """Adds a rank's costs to `known`: each once, however many stages the rank has."""
        compute, waits = known.compute, known.waits
        spec, table, place = self._spec, self._table, self._layout.place(program[0].stage)
        flat = self._places(place)
        own = -(-spec.parallel.per_step // spec.parallel.copies[place])
        samples = own * spec.micro_batch_size if self._reads(place) else 0
        zero = table.overhead("zero", flat.size / (shards_of(spec) if spec.parallel.zero > 1 else 1), self._busy)
        for op in program:
            key = (op.stage, op.kind)
            if key in compute or key in waits:
                continue
            if op.kind is Kind.DATA:
                compute[key] = table.overhead("data", samples, self._busy) if samples else 0.0
                compute[key] += 0.0 if spec.parallel.flushes else self._gathering(flat)  # once a step, not an update
            elif op.kind is Kind.SETUP:
                compute[key] = zero
            elif op.kind is Kind.STASH:
                compute[key] = 2 * zero  # a copy: read and written
            elif op.kind in REPLICA_COLLECTIVES:
                first = next(other.stage for other in program if other.kind is op.kind)
                compute[key] = 0.0
                sums = self._reduction(op.kind, place, flat, program) if op.stage == first else ()
                known.add(op.stage, op.kind, "data", sums)
            elif op.kind is Kind.OPT_STEP:
                last = [other.stage for other in program if other.kind is op.kind][-1]
                compute[key] = self._optimizer(place, flat) if op.stage == last else 0.0
                compute[key] += 0.0 if spec.parallel.flushes else zero  # after every update, not once a step
                if op.stage == last:
                    self._add_shared(place, op.stage, known)

    def _reads(self, place: int) -> bool:
        units = self._spec.model.units()
        held = {units[unit] for stage in self._layout.stages_of(place) for unit in self._layout.stage_units[stage]}
        return bool(outline_of(self._spec.model).readers & held)

    def _reduction(self, kind: Kind, place: int, flat: Places, program: Sequence[Op]) -> Sequence[Exchange]:
        """Reductions of all buckets of a rank, one after the other, as far as the backward does not hide them. None
        with torch's `fully_shard`, whose reductions end with each backward."""
        spec = self._spec
        if by_torch(spec):
            return []
        item = spec.element_bytes if kind is Kind.GATHER else MAIN_BYTES[spec.train.precision]
        names: dict[Kind, What] = {
            Kind.ALLREDUCE: "all_reduce",
            Kind.REDUCE_SCATTER: "reduce_scatter",
            Kind.GATHER: "all_gather",
        }
        placed = self._network.data(place)
        hidden = spec.parallel.zero < 2 and kind is not Kind.GATHER and self._overlaps(placed)
        cut = hidden and spec.parallel.zero < 1 and self._table.device == "cpu"
        sums = flat.pieces(item) if cut else flat.buckets
        each = [self._network.exchange(names[kind], placed, item * (one.stop - one.start)) for one in sums]
        if hidden:
            return shortened(each, early(sums, self._last_backward(program)))
        return each * (spec.parallel.micro_batches if spec.parallel.zero > 1 and kind is Kind.REDUCE_SCATTER else 1)

    def _overlaps(self, placed: frozenset[Pattern]) -> bool:
        """Whether collectives overlap with compute: on GPUs they do, and on the network; a CPU core does either."""
        return self._table.device == "cuda" or any(len(pattern) > 1 for pattern in placed)

    def _last_backward(self, program: Sequence[Op]) -> dict[int, float]:
        """Seconds of each layer in the last operation that accumulates gradients."""
        last = [part for op in program for part in op.parts() if part.kind in (Kind.BW, Kind.W)][-1]
        return {unit: self._of_layer(unit, last.kind) for unit in self._layout.stage_units[last.stage]}

    def meetings(self, stage: int, kind: Kind) -> int:
        """How often replicas wait for each other in one operation, to gather parameters or statistics of batch norms
        or to reduce gradients."""
        gathers, sums = len(self._gathers(kind)), len(self._scattered(stage, kind))
        met = gathers + sums if by_torch(self._spec) else max(gathers, sums)
        return met + len(self._statistics(stage, kind))

    def add_inside(self, stage: int, kind: Kind, known: Seconds, slowdown: float) -> None:
        """Adds to `known` the costs of an operation besides its layers: ZeRO-2 and 3's work around their messages,
        ZeRO-3's parameter gathers, batch norms', and waiting for the slowest replica each time. The work was measured
        with all devices busy, which slow an operation by `slowdown`: what is added is that of one alone."""
        key, seconds = (stage, kind), known.compute[stage, kind]
        known.waits[key] += lag(seconds, self.meetings(stage, kind), self._spec.parallel.dp, self._table.noise)
        placed = self._network.data(self._layout.place(stage))
        sizes = self._statistics(stage, kind)
        known.add(stage, kind, "data", (self._network.exchange("all_gather", placed, size) for size in sizes))
        known.compute[key] += self._norm_work(stage, kind) / slowdown
        if by_torch(self._spec):
            work, more = self._fully_shard(stage, kind)
            known.compute[key] += work / slowdown
            known.waits[key] += more
            return
        known.compute[key] += self._zero_work(stage, kind) / slowdown
        gathers = (self._network.exchange("all_gather", placed, size) for size in self._gathers(kind))
        known.add(stage, kind, "data", gathers)

    def _zero_work(self, stage: int, kind: Kind) -> float:
        """Seconds of work of ZeRO-2 and 3 around their messages, by the stage's share of the layers; for a profile
        without it, only the zeroing of buckets."""
        split = self._spec.parallel
        known = self._table.by_us(split.zero, split.recompute, self._spec.micro_batch_size) if split.dp > 1 else None
        if known is None:
            elements = sum(bucket.stop - bucket.start for bucket in self._scattered(stage, kind))
            return self._table.overhead("zero", elements, self._busy) if elements else 0.0
        share = len(self._layout.stage_units[stage]) / len(self._costs)
        added = {Kind.F: known.forward, Kind.BW: known.backward, Kind.W: known.backward}
        return share * added.get(kind, 0.0)

    def _norm_work(self, stage: int, kind: Kind) -> float:
        """Seconds by which batch norms over replicas compute for longer than those of one, where `_zero_work` does not
        include them. That of ZeRO-2 stands for it, which next to it adds little: 0.01 ms to the forward of VGG-16, and
        13 ms to that of a ResNet-50 of the same width."""
        split = self._spec.parallel
        if not self._statistics(stage, kind) or (split.zero > 1 and not by_torch(self._spec)):
            return 0.0
        known = self._table.by_us(2, split.recompute, self._spec.micro_batch_size)
        share = len(self._layout.stage_units[stage]) / len(self._costs)
        return share * (known.forward if kind is Kind.F else known.backward) if known else 0.0

    def _fully_shard(self, stage: int, kind: Kind) -> tuple[float, float]:
        """(work, time without work) that `fully_shard` adds to one operation, in seconds."""
        width, split = self._layout.widths[self._layout.place(stage)], self._spec.parallel
        known = self._table.by_torch(width, split.dp, "full" if split.recompute == "full" else "none")
        if known is None or kind not in (Kind.F, Kind.BW):
            return 0.0, 0.0
        seconds = known.forward if kind is Kind.F else known.backward
        return known.work * seconds, (1.0 - known.busy(self._table.devices)) * seconds

    def _gathers(self, kind: Kind) -> Sequence[int]:
        """Bytes of each parameter gather in one operation."""
        if self._spec.parallel.zero < 3 or kind not in (Kind.F, Kind.BW):
            return ()
        forward, backward = unsharded(self._spec)
        return forward if kind is Kind.F else backward

    def _statistics(self, stage: int, kind: Kind) -> list[int]:
        """Bytes of each gather of a batch norm's statistics in one operation: two numbers a channel of each replica,
        means and variances in a forward and in one that is run again, sums of gradients in a backward."""
        split, outline = self._spec.parallel, outline_of(self._spec.model)
        if not outline.batch_norm or split.dp < 2 or kind is Kind.W:
            return []
        each = 2 * split.dp * max(BYTES_PER_ELEMENT[self._spec.train.precision], 4)
        again = recomputed(split, outline.units()) if split.recompute == "full" and kind is not Kind.F else ()
        channels, units = outline.norm_channels(), outline.units()
        held = self._layout.stage_units[stage]
        return [
            each * count for unit in held for count in channels[unit] * (2 if block_of(units[unit]) in again else 1)
        ]

    def _scattered(self, stage: int, kind: Kind) -> list[Bucket]:
        """Buckets that one operation fills and reduces."""
        if self._spec.parallel.zero < 2 or self._spec.parallel.dp < 2 or kind not in (Kind.BW, Kind.W):
            return []
        return [bucket for bucket in self._places(self._layout.place(stage)).buckets if bucket.stage == stage]

    def _optimizer(self, place: int, flat: Places) -> float:
        """Seconds of an update. Without a flush that of a part of a step weighs its gradients, and gathers nothing."""
        spec, table = self._spec, self._table
        owned, split = flat.size / shards_of(spec), spec.parallel
        parts = TRAITS[split.schedule].sync in ("none", "stash") and split.per_step > split.copies[place]
        kind: Fixed = "scaled_optimizer" if parts or spec.train.clip_norm is not None else "optimizer"
        seconds = table.overhead("norm", owned, self._busy) - (0.0 if split.flushes else self._gathering(flat))
        saved = (1 - share_of_adamw(spec)) * table.overhead("optimizer", owned, self._busy)
        return seconds + max(0.0, table.overhead(kind, owned, self._busy) - saved)

    def _gathering(self, flat: Places) -> float:
        """Seconds of the gradient norm beside its sums of squares; 0 for a profile without the latter."""
        owned = flat.size / shards_of(self._spec)
        squares = self._table.overhead("squares", owned, self._busy)
        return max(0.0, self._table.overhead("norm", owned, self._busy) - squares) if squares else 0.0

    def _add_shared(self, place: int, stage: int, known: Seconds) -> None:
        """Adds gradient reductions of a rank with others than its replicas, before its optimizer."""
        spec = self._spec
        if spec.parallel.sequence:
            elements = sum(map(prod, vectors_by_rows(spec, self._layout, place).values())) / shards_of(spec)
            ordered = sums_in_order(spec, self._layout, place)
            size = elements * MAIN_BYTES[spec.train.precision] * (self._layout.widths[place] if ordered else 1)
            how: What = "all_gather" if ordered else "all_reduce"
            took = self._network.exchange(how, self._network.tensor(place), size)
            known.add(stage, Kind.OPT_STEP, "tensor", [took])
        ends = {self._layout.place(0), self._layout.place(self._layout.stages - 1)}
        if spec.model.tied and len(ends) > 1 and place in ends:
            shared = aligned(outline_of(spec.model).shared() // self._layout.widths[0]) / shards_of(spec)
            size = shared * MAIN_BYTES[spec.train.precision]
            took = self._network.exchange("all_reduce", self._network.ends(*sorted(ends)), size)
            known.add(stage, Kind.OPT_STEP, "ends", [took])

    def norm(self) -> float:
        """Seconds of the small gather in which all ranks meet."""
        world = self._spec.parallel.world
        if world == 1:
            return 0.0
        numbers = max(len(cost.parameters) for cost in self._costs) * len(self._costs) // self._layout.pp + 2
        return self._network.exchange("all_gather", self._network.world, _NORM_BYTES * numbers * world).seconds
