"""RunSpec x CostTable -> cost of one operation of each stage, for code that makes schedules."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.layout import Layout
from parallel_core.profile.table import CostTable
from parallel_core.schedule.ir import Kind, Op
from parallel_core.simulate.host_costs import HostCosts
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import Maker
from parallel_core.simulate.shared_host import Sharing
from parallel_core.spec import RunSpec

_MESSAGES = {Kind.F: (Kind.RECV_ACT, Kind.SEND_ACT), Kind.W: ()}
_BACK = (Kind.RECV_GRAD, Kind.SEND_GRAD)


def stage_times(spec: RunSpec, table: CostTable, kind: Kind, where: Where = ALONE) -> list[int]:
    """Ns of one F, B, W or BW of each stage with all devices busy, with the work of its own messages.

    Raises CannotPredict.
    """
    made = Maker(spec, table, where)
    schedule = made.schedule()
    costs, sharing = made.costs(schedule), made.sharing(made.network.devices())
    return [round(_in_all(costs, sharing, Op(kind, stage), table.busy)) for stage in range(schedule.stages)]


def unit_times(spec: RunSpec, table: CostTable) -> list[float]:
    """Seconds of each layer for a micro-batch, forward and backward with tensor-parallel collectives, on a busy host.
    Raises CannotPredict."""
    layers, samples = Maker(spec, table).layers, spec.micro_batch_size
    return [
        sum(
            layers.unit(unit, kind, table.busy).at(samples) + layers.unit_wait(unit, kind) for kind in (Kind.F, Kind.BW)
        )
        for unit in range(len(spec.model.units()))
    ]


def message_times(spec: RunSpec, table: CostTable, where: Where = ALONE) -> list[int]:
    """Ns of a message from each stage to the next; 0 if both are on one rank. Raises CannotPredict."""
    made = Maker(spec, table, where)
    costs = made.costs(made.schedule())
    return [costs.messages.get((stage, Kind.SEND_ACT), (0, 0))[0] for stage in range(Layout.of(spec).stages - 1)]


def _in_all(costs: HostCosts, sharing: Sharing, op: Op, busy: int) -> float:
    own = costs.compute.of(op) * sharing.stretch(op, busy, costs.compute) + costs.waits.get((op.stage, op.kind), 0)
    return own + sum(costs.compute.of(replace(op, kind=kind)) for kind in _MESSAGES.get(op.kind, _BACK))
