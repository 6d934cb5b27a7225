"""`simulate` for ranks that share a host: ranks on one device take turns, and busy devices slow each other down.

Work is modelled as a fluid: an operation has so many nanoseconds of work, done at a rate that changes whenever some
rank starts or stops working. Waiting (for a message, for other ranks) uses no device. Inter-host messages and
collectives are a fluid as well: those on one link share it. O(operations x ranks).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.simulate import ROLE, ROLES, Spans, norm_row, span_rows
from parallel_core.simulate.costs import Costs
from parallel_core.simulate.host_costs import HostCosts
from parallel_core.simulate.link_contention import ActiveFlows, Flow

_COMPUTE, _SEND, _RECV, _REDUCE, _STEP = ROLES
_NORM = (Kind.NORM, -1, 0)
_DONE_NS = 1e-3


@dataclass(frozen=True)
class Sharing:
    """How ranks share devices, and devices a host.

    - `devices[q]`: devices of the tensor ranks of pipeline rank q
    - `slowdown[stage, kind]`: slowdown of an operation with `full` devices of the host busy, against one alone; linear
      in between
    - `crowding[q]`: extra slowdown of rank q while it shares a device, beyond taking turns (empty: none)
    - `slower[q]`: slowdown of its devices against those that the costs are for (empty: none)
    """

    devices: tuple[tuple[int, ...], ...]
    slowdown: Mapping[tuple[int, Kind], float]
    full: int = 1
    crowding: tuple[float, ...] = ()
    slower: tuple[float, ...] = ()
    homes: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Host of each device; only devices of the same host slow each other down. Empty: all are on one host."""

    def stretch(self, op: Op, busy: int, costs: Costs) -> float:
        """Slowdown of `op` with `busy` devices at work."""
        if self.full < 2:
            return 1.0
        most = self._most(op, costs) if op.partner is not None else self.slowdown.get((op.stage, op.kind), 1.0)
        return 1.0 + (most - 1.0) * min(1.0, (busy - 1) / (self.full - 1))

    def _most(self, pair: Op, costs: Costs) -> float:
        """Slowdown of a PAIR with `full` devices busy: the mean over its parts, weighted by their work."""
        work = {part: costs.of(part) for part in pair.parts()}
        slowed = sum(ns * self.slowdown.get((part.stage, part.kind), 1.0) for part, ns in work.items())
        return slowed / sum(work.values()) if any(work.values()) else 1.0

    def busy_on_host(self, rank: int, at_work: Collection[int]) -> int:
        """Number of devices of `at_work` on the host of `rank`, or on the fullest of its hosts."""
        if not self.homes:
            return len(at_work)
        busy = Counter(self.homes[device] for device in at_work)
        return max(busy[self.homes[device]] for device in self.devices[rank])

    def turns(self, rank: int, ranks: int) -> float:
        """Slowdown of any operation of `rank` with so many ranks at work on its device."""
        own = self.slower[rank] if self.slower else 1.0
        if ranks < 2:
            return own
        return own * ranks * (self.crowding[rank] if self.crowding else 1.0)


class _CollectiveOf(NamedTuple):
    """Key of a rank's collective on the network."""

    rank: int


class _Cost(NamedTuple):
    """Ns of work, then flows one after the other, then ns of idle waiting."""

    work: float
    wait: float = 0.0
    flows: tuple[Flow, ...] = ()


Stir = Callable[[int, Op, float], float]
"""(rank, operation, mean ns of work) -> ns of work this time."""


def simulate_shared(
    schedule: Schedule, costs: HostCosts, sharing: Sharing, stir: Stir | None = None
) -> dict[int, Spans]:
    """As `simulate`, for a schedule with its SENDs and RECVs. Raises ValueError for a deadlock."""
    walk = _Fluid(schedule, costs, sharing, stir)
    walk.run()
    return {rank: walk.spans(rank) for rank in range(schedule.pipeline_ranks)}


