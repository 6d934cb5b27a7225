"""RunSpec x CostTable -> predicted duration and spans of one step, before the run.

Every number comes from the table: layers under the run's tensor width and recomputation, on a busy host; messages by
their size; zeroing, data, gradient norm and optimizer by theirs. Nothing is fitted to runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from parallel_core.analysis.rows import last_end
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
    """One step: `seconds` from its start to the next one's, and the spans of each pipeline rank (ns from 0), without
    the waits caused by noise."""

    seconds: float
    spans: dict[int, Spans]
    drift: tuple[float, float] | None = None
    """Factors on `seconds` with devices as fast, or as slow, as in a tenth of the profile's moments
    (`device_drift.drift`); None where that is not known, or the devices' pace was given."""

    @property
    def likely(self) -> tuple[float, float] | None:
        """Range of seconds that contains eight of ten runs, by the drift of the devices alone."""
        return (self.seconds * self.drift[0], self.seconds * self.drift[1]) if self.drift else None


def predict_step(
    spec: RunSpec,
    table: CostTable,
    devices: Sequence[int] | None = None,
    where: Where = ALONE,
    spells: Sequence[Spell] = (),
) -> Prediction:
    """The predicted step. `devices[rank]`: device of each global rank (None: ranks take the table's devices in turn);
    `where`: hosts of the ranks; `spells`: drift of their devices (none: as in the profile).

    Raises CannotPredict.
    """
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
    """A step with each rank's device slowed by `slower`, one of `parts` that are averaged; `parts` 0: without noise."""
    sharing = made.sharing(devices, slower)

    def walk(steps: int) -> tuple[Schedule, dict[int, Spans]]:
        schedule = made.schedule(steps)
        return schedule, simulate_shared(schedule, made.costs(schedule), sharing)

    if spec.parallel.flushes or spec.parallel.pp == 1:
        schedule, spans = walk(1)
        seconds = last_end(spans) / 1e9
    else:
        schedule, (seconds, spans) = made.schedule(steady.MORE_STEPS), steady.step(spec, walk)
    seconds *= noise.factor(schedule, made.costs(schedule), sharing, table.noise, made.meeting, parts) if parts else 1.0
    return Prediction(seconds + table.overhead("report"), spans)


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
        """The run's programs, each with DATA and SETUP in front; in a stream each step's part has DATA in front."""
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
        """`devices[rank]` and `slower[rank]` for each global rank; a tensor group is as slow as its slowest rank."""
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
        """Kinds of operations inside which replicas wait for each other."""
        return tuple(kind for kind in _PART if self._ends.meetings(0, kind))

    def costs(self, schedule: Schedule) -> HostCosts:
        """Costs of every (stage, kind) of `schedule`, in ns."""
        known = Seconds({}, {}, {})
        compute = known.compute
        operation = self._table.overhead("operation")
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
        """Seconds of work of one operation on a micro-batch, with tensor collectives as far as they are work."""
        return sum(self.unit(unit, kind, busy).at(self._spec.micro_batch_size) for unit in self._units(stage))

    def _inside(self, stage: int, kind: Kind, part: Share) -> float:
        """Seconds of one part of an operation's tensor-parallel collectives."""
        return sum(self._inside_unit(unit, kind, part) for unit in self._units(stage))

    def unit_wait(self, unit: int, kind: Kind) -> float:
        """Seconds without work in a layer's tensor-parallel collectives, for a micro-batch: those between hosts, and
        those among more ranks than devices, whose timings include taking turns."""
        return self._inside_unit(unit, kind, Exchange.waiting)

    def _inside_unit(self, unit: int, kind: Kind, part: Share) -> float:
        found = self._rows(unit, 1)
        curve = _curve(found, [self._collective(row, unit, kind, part) for row in found])
        return curve.at(self._spec.micro_batch_size)

    def _of_layer(self, unit: int, kind: Kind) -> float:
        """Seconds of one layer for a micro-batch, with all devices busy."""
        return self.unit(unit, kind, self._busy).at(self._spec.micro_batch_size) + self.unit_wait(unit, kind)

    def _units(self, stage: int) -> tuple[int, ...]:
        return self._layout.stage_units[stage]

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
        measured on one host. At least as many devices are busy as a group has: fewer were never measured."""
        least = min(tp, self._table.devices)
        for known in (how, "none" if how == "full" else how):
            of = partial(self._table.of, tp, known, split=self._spec.parallel.cut)
            joined = [] if leaves else of(tp, joined=True)
            if rows := joined or of(busy) or of(least):
                return rows
        return []

    @cached_property
    def _placed(self) -> tuple[frozenset[Pattern], ...]:
        """Placements of each layer's tensor groups on hosts."""
        places = [self.network.tensor(place) for place in range(self._layout.pp)]
        return tuple(
            places[self._layout.place(stage)] for stage, units in enumerate(self._layout.stage_units) for _ in units
        )

    def _of_row(self, row: Layers, unit: int, kind: Kind) -> float:
        """Seconds of the layer, scaled so that all layers add up to the time measured without stops between them."""
        part = _PART[kind]
        found = row.seconds[part][unit] * row.whole[part] / max(sum(row.seconds[part]), 1e-12)
        return found + (row.seconds["forward"][unit] if self._adds_forward(row, unit, kind) else 0.0)

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
            said += row.collectives("forward", unit)
        return sum(part(self.network.exchange(what, self._placed[unit], size)) for what, size in said)

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
        """Bytes of a SEND to each receiving rank."""
        size = messages.get((stage, kind), (0, 0))[1]
        return size // self._takers(stage, stage + 1 if kind is Kind.SEND_ACT else stage - 1) if size else 0

    def _route(self, sender: int, taker: int, size: float) -> Link | None:
        return self.network.route(self._layout.place(sender), self._layout.place(taker), size)

    def _takers(self, stage: int, taker: int) -> int:
        """Most ranks of stage `taker` to which one rank of `stage` sends each tensor: widths may differ."""
        width, other = (self._layout.widths[self._layout.place(s)] for s in (stage, taker))
        return -(-other // width)

    def _send_work(self, sender: int, taker: int, size: int) -> float:
        """Seconds of work of a message on its sender, or on its receiver. After a layer the code for it is cold, which
        the table's `message` measures."""
        link = self._route(sender, taker, size)
        if link is None or link.work is None:
            return 0.0
        cold = max(0.0, self._table.overhead("message") - link.work.seconds[0])
        return link.work.at(size) + cold + self._table.overhead("operation")
