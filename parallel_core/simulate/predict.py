"""RunSpec x CostTable -> predicted duration and spans of one step, before the run.

Every number comes from the table: layers under the run's tensor width and recomputation, on a busy host; messages by
their size; zeroing, data, gradient norm and optimizer by theirs. Nothing is fitted to runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from parallel_core.analysis.rows import last_end
from parallel_core.layout import Layout
from parallel_core.profile.table import CostTable
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.stream import edge
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, Spans, host_traffic, noise, steady
from parallel_core.simulate.cost_requirements import require
from parallel_core.simulate.device_drift import Spell, drift, spells_of
from parallel_core.simulate.host_costs import HostCosts
from parallel_core.simulate.layer_times import PARTS, LayerTimes
from parallel_core.simulate.likely import by_default, kind_of
from parallel_core.simulate.message_times import MessageTimes
from parallel_core.simulate.network import ALONE, Exchange, Network, Where
from parallel_core.simulate.shared_host import Sharing, simulate_shared
from parallel_core.simulate.step_overheads import Ends, Seconds
from parallel_core.spec import RunSpec

_MOST_SLOWDOWN = 8.0  # of a layer by other busy devices; more is noise of a layer that takes next to nothing


@dataclass(frozen=True)
class Prediction:
    """One step: `seconds` from its start to the next one's, and the spans of each pipeline rank (ns from 0), without
    the waits caused by noise."""

    seconds: float
    spans: dict[int, Spans]
    factors: tuple[float, float] | None = None
    """Of `seconds`, between which eight of ten runs take (`likely.by_default`); None where no errors were measured, on
    GPUs and over several hosts, or where the devices' pace was given."""

    @property
    def likely(self) -> tuple[float, float] | None:
        """Range of seconds that contains eight of ten runs."""
        return (self.seconds * self.factors[0], self.seconds * self.factors[1]) if self.factors else None


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
    factors = None if spells or where.hosts else _factors(spec, table, bound)
    if not known:
        return replace(at_pace((), 1), factors=factors)
    seconds = sum(one.share * at_pace(one.slower, len(known)).seconds for one in known)
    return Prediction(seconds, at_pace((), 0).spans, factors)


def _factors(spec: RunSpec, table: CostTable, devices: Sequence[int]) -> tuple[float, float] | None:
    if spec.train.device != "cpu":
        return None
    return by_default(kind_of(spec.parallel, table.devices), drift(table.spells, devices))


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


def operations(spec: RunSpec) -> int:
    """About how many compute operations `predict_step` simulates at a time: those of a step, or of both streams of a
    pipeline without flushes."""
    split = spec.parallel
    each = 3 if TRAITS[split.schedule].split or split.early_gradients else 2
    streams = split.pp > 1 and not split.flushes
    steps = sum(steady.steps_of(edge(sum(split.copies), split.per_step))) if streams else 1
    return split.per_step * split.stages * each * steps


class Maker:
    """Costs of the operations of one run."""

    def __init__(self, spec: RunSpec, table: CostTable, where: Where = ALONE) -> None:
        self._spec, self._table, self._layout = spec, table, Layout.of(spec)
        self.network = Network(self._layout, table, *where)
        require(spec, table, self.network.busy)
        busy = min(self.network.busy, table.busy)
        self.layers = LayerTimes(spec, table, self._layout, self.network, busy)
        self._messages = MessageTimes(spec, table, self._layout, self.network)
        self._ends = Ends(spec, table, self._layout, busy, self.network, self.layers.of_layer)

    def schedule(self, steps: int = 1) -> Schedule:
        """The run's programs, each with DATA and SETUP in front; in a stream each step's part has DATA in front."""
        made, programs = build(self._spec, steps), []
        for q, program in enumerate(made.programs):
            place, replica = self._layout.position(q)
            first = self._layout.stages_of(place)[0]
            data, setup = (Op(kind, first, replica=replica) for kind in (Kind.DATA, Kind.SETUP))
            if made.sync == "flush":
                programs.append((data, setup, *program))
            else:
                programs.append(tuple(steady.headed(program, steps, made.micro_batches // steps, data)))
        return replace(made, programs=tuple(programs))

    def sharing(self, devices: Sequence[int], slower: Sequence[float] = ()) -> Sharing:
        """`devices[rank]` and `slower[rank]` for each global rank; a tensor group is as slow as its slowest rank."""
        stages = range(self._layout.stages)
        slowdown = {(stage, kind): self._slowdown(stage, kind) for stage in stages for kind in PARTS}
        bound, widths = self._bound(devices), self._layout.widths
        crowding = tuple(self._table.crowding(widths[self._layout.position(q)[0]]) for q in range(len(bound)))
        slowest = tuple(max(slower[rank] for rank in ranks) for ranks in self._walkers()) if slower else ()
        return Sharing(bound, slowdown, self._table.busy, crowding, slowest, self.network.homes)

    def _slowdown(self, stage: int, kind: Kind) -> float:
        """Slowdown of an operation's layers with all devices of the host busy."""
        alone, busy = (self.layers.stage(stage, kind, many) for many in (1, self._table.busy))
        return min(max(busy / alone, 1 / _MOST_SLOWDOWN), _MOST_SLOWDOWN) if alone else 1.0

    def _bound(self, devices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The devices of each pipeline rank."""
        return tuple(tuple(devices[rank] for rank in ranks) for ranks in self._walkers())

    def _walkers(self) -> list[Sequence[int]]:
        """The global ranks of each pipeline rank."""
        return [self._layout.tensor_group(q) for q in range(sum(self._layout.replicas))]

    @property
    def meeting(self) -> tuple[Kind, ...]:
        """Kinds of operations inside which replicas wait for each other."""
        return tuple(kind for kind in PARTS if self._ends.meetings(0, kind))

    def costs(self, schedule: Schedule) -> HostCosts:
        """Costs of every (stage, kind) of `schedule`, in ns."""
        known = Seconds({}, {}, {})
        compute = known.compute
        operation = self._table.overhead("operation")
        for stage in range(self._layout.stages):
            for kind in PARTS:
                compute[stage, kind] = self.layers.stage(stage, kind, 1) + operation
                known.waits[stage, kind] = self.layers.inside(stage, kind, Exchange.waiting)
                known.moving[stage, kind, "tensor"] = self.layers.inside(stage, kind, Exchange.on_a_line)
                self._ends.add_inside(stage, kind, known, self._slowdown(stage, kind))
        for q, program in enumerate(schedule.programs):
            if self._layout.position(q)[1] == 0:  # other replicas of a place cost the same
                self._ends.add(program, known)
        messages = self._messages.all()
        for (stage, kind), (_, size) in messages.items():
            taken = stage + 1 if kind is Kind.SEND_ACT else stage - 1
            times = self._messages.receivers(stage, taken)
            compute[taken, Kind(kind + 1)] = work = self._messages.send_work(stage, taken, size // times)
            compute[stage, kind] = times * work
        ns = {key: round(seconds * 1e9) for key, seconds in compute.items()}
        held = {key: round(seconds * 1e9) for key, seconds in known.waits.items()}
        prices = Costs(ns, norm=schedule.sync == "flush", norm_ns=round(self._ends.norm() * 1e9))
        flows = host_traffic.messages(self.network, schedule, partial(self._messages.bytes_to_each, messages))
        return HostCosts(prices, held, messages, flows, host_traffic.collectives(self.network, schedule, known.moving))
