"""Seconds of the layers of a run, from its cost table: their work, and their tensor-parallel collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from parallel_core.layout import Layout
from parallel_core.outline import Outline, block_of, outline_of
from parallel_core.outline.recompute import recomputed
from parallel_core.outline.splits import Cut
from parallel_core.profile.curves import Curve
from parallel_core.profile.table import CostTable, Layers, Part
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.network import Exchange, Network, Pattern
from parallel_core.spec import RunSpec

PARTS: dict[Kind, Part] = {Kind.F: "forward", Kind.BW: "backward", Kind.B: "input", Kind.W: "weights"}
"""Kinds of operations that run layers -> the part of a layer's measurement."""
Share = Callable[[Exchange], float]


def _curve(rows: Sequence[Layers], seconds: Sequence[float]) -> Curve:
    return Curve(sizes=tuple(float(row.samples) for row in rows), seconds=tuple(seconds))


def _scaled(row: Layers, unit: int, part: Part) -> float:
    """Seconds of one layer, scaled so that all layers add up to the time measured without stops between them."""
    return row.seconds[part][unit] * row.whole[part] / max(sum(row.seconds[part]), 1e-12)


class LayerTimes:
    """Seconds of the layers of one run; `busy`: the number of busy devices at which `of_layer` takes them."""

    def __init__(self, spec: RunSpec, table: CostTable, layout: Layout, network: Network, busy: int) -> None:
        self._spec, self._table, self._layout, self._network, self._busy = spec, table, layout, network, busy
        self._widths = layout.unit_widths()
        self._known: dict[tuple[int, str, int, bool], list[Layers]] = {}
        self._counted: dict[tuple[int, Cut, int], Layers] = {}

    def stage(self, stage: int, kind: Kind, busy: int) -> float:
        """Seconds of work of one operation on a micro-batch, with tensor collectives as far as they are work."""
        return sum(
            self.unit(unit, kind, busy).at(self._spec.micro_batch_size) for unit in self._layout.stage_units[stage]
        )

    def inside(self, stage: int, kind: Kind, part: Share) -> float:
        """Seconds of one part of an operation's tensor-parallel collectives."""
        return sum(self._inside_unit(unit, kind, part) for unit in self._layout.stage_units[stage])

    def unit_wait(self, unit: int, kind: Kind) -> float:
        """Seconds without work in a layer's tensor-parallel collectives, for a micro-batch: those between hosts, and
        those among more ranks than devices, whose timings include taking turns."""
        return self._inside_unit(unit, kind, Exchange.waiting)

    def _inside_unit(self, unit: int, kind: Kind, part: Share) -> float:
        found = self._rows(unit, 1)
        curve = _curve(found, [self._collective(row, unit, kind, part) for row in found])
        return curve.at(self._spec.micro_batch_size)

    def of_layer(self, unit: int, kind: Kind) -> float:
        """Seconds of one layer for a micro-batch, with all devices busy."""
        return self.unit(unit, kind, self._busy).at(self._spec.micro_batch_size) + self.unit_wait(unit, kind)

    def unit(self, unit: int, kind: Kind, busy: int) -> Curve:
        """Seconds of one layer as a function of the samples of a micro-batch."""
        rows = self._rows(unit, busy) or self._rows(unit, 1)
        return _curve(
            rows, [self._of_row(row, unit, kind) + self._collective(row, unit, kind, Exchange.work) for row in rows]
        )

    @cached_property
    def _modes(self) -> tuple[str, ...]:
        """Recomputation of each layer."""
        split, units = self._spec.parallel, self._spec.model.units()
        again = recomputed(split, units)
        return tuple(split.recompute if block_of(unit) in again else "none" for unit in units)

    def _rows(self, unit: int, busy: int) -> list[Layers]:
        """The measured rows for this layer. Cached: a model has many layers but few kinds of them."""
        key = self._widths[unit], self._modes[unit], busy, any(len(one) > 1 for one in self._placed[unit])
        if key not in self._known:
            self._known[key] = self._measured(*key)
        return self._known[key]

    def _measured(self, tp: int, how: str, busy: int, leaves: bool) -> list[Layers]:
        """The measured rows for these conditions. A tensor group that spans hosts communicates differently from one
        measured on one host. At least as many devices are busy as a group has: fewer were never measured.

        Full recomputation of an earlier version did more than a run does: plain rows say it better."""
        least = min(tp, self._table.devices)
        known_as = ("full", "none") if self._table.leaves_out else ("none", "full")
        for known in known_as if how == "full" else (how,):
            of = partial(self._table.of, tp, known, split=self._spec.parallel.cut)
            joined = [] if leaves else of(tp, joined=True)
            if rows := joined or of(busy) or of(least):
                return rows
        return []

    @cached_property
    def _placed(self) -> tuple[frozenset[Pattern], ...]:
        """Placements of each layer's tensor groups on hosts."""
        places = [self._network.tensor(place) for place in range(self._layout.pp)]
        return tuple(
            places[self._layout.place(stage)] for stage, units in enumerate(self._layout.stage_units) for _ in units
        )

    def _of_row(self, row: Layers, unit: int, kind: Kind) -> float:
        """Seconds of the layer, with its recomputation where that was not measured."""
        found = _scaled(row, unit, PARTS[kind])
        return found + (self._again(row, unit) if self._adds_forward(row, unit, kind) else 0.0)

    def _again(self, row: Layers, unit: int) -> float:
        """Seconds of the layer's recomputation, which was not measured: of its forward without the product that is left
        out, and its collective. All products of a forward take as long as those of the weight gradients, which are as
        many FLOPs and hardly anything else."""
        forward = _scaled(row, unit, "forward")
        if not self._unread[unit]:
            return forward
        talks = self._talks(row, unit)
        products = max(0.0, min(_scaled(row, unit, "weights"), forward - sum(talks)))
        left_out = 1 - self._outline.again_flops()[unit] / self._outline.flops()[unit]
        return max(0.0, forward - left_out * products - sum(talks[-1:]))

    def _talks(self, row: Layers, unit: int) -> list[float]:
        """Seconds of the collectives that the layer's forward includes in this row, in order: those of the same layer
        where they were counted, at the time of their links."""
        if not row.joined:
            return []
        key = row.tp, row.tensor_split, row.samples
        if key not in self._counted:
            rows = self._table.of(row.tp, row.recompute, min(row.tp, self._table.devices), split=row.tensor_split)
            self._counted[key] = next((other for other in rows if other.samples == row.samples), row)
        said = self._counted[key].collectives("forward", unit)
        return [self._network.exchange(what, self._placed[unit], size).seconds for what, size in said]

    @cached_property
    def _outline(self) -> Outline:
        return outline_of(self._spec.model)

    @cached_property
    def _unread(self) -> tuple[bool, ...]:
        """Whether a recomputation leaves out the layer's last product, and its collective."""
        return tuple(bool(self._outline.unread(unit)) for unit in self._outline.units())

    def _adds_forward(self, row: Layers, unit: int, kind: Kind) -> bool:
        """Whether the operation includes the layer's recomputation, but the measurement did not."""
        return self._modes[unit] == "full" and row.recompute == "none" and kind in (Kind.BW, Kind.B)

    def _collective(self, row: Layers, unit: int, kind: Kind, part: Share) -> float:
        """Seconds of one part of a layer's tensor-parallel collectives."""
        tp = self._widths[unit]
        if tp == 1 or kind is Kind.W:
            return 0.0
        said = row.collectives("forward" if kind is Kind.F else "backward", unit)
        if self._adds_forward(row, unit, kind):
            said += row.collectives("forward", unit)[: -1 if self._unread[unit] else None]
        return sum(part(self._network.exchange(what, self._placed[unit], size)) for what, size in said)
