"""`python -m parallel_core plan --spec`: Alpa's two-level plans for a spec's model, compared with other partitions."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from parallel_core.analysis.quantities import bytes_text, seconds_text
from parallel_core.cli.common import CommandError, read_spec

if TYPE_CHECKING:
    from parallel_core.plan.alpa.costs import Machine
    from parallel_core.plan.alpa.inter import Mesh
    from parallel_core.plan.alpa.plans import Named
    from parallel_core.spec import RunSpec

MOST_DEVICES = 128
"""Most devices of an interactive search: plans grow with the square of the devices, and more take many seconds."""
REACHED = 0.5
"""Assumed share of a data sheet's peak that a device reaches, without a profile."""


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 0 a plan fits, 1 none was found, 2 the profile does not suffice. Raises CommandError for
    an invalid spec or too many devices."""
    from parallel_core.plan.alpa.costs import LayerCosts
    from parallel_core.plan.alpa.inter import SEARCH_S, Search
    from parallel_core.plan.alpa.plans import summary, with_alternatives
    from parallel_core.profile.table import CostTableError
    from parallel_core.simulate.cost_requirements import CannotPredict

    spec = read_spec(options.spec)
    if (options.devices or 1) > MOST_DEVICES:
        raise CommandError(f"--devices {options.devices}: with --spec use 1 to {MOST_DEVICES}")
    micro_batches = spec.parallel.micro_batches * spec.parallel.dp
    try:
        machine, mesh = _machine(spec, options)
        costs = LayerCosts(spec, machine, spec.train.global_batch // micro_batches)
        search = Search(costs, mesh, micro_batches, SEARCH_S)
        found = with_alternatives(search)
    except (CostTableError, CannotPredict) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(map(_line, found)))
    best = found[0].plan
    for line in summary(best, costs.units) if best else []:
        print(f"  {line}")
    return 0 if best else 1


def _machine(spec: RunSpec, options: argparse.Namespace) -> tuple[Machine, Mesh]:
    """Returns the host of a profile, or the cluster of the catalogue."""
    from parallel_core.plan.alpa.costs import Analytic, Measured
    from parallel_core.plan.alpa.inter import Mesh
    from parallel_core.plan.cluster.hardware import clusters
    from parallel_core.profile.table import CostTable

    if options.table is not None:
        table = CostTable.read(options.table)
        return Measured(table), Mesh(1, options.devices or table.devices)
    cluster = clusters()[options.cluster]
    devices = options.devices or cluster.per_host
    inside = min(devices, cluster.per_host)
    if devices % inside:
        down = devices // inside * inside
        raise CommandError(f"--devices {devices} does not fill hosts of {inside}; try {down} or {down + inside}")
    rate = cluster.device.half if spec.train.precision in ("bf16", "fp16") else cluster.device.single
    machine = Analytic(REACHED * rate, cluster.link, cluster.network, inside)
    return machine, Mesh(max(1, devices // inside), inside, cluster.capacity)


def _line(named: Named) -> str:
    if named.plan is None:
        return f"{'-':>10}  {'':>9}  {named.name}: {named.why_not}"
    seconds, most = named.plan.seconds, named.plan.memory
    shapes = ", ".join(f"{stage.dp} x {stage.tp}" for stage in named.plan.stages)
    note = f" (no run: {named.why_not})" if named.why_not else ""
    return f"{seconds_text(seconds):>10}  {bytes_text(most):>9}  {named.name}: {shapes}{note}"
