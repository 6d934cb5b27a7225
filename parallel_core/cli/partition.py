"""`python -m parallel_core partition`: PipeDream's partition of a graph written by its profiler."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_core.analysis.quantities import bytes_text, plural_text, seconds_text
from parallel_core.cli.common import Subparsers, add_command
from parallel_core.cli.numbers import above

if TYPE_CHECKING:
    from parallel_core.plan.graph_plan import GraphPlan
    from parallel_core.plan.network_levels import Level

GB, GIB = 1e9, 2.0**30


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    command = add_command(
        commands,
        "partition",
        "partition a graph.txt that PipeDream's profiler wrote, as PipeDream does",
        "examples/branches.graph.txt --level 4@1",
    )
    command.add_argument("graph", type=Path, help="lines `node1 -- name -- forward_compute_time=…`, then edges")
    command.add_argument(
        "--level",
        type=_level,
        action="append",
        required=True,
        metavar="WORKERS@GB/S",
        help="workers and the bandwidth between them; again for groups of these: --level 4@12 --level 4@1.25",
    )
    command.add_argument(
        "--form",
        choices=["released", "paper"],
        default="released",
        help="costs of PipeDream's released tool, or of its paper (default: released)",
    )
    command.add_argument(
        "--memory", type=above(0), metavar="GIB", help="GiB a worker has for weights and activations (default: any)"
    )
    command.add_argument("--json", action="store_true", help="the stages as JSON")
    command.set_defaults(run=run)


def _level(text: str) -> Level:
    from parallel_core.plan.network_levels import Level

    if not (found := re.fullmatch(r"([0-9]{1,6})@([0-9.eE+-]{1,20})", text)):
        raise argparse.ArgumentTypeError(f"workers@GB/s is needed, as 4@12; got {text[:40]!r}")
    return Level(int(found[1]), above(0)(found[2]) * GB)


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 0 found, 2 the graph or the request is invalid."""
    from parallel_core.plan.graph_plan import plan_graph
    from parallel_core.plan.layer_graph import MAX_TEXT, GraphError, decoded, read_graph

    try:
        with options.graph.open("rb") as file:
            graph = read_graph(decoded(file.read(MAX_TEXT + 1)))
        plan = plan_graph(graph, options.level, options.form, options.memory and options.memory * GIB)
    except GraphError as error:
        print(f"{options.graph}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(_as_json(plan), indent=1) if options.json else _text(plan))
    return 0


def _as_json(plan: GraphPlan) -> dict[str, Any]:
    stages = [
        {"replicas": row.replicas, "seconds": row.seconds, "layers": [layer.name for layer in row.layers]}
        for row in plan.rows
    ]
    found = plan.found
    return {"seconds": found.seconds, "workers": found.workers, "noam": found.noam, "stages": stages}


def _text(plan: GraphPlan) -> str:
    lines = [
        f"{number:>3}  {row.replicas:>4} x {seconds_text(row.seconds):>8}  {bytes_text(row.parameters):>9} of weights"
        f"  {plural_text(len(row.layers), 'layer'):>11}: {row.name}"
        for number, row in enumerate(plan.rows)
    ]
    return "\n".join([*plan.sentences(), *lines])