class _Fluid:
    """State of all ranks: their positions, and the work or time left until they go on."""

    def __init__(self, schedule: Schedule, costs: HostCosts, sharing: Sharing, stir: Stir | None) -> None:
        self._schedule, self._costs, self._sharing, self._stir = schedule, costs, sharing, stir
        ranks = range(schedule.pipeline_ranks)
        self._clock = 0.0
        self._starts: list[list[float]] = [[] for _ in ranks]
        self._ends: list[list[float]] = [[] for _ in ranks]
        self._work: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._after: dict[int, float] = {}
        self._collectives: dict[int, list[Flow]] = {}
        self._arrived: dict[object, float] = {}
        self._waiting: dict[object, list[int]] = defaultdict(list)
        self._came: dict[object, dict[int, float]] = defaultdict(dict)
        self._met: dict[tuple[object, int], _Cost] = {}
        self._normed = 0.0
        self._active = ActiveFlows()

    def spans(self, rank: int) -> Spans:
        starts, ends = (np.rint(times).astype(int).tolist() for times in (self._starts[rank], self._ends[rank]))
        program = self._schedule.programs[rank]
        rows = span_rows(program, starts, ends, 0)
        rows["bytes"] = [self._costs.bytes_of(op) for op in program]
        came = self._came.get(_NORM, {})
        if rank not in came:
            return rows
        return np.concatenate([rows, norm_row(round(came[rank]), round(self._normed))])

    def run(self) -> None:
        """Walks every program to its end."""
        ready = list(range(self._schedule.pipeline_ranks))
        while True:
            for rank in ready:
                self._begin(rank)
            if not self._work and not self._until and not self._active:
                break
            ready = self._flow()
        programs = self._schedule.programs
        stuck = [f"rank {q} in {p[len(self._ends[q])]}" for q, p in enumerate(programs) if len(self._ends[q]) < len(p)]
        if stuck:
            raise ValueError(f"the programs wait for each other in a circle: {', '.join(stuck[:4])}.")

    def _flow(self) -> list[int]:
        """Advances time until the next rank has finished what it does; returns the ranks that have finished."""
        rates = self._rates()
        step = min(
            min((left / rates[rank] for rank, left in self._work.items()), default=math.inf),
            min((until - self._clock for until in self._until.values()), default=math.inf),
            self._active.soonest(),
        )
        self._clock += max(step, 0.0)
        come = self._active.advance(max(step, 0.0))
        for what, latency in come:
            if not isinstance(what, _CollectiveOf):
                self._bring(what, latency)
        for rank in self._work:
            self._work[rank] -= step * rates[rank]
        through = [rank for rank, left in self._work.items() if left <= _DONE_NS]
        for rank in through:
            del self._work[rank]
        through += [what.rank for what, _ in come if isinstance(what, _CollectiveOf)]
        through += [rank for rank, until in self._until.items() if until <= self._clock + _DONE_NS]
        for rank in through:
            self._until.pop(rank, None)
        return [rank for rank in through if not self._rest(rank)]

    def _rest(self, rank: int) -> bool:
        """Starts the next part of an operation that takes time but no work, if any; else ends the operation."""
        if self._wait(rank):
            return True
        self._ends[rank].append(self._clock)
        return False

    def _wait(self, rank: int) -> bool:
        if collectives := self._collectives.get(rank):
            self._active.put(_CollectiveOf(rank), collectives.pop(0))
            return True
        wait = self._after.pop(rank, 0.0)
        if wait > 0:
            self._until[rank] = self._clock + wait
        return wait > 0

    def _rates(self) -> dict[int, float]:
        """Work done per unit of time by each working rank."""
        at_work = Counter(device for rank in self._work for device in self._sharing.devices[rank])
        return {
            rank: 1.0
            / self._sharing.turns(rank, max(at_work[device] for device in self._sharing.devices[rank]))
            / self._sharing.stretch(self._op(rank), self._sharing.busy_on_host(rank, at_work), self._costs.compute)
            for rank in self._work
        }

    def _op(self, rank: int) -> Op:
        return self._schedule.programs[rank][len(self._ends[rank])]

    def _begin(self, rank: int) -> None:
        """Starts operations of `rank` until one takes time."""
        program = self._schedule.programs[rank]
        while len(self._ends[rank]) < len(program):
            op = self._op(rank)
            self._starts[rank].append(self._clock)
            if self._take_up(op, rank):
                return
            self._ends[rank].append(self._clock)

    def _take_up(self, op: Op, rank: int) -> bool:
        """Starts `op`; whether it takes time."""
        role = ROLE[op.kind]
        if role == _RECV:
            return self._await((op.kind is Kind.RECV_ACT, op.stage, op.micro_batch), op, rank)
        if role == _REDUCE:
            what = (op.kind, op.stage, op.version)
            return self._meet(what, self._schedule.placement[op.stage], rank, self._cost(op, rank))
        if role == _STEP and self._costs.compute.norm and rank not in self._came[_NORM]:
            ranks = range(self._schedule.pipeline_ranks)
            return self._meet(_NORM, ranks, rank, self._normed_cost(op, rank))
        if role == _SEND:
            forward = op.kind is Kind.SEND_ACT
            self._send((forward, op.stage + (1 if forward else -1), op.micro_batch), op, rank)
        return self._work_on(rank, self._cost(op, rank))

    def _cost(self, op: Op, rank: int) -> _Cost:
        work = self._costs.compute.of(op)
        return _Cost(self._stir(rank, op, work) if self._stir else work, *self._costs.without_work(op, rank))

    def _normed_cost(self, op: Op, rank: int) -> _Cost:
        """Cost of an optimizer with the norm before it."""
        wait, flows = self._costs.without_work(op, rank)
        return _Cost(self._costs.compute.of(op), wait + self._costs.compute.norm_ns, flows)

    def _work_on(self, rank: int, cost: _Cost) -> bool:
        self._after[rank], self._collectives[rank] = cost.wait, [*cost.flows]
        if cost.work > 0:
            self._work[rank] = cost.work
            return True
        return self._wait(rank)

    def _await(self, what: object, op: Op, rank: int) -> bool:
        at = self._arrived.get(what)
        if at is None:
            self._waiting[what].append(rank)
            return True
        if at > self._clock:
            self._until[rank] = at
            return True
        return self._work_on(rank, self._cost(op, rank))

    def _send(self, what: object, op: Op, rank: int) -> None:
        flow = self._costs.flows.get((rank, op.stage, op.kind, op.peer))
        if flow is None:
            self._bring(what, self._costs.latency(op))
        else:
            self._active.put(what, flow)

    def _bring(self, what: object, after: float) -> None:
        """Records that a message arrives in `after` ns, and schedules the ranks that wait for it."""
        at = self._arrived[what] = self._clock + after
        for rank in self._waiting.pop(what, ()):
            self._until[rank] = at

    def _meet(self, what: tuple[Kind, int, int], group: Sequence[int], rank: int, cost: _Cost) -> bool:
        """Registers `rank` at a collective; when the last rank of `group` arrives, all of them start their own cost."""
        came = self._came[what]
        came[rank] = self._clock
        self._met[what, rank] = cost
        if len(came) < len(group):
            return True
        for member in group:
            if not self._work_on(member, self._met.pop((what, member))):
                self._until[member] = self._clock
        if what == _NORM:
            self._normed = self._clock + self._costs.compute.norm_ns
        return True
