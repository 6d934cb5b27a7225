"""`python -m parallel_core fit`: finds the most layers of a spec's model that fit, by real runs, and compares them with
the prediction."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_core.analysis.quantities import bytes_text, plural_text
from parallel_core.cli import own_text
from parallel_core.cli.common import (
    CommandError,
    Subparsers,
    add_command,
    add_no_progress,
    add_spec,
    read_spec,
    require_cores,
)
from parallel_core.cli.numbers import whole

if TYPE_CHECKING:
    from parallel_core.outcome import Outcome
    from parallel_core.plan.largest import Search
    from parallel_core.spec import RunSpec

MIB = 1 << 20


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    fit = add_command(
        commands,
        "fit",
        "find the most layers that fit, by real runs, next to the prediction",
        "examples/pp2.json --cap 24",
    )
    add_spec(fit, ", of a model with a layer count")
    fit.add_argument(
        "--cap",
        type=whole(1),
        metavar="MIB",
        required=True,
        help="MiB that a rank may hold; more ends it out of memory",
    )
    fit.add_argument("--json", action="store_true", help="print the result as JSON; trials go to stderr")
    own_text.add(fit)
    add_no_progress(fit)
    fit.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 0 found, 1 nothing fits, or a run failed for another reason than memory, 2 the request is
    invalid."""
    from parallel_core.local import LocalRunner
    from parallel_core.plan.capacity import fixed_depth
    from parallel_core.plan.largest import search_for

    text = own_text.name_of(options.text) if options.text else None
    spec, cap = read_spec(options.spec, corpus=text), options.cap * MIB
    if fixed := fixed_depth(spec.model):
        print(f"model.kind: {fixed}", file=sys.stderr)
        return 2
    if spec.train.device == "cpu":
        require_cores(spec.parallel.world, "parallel.dp x tp x pp makes")
    search = search_for(spec, cap)
    with (
        own_text.folder_of(spec, options.text, options.corpora) as corpora,
        tempfile.TemporaryDirectory(prefix="trainyard-fit-") as folder,
        LocalRunner() as runner,
    ):
        while (layers := search.following) is not None:
            trial = _trial(spec, layers, cap)
            where = Path(folder) / str(layers)
            outcome = runner.run(trial, where, corpora=corpora, no_progress_s=options.no_progress)
            if not outcome.ok and not _out_of_memory(outcome):
                print(outcome.failure(), file=sys.stderr)
                return 1
            line = f"{plural_text(layers, 'layer'):>12}  {'fits' if outcome.ok else outcome.failure()}"
            print(line, flush=True, file=sys.stderr if options.json else sys.stdout)
            search = replace(search, tried={**search.tried, layers: outcome.ok})
    print(json.dumps(_as_json(search, cap)) if options.json else _said(search, cap))
    return 1 if search.largest is None else 0


def _trial(spec: RunSpec, layers: int, cap: int) -> RunSpec:
    from pydantic import ValidationError

    from parallel_core.plan.largest import trial
    from parallel_core.spec import field_errors

    try:
        return trial(spec, layers, cap)
    except ValidationError as error:
        raise CommandError(f"{plural_text(layers, 'layer')}: {' '.join(field_errors(error).values())}") from error


def _out_of_memory(outcome: Outcome) -> bool:
    faults = [outcome.last(one.rank, "fault") for one in outcome.exits if one.code]
    return any(fault and fault["cause"] == "out_of_memory" for fault in faults)


def _as_json(search: Search, cap: int) -> dict[str, Any]:
    return {"layers": search.largest, "predicted": search.guess, "cap_bytes": cap, "tried": dict(search.tried)}


def _said(search: Search, cap: int) -> str:
    room = f"in {bytes_text(cap)} a rank; predicted {search.guess}"
    if search.largest is None:
        return f"nothing fits {room}"
    return f"{plural_text(search.largest, 'layer')} fit {room}"
