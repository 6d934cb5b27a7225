"""`python -m parallel_core profile` and `predict`: measures the cost of layers and links, and predicts step times."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_core import limits
from parallel_core.analysis.quantities import bytes_text, percent_text, plural_text, seconds_text
from parallel_core.cli.common import Subparsers, add_no_progress, read_spec, require_cores
from parallel_core.cli.numbers import above, target, whole

if TYPE_CHECKING:
    from parallel_core.profile.curves import Link
    from parallel_core.profile.table import CostTable, FullySharded, Layers, OwnShards
    from parallel_core.spec import RunSpec


def add(commands: Subparsers) -> None:
    """Adds the commands to the parser of the engine."""
    profile = commands.add_parser("profile", help="time the layers of a spec's model, and this host's links")
    profile.add_argument("spec", type=Path, help="a RunSpec as JSON: its model, batch, precision and device")
    profile.add_argument("--out", type=target, help="write the cost table to this file")
    profile.add_argument(
        "--ranks", type=whole(1, limits.MAX_DEGREE), help="ranks that links are timed between (default: 4, GPUs: all)"
    )
    profile.add_argument("--seconds", type=above(0), default=2.0, help="of each condition of the layers, at least")
    add_no_progress(profile)
    profile.add_argument("--json", action="store_true", help="print the table as JSON")
    profile.add_argument("--quick", action="store_true", help="no tensor groups and no recomputation")
    profile.set_defaults(run=_profile)
    predict = commands.add_parser(
        "predict", help="how long a step of a spec will take, by a cost table, and its memory"
    )
    predict.add_argument("spec", type=Path)
    predict.add_argument("--table", type=Path, required=True, help="what `profile --out` wrote")
    predict.add_argument(
        "--cut",
        type=target,
        metavar="OUT",
        help="move the cuts between stages while that shortens the step; write the spec",
    )
    predict.add_argument("--memory", type=whole(1), metavar="MIB", help="of a device: say whether the spec fits, too")
    predict.set_defaults(run=_predict)


def _profile(options: argparse.Namespace) -> int:
    from parallel_core.profile.measure import ProfileFailed, measure_for

    spec = read_spec(options.spec)
    if options.ranks is not None:
        require_cores(options.ranks, "--ranks makes")
    try:
        table = measure_for(
            spec,
            ranks=options.ranks,
            seconds=options.seconds,
            quick=options.quick,
            no_progress_s=options.no_progress,
        )
    except ProfileFailed as error:
        print(f"profiling failed: {error}", *filter(None, [error.traceback]), sep="\n", file=sys.stderr)
        return 1
    if options.out is not None:
        options.out.write_text(json.dumps(table.dump()) + "\n")
    print(json.dumps(table.dump()) if options.json else "\n".join(report(table)))
    return 0


def _predict(options: argparse.Namespace) -> int:
    from parallel_core.profile.table import CostTable, CostTableError
    from parallel_core.simulate.likely import elsewhere_text
    from parallel_core.simulate.predict import CannotPredict, predict_step

    spec = read_spec(options.spec)
    try:
        table = CostTable.read(options.table)
        if options.cut is not None:
            spec = _cut(spec, table, options.cut)
        else:
            said = predict_step(spec, table)
            print(f"{seconds_text(said.seconds)} a step{f'; {elsewhere_text(*said.likely)}' if said.likely else ''}")
    except (CostTableError, CannotPredict) as error:
        print(error, file=sys.stderr)
        return 2
    print(_needs(spec, options.memory))
    return 0


def _needs(spec: RunSpec, mib: int | None) -> str:
    """Returns what the fullest rank needs, and whether it fits on a device of so many MiB, or under the spec's cap."""
    from parallel_core.plan.memory import verdict
    from parallel_core.plan.room import Room

    return verdict(spec, Room.on(mib << 20 if mib else None, spec.train.device)).sentence


def _cut(spec: RunSpec, table: CostTable, out: Path) -> RunSpec:
    """Writes the spec with the best cuts to `out`, and returns it."""
    from parallel_core.simulate.cuts import best_cuts

    found = best_cuts(spec, table)
    out.write_text(found.spec.model_dump_json(indent=1) + "\n")
    cuts = ", ".join(map(str, found.spec.parallel.cuts or ())) or "no cut"
    print(
        f"{seconds_text(found.seconds)} a step, cut at {cuts}; {seconds_text(found.before)} before. Written to {out}."
    )
    return found.spec


def report(table: CostTable) -> list[str]:
    """Formats the table as lines: each layer at the largest batch, then each link, then the costs of ZeRO."""
    alone, *_ = (row for row in table.layers if row.samples == table.samples and row.busy == 1)
    lines = [f"{table.device_name or table.device}, {table.software}, {table.samples} samples, {table.precision}"]
    lines.append(
        f"{'layer':<16}{'forward':>10}{'backward':>10}{'input':>10}{'weights':>10}{'saved':>12}{'boundary':>12}"
    )
    for i, size in enumerate(table.sizes):
        times = "".join(f"{seconds_text(alone.seconds[part][i]):>10}" for part in alone.seconds)
        lines.append(f"{size.unit:<16}{times}{bytes_text(size.saved):>12}{bytes_text(size.boundary):>12}")
    if table.busy > 1:
        lines.append(
            f"{table.busy} busy devices: layers take {percent_text(_slower(table, alone))} longer than one alone"
        )
    lines += [_link_line(link) for link in table.links]
    lines += [_own_line(row) for row in table.own_shards]
    return lines + [_torchs_line(row) for row in table.fully_sharded]


def _slower(table: CostTable, alone: Layers) -> float:
    busy = next(row for row in table.of(alone.tp, alone.recompute, table.busy) if row.samples == alone.samples)
    both = [sum(row.seconds["forward"]) + sum(row.seconds["backward"]) for row in (alone, busy)]
    return both[1] / both[0] - 1


def _own_line(row: OwnShards) -> str:
    again = ", recomputing," if row.recompute == "full" else ""
    times = f"{seconds_text(row.forward)} to a forward and {seconds_text(row.backward)} to a backward"
    return f"ZeRO-{row.zero}{again} adds {times} of {plural_text(row.samples, 'sample')}, beside its messages"


def _torchs_line(row: FullySharded) -> str:
    width = f" of tensor groups of {row.tp}" if row.tp > 1 else ""
    again = ", recomputing" if row.recompute == "full" else ""
    times = f"{seconds_text(row.forward)} to a forward and {seconds_text(row.backward)} to a backward"
    return f"fully_shard over {row.ranks} replicas{width}{again} adds {times}, {percent_text(row.work)} of it work"


def _link_line(link: Link) -> str:
    alpha, beta = link.time.line
    rate = f"{bytes_text(1 / beta)}/s" if beta else "-"
    return f"{link.what:<15} of {link.ranks} ranks: {seconds_text(alpha)} + bytes / ({rate})"
