"""What the commands share: their error, and reading specs and checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from parallel_core import json_text
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.manifest import CheckpointError, Manifest
from parallel_core.checkpoint.verify import verified
from parallel_core.cli.numbers import above
from parallel_core.faults import parse
from parallel_core.limits import NO_PROGRESS_S
from parallel_core.observe.cores import cores
from parallel_core.spec import RunSpec, field_errors

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What argparse's add_subparsers returns, to which a command adds its parser; it has no public name."""
PROGRAM = "python -m parallel_core"
MOST_RANKS = 2_048
"""Most pipeline ranks of a schedule whose programs are computed in full."""


RANKS_A_CORE = 32
"""Most ranks that may share a core of this host: each is a process, whose share of the core falls with their number."""


class CommandError(Exception):
    """The user's input cannot be used; the message says why."""


def add_command(commands: Subparsers, name: str, about: str, *examples: str) -> argparse.ArgumentParser:
    """Adds a command. `about` is its line in the list of commands, and heads its own help, which ends with the
    `examples`: arguments of the command."""
    lines = "".join(f"\n  {PROGRAM} {name} {example}".rstrip() for example in examples or ("",))
    return commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example{'s' if len(examples) > 1 else ''}:{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_spec(command: argparse.ArgumentParser, note: str = "") -> None:
    """Adds the argument for the spec; `note`: what of it counts, or has to hold."""
    command.add_argument("spec", type=Path, help=f"a RunSpec as JSON{note} ('-' reads stdin)")


def read_spec(path: Path, inject: Sequence[str] = (), corpus: str | None = None) -> RunSpec:
    """Returns the RunSpec in a JSON file, with additional faults in the syntax of the command line, and with the text
    `corpus` in place of its own unless that is None.

    Raises CommandError with one line per invalid field.
    """
    given = _json(path)
    if corpus is not None:
        _put_corpus(given, corpus)
    faults = [_fault(text) for text in inject]
    if faults and isinstance(given, dict) and isinstance(own := given.get("inject", []), list):  # else it is invalid
        given["inject"] = own + faults
    try:
        return RunSpec.model_validate(given)
    except ValidationError as error:
        lines = [f"{path} cannot be trained:", *(f"  {name}: {why}" for name, why in field_errors(error).items())]
        raise CommandError("\n".join(lines)) from error


def _put_corpus(given: Any, corpus: str) -> None:
    """Raises CommandError where the spec names a token file: a model with its own tokens cannot read text as bytes."""
    train = given.setdefault("train", {}) if isinstance(given, dict) else None
    if not isinstance(train, dict):
        return  # it is invalid
    if str(own := train.get("corpus", "")).startswith("tokens:"):
        raise CommandError(f"--text is read as bytes, and the spec's corpus {own} are tokens; see pack-tokens")
    train["corpus"] = corpus


def _json(path: Path) -> Any:
    """Parses a JSON file, or the standard input for `-`. Raises CommandError."""
    try:
        return json_text.read(sys.stdin.read() if str(path) == "-" else path.read_text())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(f"{path} is no spec: {error}") from error
    except RecursionError as error:
        raise CommandError(f"{path} is no spec: its lists stand too deep in each other") from error


def _fault(text: str) -> dict[str, str]:
    try:
        return parse(text)
    except ValueError as error:
        raise CommandError(f"--inject: {error}") from error


def checkpoint_of(path: Path) -> tuple[Path, Manifest]:
    """Returns the checkpoint that `path` refers to: of a run's folder the newest with every byte as it was saved.

    Raises CommandError where there is none, or it is damaged."""
    try:
        found, manifest, passed = folders.resolve(path, verified)
    except CheckpointError as error:
        raise CommandError(f"{path} cannot be used: {error}") from error
    print("".join(f"passed over: {why}\n" for why in passed.values()), end="", file=sys.stderr)
    return found, manifest


def add_no_progress(command: argparse.ArgumentParser) -> None:
    """Adds the option for how long no rank may move."""
    still = "end the run when no rank has moved for so long (default: %(default)g)"
    command.add_argument("--no-progress", type=above(0), default=NO_PROGRESS_S, metavar="SECONDS", help=still)


def require_cores(ranks: int, what: str) -> None:
    """Raises CommandError where so many ranks are too many for the cores of this host; `what` makes them, in words."""
    count = len(cores())
    if ranks > (most := RANKS_A_CORE * count):
        raise CommandError(
            f"{what} {ranks:,} ranks, and the {count} cores of this host take turns for {most} at most; use fewer"
        )


def require_few(spec: RunSpec, most: int, verb: str) -> None:
    """Raises CommandError where a step has more than `most` forwards and backwards, or more than MOST_RANKS pipeline
    ranks."""
    split = spec.parallel
    ranks, each = sum(split.copies), 2 * split.stages * split.dp
    if ranks > MOST_RANKS:
        raise CommandError(
            f"parallel.dp, parallel.pp: {ranks} pipeline ranks are too many to {verb}; use at most {MOST_RANKS}."
        )
    if (count := each * split.micro_batches) > most:
        fewer = max(1, most // each)
        raise CommandError(f"parallel.micro_batches: {count} operations are too many to {verb}; use at most {fewer}.")
