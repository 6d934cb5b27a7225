"""`python -m parallel_core profile` and `predict`: measures the cost of layers and links, and predicts step times."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parallel_core import limits
from parallel_core.analysis.quantities import bytes_text, listed_text, percent_text, plural_text, seconds_text
from parallel_core.cli.common import Subparsers, add_command, add_no_progress, add_spec, read_spec, require_cores
from parallel_core.cli.numbers import above, target, whole

if TYPE_CHECKING:
    from parallel_core.plan.memory import Feasibility
    from parallel_core.profile.curves import Link
    from parallel_core.profile.table import CostTable, FullySharded, Layers, OwnShards
    from parallel_core.spec import RunSpec


def add(commands: Subparsers) -> None:
    """Adds the commands to the parser of the engine."""
    profile = add_command(
        commands,
        "profile",
        "time the layers of a spec's model, and this host's links",
        "examples/pp2.json --out costs",
    )
    add_spec(profile, ": its model, batch, precision and device")
    profile.add_argument("--out", type=target, metavar="FILE", help="write the cost table to this file, as JSON")
    profile.add_argument(
        "--ranks", type=whole(1, limits.MAX_DEGREE), help="ranks that links are timed between (default: 4, GPUs: all)"
    )
    profile.add_argument(
        "--seconds", type=above(0), default=2.0, help="seconds for each condition of the layers, at least (default: 2)"
    )
    add_no_progress(profile)
    profile.add_argument("--json", action="store_true", help="print the cost table as JSON")
    profile.add_argument("--quick", action="store_true", help="no tensor groups and no recomputation")
    profile.set_defaults(run=_profile)
    predict = add_command(
        commands,
        "predict",
        "predict how long a step of a spec takes, by a cost table, and its memory",
        "examples/pp2.json --table costs --memory 300",
        "examples/pp2.json --table costs --cut better.json",
    )
    add_spec(predict)
    predict.add_argument("--table", type=Path, metavar="FILE", required=True, help="what `profile --out` wrote")
    predict.add_argument(
        "--cut",
        type=target,
        metavar="OUT",
        help="move the cuts between stages while that shortens the step; write the spec",
    )
    predict.add_argument("--memory", type=whole(1), metavar="MIB", help="of a device: say whether the spec fits")
    predict.add_argument("--json", action="store_true", help="print the prediction as JSON, in seconds and bytes")
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
    from parallel_core.simulate.cost_requirements import CannotPredict

    spec = read_spec(options.spec)
    try:
        table = CostTable.read(options.table)
        said = _cut(spec, table, options.cut) if options.cut is not None else _step(spec, table)
    except (CostTableError, CannotPredict) as error:
        print(error, file=sys.stderr)
        return 2
    needs = _needs(said.spec, options.memory)
    if options.json:
        memory = {"memory_bytes": needs.total or None, "rank": needs.worst_rank, "fits": needs.fits}
        print(json.dumps({**said.numbers, **memory}))
    else:
        print(f"{said.text}\n{needs.sentence}")
    return 0


class _Said(NamedTuple):
    """A predicted step: in words, as numbers, and the spec that it is of."""

    text: str
    numbers: dict[str, Any]
    spec: RunSpec


def _step(spec: RunSpec, table: CostTable) -> _Said:
    from parallel_core.simulate.beyond import beyond
    from parallel_core.simulate.likely import elsewhere_text
    from parallel_core.simulate.predict import predict_step

    found, guessed = predict_step(spec, table), beyond(spec, table)
    text = f"{seconds_text(found.seconds)} a step{f'; {elsewhere_text(*found.likely)}' if found.likely else ''}"
    text += f"\nExtrapolated: {listed_text(guessed)}." if guessed else ""
    return _Said(text, {"seconds": found.seconds, "range": found.likely, "extrapolated": guessed}, spec)


def _needs(spec: RunSpec, mib: int | None) -> Feasibility:
    """Returns what the fullest rank needs, and whether it fits on a device of so many MiB, or under the spec's cap."""
    from parallel_core.plan.memory import verdict
    from parallel_core.plan.room import Room

    return verdict(spec, Room.on(mib << 20 if mib else None, spec.train.device))


def _cut(spec: RunSpec, table: CostTable, out: Path) -> _Said:
    """Writes the spec with the best cuts to `out`, and returns what they make of a step."""
    from parallel_core.simulate.cuts import best_cuts

    found = best_cuts(spec, table)
    out.write_text(found.spec.model_dump_json(indent=1) + "\n")
    cuts = found.spec.parallel.cuts or ()
    where = ", ".join(map(str, cuts)) or "no cut"
    text = (
        f"{seconds_text(found.seconds)} a step, cut at {where}; {seconds_text(found.before)} before. Written to {out}."
    )
    return _Said(text, {"seconds": found.seconds, "before": found.before, "cuts": cuts}, found.spec)


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
