"""RunSpec x CostTable -> what one step will take, and the spans that it will leave: said before the run.

Every number comes from the table: layers under the run's tensor width and recomputation, on a busy host; messages by
their size; zeroing, data, gradient norm and optimizer by theirs. Nothing is fitted to runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from parallel_core.layout import Layout
from parallel_core.outline import block_of
from parallel_core.outline.recompute import recomputed
from parallel_core.plan.units import boundary_elements
from parallel_core.profile.curves import Curve, Link
from parallel_core.profile.table import CostTable, Layers, Part
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.simulate import Costs, Spans, host_traffic, noise, steady
from parallel_core.simulate.device_drift import Spell, drift, spells_of
from parallel_core.simulate.needs import CannotPredict as CannotPredict
from parallel_core.simulate.needs import require
from parallel_core.simulate.network import ALONE, Exchange, Network, Pattern, Where
from parallel_core.simulate.shared import HostCosts, Sharing, simulate_shared
from parallel_core.simulate.step_overheads import Ends, Seconds
from parallel_core.spec import RunSpec

_PART: dict[Kind, Part] = {Kind.F: "forward", Kind.BW: "backward", Kind.B: "input", Kind.W: "weights"}
Share = Callable[[Exchange], float]
_MOST_SLOWDOWN = 8.0  # of a layer by other busy devices; more is noise of a layer that takes next to nothing


@dataclass(frozen=True)
class Prediction:
    """One step: `seconds` from its begin to the next one's, and the spans of each pipeline rank (ns from 0), which
    leave out that ranks wait for whoever is slow this time."""

    seconds: float
    spans: dict[int, Spans]
    drift: tuple[float, float] | None = None
    """How many times `seconds` a run takes while its devices are as fast, or as slow, as in a tenth of the moments of
    the profile (`spells.drift`); None where that is not known, or they were said to be as fast as they are."""

    @property
    def likely(self) -> tuple[float, float] | None:
        """Seconds between which eight of ten runs lie by the drift of the devices alone."""
        return (self.seconds * self.drift[0], self.seconds * self.drift[1]) if self.drift else None


def predict_step(
    spec: RunSpec,
    table: CostTable,
    devices: Sequence[int] | None = None,
    where: Where = ALONE,
    spells: Sequence[Spell] = (),
) -> Prediction:
    """`devices[rank]` is what each global rank is bound to (None: ranks go round the table's devices), `where` on which
    hosts the ranks are; their devices drift as in the `spells` (none: as the profile saw it).

    Raises CannotPredict."""
    made = Maker(spec, table, where)
    bound = devices or made.network.devices()
    at_pace = partial(_at_pace, spec, made, table, bound)
    known = spells or spells_of(table.spells, bound)
    likely = None if spells else drift(table.spells, bound)
    if not known:
        return replace(at_pace((), 1), drift=likely)
    seconds = sum(one.share * at_pace(one.slower, len(known)).seconds for one in known)
    return Prediction(seconds, at_pace((), 0).spans, likely)


def _at_pace(
    spec: RunSpec, made: Maker, table: CostTable, devices: Sequence[int], slower: Sequence[float], parts: int
) -> Prediction:
    """A step while each rank's device takes so many times longer than the table says, one of `parts`; 0: no noise."""
    sharing = made.sharing(devices, slower)

    def walk(steps: int) -> tuple[Schedule, dict[int, Spans]]:
        schedule = made.schedule(steps)
        return schedule, simulate_shared(schedule, made.costs(schedule), sharing)

    if spec.parallel.flushes or spec.parallel.pp == 1:
        schedule, spans = walk(1)
        seconds = max(int(rows["end"].max()) for rows in spans.values()) / 1e9
    else:
        schedule, (seconds, spans) = made.schedule(steady.MORE_STEPS), steady.step(spec, walk)
    seconds *= noise.factor(schedule, made.costs(schedule), sharing, table.noise, made.meeting, parts) if parts else 1.0
    return Prediction(seconds + table.beside("report"), spans)


def _curve(rows: Sequence[Layers], seconds: Sequence[float]) -> Curve:
    return Curve(sizes=tuple(float(row.samples) for row in rows), seconds=tuple(seconds))


class Maker:
    """Costs of the operations of one run."""

    def __init__(self, spec: RunSpec, table: CostTable, where: Where = ALONE) -> None:
        self._spec, self._table, self._layout = spec, table, Layout.of(spec)
        self.network = Network(self._layout, table, *where)
        require(spec, table, self.network.busy)
        self._busy = min(self.network.busy, table.busy)
        self._widths = self._layout.unit_widths()
        self._ends = Ends(spec, table, self._layout, self._busy, self.network, self._of_layer)
        self._known: dict[tuple[int, str, int, bool], list[Layers]] = {}

    def schedule(self, steps: int = 1) -> Schedule:
        """The run's programs, each behind its DATA and SETUP; of a stream each step's part behind its DATA."""
        made, programs = build(self._spec, steps), []
        for q, program in enumerate(made.programs):
            place, replica = self._layout.seat(q)
            first = self._layout.stages_of(place)[0]
            data, setup = (Op(kind, first, replica=replica) for kind in (Kind.DATA, Kind.SETUP))
            if made.sync == "flush":
                programs.append((data, setup, *program))
            else:
                programs.append(tuple(steady.headed(program, steps, made.micro_batches // steps, data)))
        return replace(made, programs=tuple(programs))

    def sharing(self, devices: Sequence[int], slower: Sequence[float] = ()) -> Sharing:
        """`devices[rank]` and `slower[rank]` of each global rank; a tensor group is as slow as its slowest."""
        slowdown = {}
        for stage in range(self._layout.stages):
            for kind in _PART:
                alone, busy = self._stage(stage, kind, 1), self._stage(stage, kind, self._table.busy)
                slowdown[stage, kind] = min(max(busy / alone, 1 / _MOST_SLOWDOWN), _MOST_SLOWDOWN) if alone else 1.0
        bound, widths = self._bound(devices), self._layout.widths
        crowding = tuple(self._table.crowding(widths[self._layout.seat(q)[0]]) for q in range(len(bound)))
        slowest = tuple(max(slower[rank] for rank in ranks) for ranks in self._walkers()) if slower else ()
        return Sharing(bound, slowdown, self._table.busy, crowding, slowest, self.network.homes)

    def _bound(self, devices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The devices of each pipeline rank."""
        return tuple(tuple(devices[rank] for rank in ranks) for ranks in self._walkers())

    def _walkers(self) -> list[Sequence[int]]:
        """The global ranks of each pipeline rank."""
        return [self._layout.walkers(q) for q in range(sum(self._layout.replicas))]

    @property
    def meeting(self) -> tuple[Kind, ...]:
        """The operations inside which replicas wait for each other."""
        return tuple(kind for kind in _PART if self._ends.meetings(0, kind))

    def costs(self, schedule: Schedule) -> HostCosts:
        """In ns, of every (stage, kind) of `schedule`."""
        known = Seconds({}, {}, {})
        compute = known.compute
        operation = self._table.beside("operation")
        for stage in range(self._layout.stages):
            for kind in _PART:
                compute[stage, kind] = self._stage(stage, kind, 1) + operation
                known.waits[stage, kind] = self._inside(stage, kind, Exchange.waiting)
                known.moving[stage, kind, "tensor"] = self._inside(stage, kind, Exchange.on_a_line)
                self._ends.add_inside(stage, kind, known)
        for q, program in enumerate(schedule.programs):
            if self._layout.seat(q)[1] == 0:  # other replicas of a place cost the same
                self._ends.add(program, known)
        messages = self._messages()
        for (stage, kind), (_, size) in messages.items():
            taken = stage + 1 if kind is Kind.SEND_ACT else stage - 1
            times = self._takers(stage, taken)
            compute[taken, Kind(kind + 1)] = work = self._send_work(stage, taken, size // times)
            compute[stage, kind] = times * work
        ns = {key: round(seconds * 1e9) for key, seconds in compute.items()}
        held = {key: round(seconds * 1e9) for key, seconds in known.waits.items()}
        prices = Costs(ns, norm=schedule.sync == "flush", norm_ns=round(self._ends.norm() * 1e9))
        passages = host_traffic.messages(self.network, schedule, partial(self._bytes_to_each, messages))
        return HostCosts(
            prices, held, messages, passages, host_traffic.collectives(self.network, schedule, known.moving)
        )

    # Layers

    def _stage(self, stage: int, kind: Kind, busy: int) -> float:
        """Seconds of work of one operation on a micro-batch, tensor collectives included where they are work."""
        return sum(self.unit(unit, kind, busy).at(self._spec.micro_batch_size) for unit in self._units(stage))

    def _inside(self, stage: int, kind: Kind, part: Share) -> float:
        """Seconds of one part of the tensor collectives of an operation."""
        return sum(self._inside_unit(unit, kind, part) for unit in self._units(stage))

    def unit_wait(self, unit: int, kind: Kind) -> float:
        """Seconds of a layer's tensor collectives that are no work, for a micro-batch: those between hosts, and those
        among more ranks than devices, measured with the turns they take."""
        return self._inside_unit(unit, kind, Exchange.waiting)

    def _inside_unit(self, unit: int, kind: Kind, part: Share) -> float:
        found = self._rows(unit, 1)
        curve = _curve(found, [self._talk(row, unit, kind, part) for row in found])
        return curve.at(self._spec.micro_batch_size)

    def _of_layer(self, unit: int, kind: Kind) -> float:
        """Seconds of one layer for a micro-batch, while all devices work."""
        return self.unit(unit, kind, self._busy).at(self._spec.micro_batch_size) + self.unit_wait(unit, kind)

    def _units(self, stage: int) -> tuple[int, ...]:
        return self._layout.stage_units[stage]

    def unit(self, unit: int, kind: Kind, busy: int) -> Curve:
        """Seconds of one layer by the samples of a micro-batch."""
        rows = self._rows(unit, busy) or self._rows(unit, 1)
        return _curve(
            rows, [self._of_row(row, unit, kind) + self._talk(row, unit, kind, Exchange.work) for row in rows]
        )

    @cached_property
    def _hows(self) -> tuple[str, ...]:
        """How each layer recomputes."""
        split, units = self._spec.parallel, self._spec.model.units()
        again = recomputed(split, units)
        return tuple(split.recompute if block_of(unit) in again else "none" for unit in units)

    def _rows(self, unit: int, busy: int) -> list[Layers]:
        """The measured rows that speak of the layer. Kept: a model has many layers and few kinds of them."""
        key = self._widths[unit], self._hows[unit], busy, any(len(lie) > 1 for lie in self._lie[unit])
        if key not in self._known:
            self._known[key] = self._measured(*key)
        return self._known[key]

    def _measured(self, tp: int, how: str, busy: int, leaves: bool) -> list[Layers]:
        """A tensor group that leaves its host talks otherwise than one that was measured there. Devices are as busy as
        a group makes them, at least: nobody measured it with fewer at work."""
        least = min(tp, self._table.devices)
        for known in (how, "none" if how == "full" else how):
            of = partial(self._table.of, tp, known, split=self._spec.parallel.cut)
            joined = [] if leaves else of(tp, joined=True)
            if rows := joined or of(busy) or of(least):
                return rows
        return []

    @cached_property
    def _lie(self) -> tuple[frozenset[Pattern], ...]:
        """How the tensor groups of each layer lie on hosts."""
        places = [self.network.tensor(place) for place in range(self._layout.pp)]
        return tuple(
            places[self._layout.place(stage)] for stage, units in enumerate(self._layout.stage_units) for _ in units
        )

    def _of_row(self, row: Layers, unit: int, kind: Kind) -> float:
        """The layer as fast as it is without a stop behind it."""
        part = _PART[kind]
        found = row.seconds[part][unit] * row.whole[part] / max(sum(row.seconds[part]), 1e-12)
        return found + (row.seconds["forward"][unit] if self._adds_forward(row, unit, kind) else 0.0)

    def _adds_forward(self, row: Layers, unit: int, kind: Kind) -> bool:
        """Whether the layer's recomputation is in the operation, but not in what was measured."""
        return self._hows[unit] == "full" and row.recompute == "none" and kind in (Kind.BW, Kind.B)

    def _talk(self, row: Layers, unit: int, kind: Kind, part: Share) -> float:
        """Seconds of one part of a layer's tensor collectives."""
        tp = self._widths[unit]
        if tp == 1 or kind is Kind.W:
            return 0.0
        said = row.collectives("forward" if kind is Kind.F else "backward", unit)
        if self._adds_forward(row, unit, kind):
            said += row.collectives("forward", unit)
        return sum(part(self.network.exchange(what, self._lie[unit], size)) for what, size in said)

    # Messages

    def _messages(self) -> dict[tuple[int, Kind], tuple[int, int]]:
        """(ns, bytes) of each SEND between stages on different ranks."""
        out, spec, layout = {}, self._spec, self._layout
        edges = boundary_elements(spec)
        for stage in range(1, layout.stages):
            if layout.place(stage) == layout.place(stage - 1):
                continue
            size = edges[self._units(stage)[0]] * spec.element_bytes
            for sender, kind, taker in ((stage - 1, Kind.SEND_ACT, stage), (stage, Kind.SEND_GRAD, stage - 1)):
                if (link := self._route(sender, taker, size)) is not None:
                    times, each = self._takers(sender, taker), self._send_work(sender, taker, size)
                    way = link.arrival(size, each if self._table.device == "cpu" else 0.0)
                    out[sender, kind] = round(times * way * 1e9), times * size
        return out

    def _bytes_to_each(self, messages: Mapping[tuple[int, Kind], tuple[int, int]], stage: int, kind: Kind) -> int:
        """Of a SEND's bytes, those to each rank that takes them."""
        size = messages.get((stage, kind), (0, 0))[1]
        return size // self._takers(stage, stage + 1 if kind is Kind.SEND_ACT else stage - 1) if size else 0

    def _route(self, sender: int, taker: int, size: float) -> Link | None:
        return self.network.route(self._layout.place(sender), self._layout.place(taker), size)

    def _takers(self, stage: int, taker: int) -> int:
        """Ranks of stage `taker` that one of `stage` sends each tensor to, at most: widths may differ."""
        width, other = (self._layout.widths[self._layout.place(s)] for s in (stage, taker))
        return -(-other // width)

    def _send_work(self, sender: int, taker: int, size: int) -> float:
        """Seconds of its sender, or of its receiver, that a message keeps; behind a layer's work the code for it is as
        cold as `message` says, which was measured there."""
        link = self._route(sender, taker, size)
        if link is None or link.work is None:
            return 0.0
        cold = max(0.0, self._table.beside("message") - link.work.seconds[0])
        return link.work.at(size) + cold + self._table.beside("operation")
