"""`python -m parallel_core order`: finds the best pipeline order for a run, with its measured costs where there is a
profile."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parallel_core.analysis.quantities import bytes_text, most_percent_text, seconds_text
from parallel_core.cli.common import CommandError, Subparsers, add_command, add_spec, read_spec, require_few
from parallel_core.cli.numbers import above, target, whole

if TYPE_CHECKING:
    from parallel_core.plan.orders.measured import Ordered
    from parallel_core.plan.orders.search import FoundOrder
    from parallel_core.spec import RunSpec

MOST_SEARCHED = 32_768
"""Most operations of an order that is searched; more would take minutes."""


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    order = add_command(
        commands,
        "order",
        "find the best pipeline order of a spec, and write it as a spec",
        "examples/pp2.json --table costs --keep 2 --out best.json",
    )
    add_spec(order, " with pp > 1")
    order.add_argument(
        "--table", type=Path, metavar="FILE", help="what `profile --out` wrote (default: F = B = W, messages free)"
    )
    order.add_argument("--keep", type=above(0), help="micro-batches that a rank may keep (default: pp, as 1F1B)")
    order.add_argument(
        "--effort", type=whole(1), default=1_000_000, help="operations timed in the search (default: 1000000)"
    )
    form = order.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print the order alone, as PyTorch spells it")
    form.add_argument("--json", action="store_true", help="print the orders as JSON, in seconds and bytes, or in units")
    order.add_argument(
        "--out", type=target, metavar="FILE", help="write the fastest within --keep as a spec that `train` takes"
    )
    order.set_defaults(run=run)


class _Answer(NamedTuple):
    """The spec with the order that was chosen; all orders in lines of text, and as rows for scripts."""

    best: RunSpec
    lines: list[str]
    rows: list[dict[str, Any]]


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 0 found, 2 the request is invalid. Raises CommandError."""
    from parallel_core.plan.orders.problem import OrderError
    from parallel_core.profile.table import CostTableError
    from parallel_core.simulate.cost_requirements import CannotPredict

    spec = read_spec(options.spec)
    if spec.parallel.pp < 2:
        print("parallel.pp=1: there is nothing to order; use 2 or more.", file=sys.stderr)
        return 2
    if spec.parallel.replicas is not None:
        raise CommandError(
            "parallel.replicas: orders are searched for equal replicas of all stages; use parallel.dp instead."
        )
    require_few(spec, MOST_SEARCHED, "search")
    try:
        answer = _in_units(spec, options) if options.table is None else _measured(spec, options)
    except OrderError as error:
        raise CommandError(str(error).replace("limit: ", "--keep: ", 1)) from error
    except (CostTableError, CannotPredict) as error:
        print(error, file=sys.stderr)
        return 2
    _print(answer, options)
    if options.out is not None:
        options.out.write_text(json.dumps(answer.best.model_dump(mode="json"), indent=1) + "\n")
    return 0


def _print(answer: _Answer, options: argparse.Namespace) -> None:
    if options.csv:
        print(_csv(answer.best).rstrip())
    elif options.json:
        print(json.dumps(answer.rows))
    else:
        print("\n".join(answer.lines))


def _in_units(spec: RunSpec, options: argparse.Namespace) -> _Answer:
    """Finds the order for F = B = W."""
    from parallel_core.plan.orders.problem import Problem
    from parallel_core.plan.orders.search import find, known_lengths
    from parallel_core.schedule.table import to_csv
    from parallel_core.schedule.traits import CUSTOM

    split = spec.parallel
    keep = split.pp if options.keep is None else options.keep
    problem = Problem.uniform(split.pp, split.micro_batches, (1000, 1000, 1000), limit=keep)
    made = find(problem, options.effort)
    chosen = _allowed(spec, CUSTOM, to_csv(made.schedule))
    known = {name: length / 1000 for name, length in known_lengths(problem).items() if length is not None}
    rows: list[dict[str, Any]] = [{"name": name, "units": units, "found": False} for name, units in known.items()]
    rows.append({"name": "found", "units": made.length / 1000, "found": True, "least_units": made.bound / 1000})
    return _Answer(chosen, [*(f"{row['units']:8.1f} units  {row['name']}" for row in rows), _proof(made)], rows)


def _allowed(spec: RunSpec, name: str, program: str | None = None) -> RunSpec:
    """The run under another schedule. Raises CommandError where it cannot have it."""
    from pydantic import ValidationError

    from parallel_core.plan.orders.measured import with_schedule
    from parallel_core.spec import field_errors

    try:
        return with_schedule(spec, name, program)
    except ValidationError as error:
        raise CommandError(
            f"No order found for this run could run: {' '.join(field_errors(error).values())}"
        ) from error


def _measured(spec: RunSpec, options: argparse.Namespace) -> _Answer:
    from parallel_core.plan.orders.measured import SHAPES, ordered
    from parallel_core.profile.table import CostTable

    rows = ordered(spec, CostTable.read(options.table), options.keep, options.effort)
    if not any(row.found for row in rows):
        for like in SHAPES.values():
            _allowed(spec, like)
        raise CommandError("No order found for this run may replace its schedule.")
    room = spec.parallel.pp if options.keep is None else options.keep
    best = next(row.spec for row in rows if _kept(row.spec) <= room or row.found)
    return _Answer(best, [_line(row, room) for row in rows], [_as_json(row) for row in rows])


def _as_json(row: Ordered) -> dict[str, Any]:
    numbers = {"seconds": row.seconds, "memory_bytes": row.memory, "keeps": _kept(row.spec)}
    return {"name": row.name, **numbers, "found": row.found is not None}


def _kept(spec: RunSpec) -> float:
    """Most micro-batches that a rank keeps, in units of its share of the model."""
    from parallel_core.schedule import plain
    from parallel_core.schedule.peaks import peak_kept

    return max(peak_kept(plain(spec.parallel))) / spec.parallel.chunks_per_rank


def _csv(spec: RunSpec) -> str:
    from parallel_core.schedule import plain
    from parallel_core.schedule.table import to_csv

    return to_csv(plain(spec.parallel))


def _line(row: Ordered, room: float) -> str:
    proof = f"  {_proof(row.found)}" if row.found else ""
    kept = _kept(row.spec)
    over = f"  keeps {kept:g} micro-batches, more than --keep" if not row.found and kept > room else ""
    return f"{seconds_text(row.seconds):>10}  {bytes_text(row.memory):>9}  {row.name}{proof}{over}"


def _proof(found: FoundOrder) -> str:
    if found.length <= found.bound:
        return f"proven: no order {found.laid} is shorter"
    return f"{most_percent_text(found.gap)} from the shortest"
