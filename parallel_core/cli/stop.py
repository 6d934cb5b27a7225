"""The end of a run by Ctrl-C or SIGTERM on the command line: how long it may save, and what it has saved."""

from __future__ import annotations

import argparse
import os
import sys

from parallel_core.checkpoint import folder as folders
from parallel_core.cli.common import CommandError
from parallel_core.cli.numbers import above
from parallel_core.launch import EXIT_STOPPED
from parallel_core.local import Outcome

SWITCH, SAVE_S = "TRAINYARD_SAVE_S", 60.0
"""Environment variable with the seconds that a stopped run has to save, and its default."""


def save_s() -> float:
    """Returns the seconds that the ranks of a stopped run have to save. Raises CommandError."""
    try:
        return above(0)(os.environ.get(SWITCH, str(SAVE_S)))
    except argparse.ArgumentTypeError as error:
        raise CommandError(f"{SWITCH}: {error}") from error


def announce(seconds: float) -> None:
    """Says what happens after the first Ctrl-C."""
    first = f"stopping: the ranks save first, which may take {seconds:g} s at most ({SWITCH})"
    print(f"{first}; Ctrl-C again ends them at once", file=sys.stderr)


def left(outcome: Outcome) -> str:
    """Returns what a stopped run has saved, if anything."""
    found = folders.newest(outcome.folder / folders.CHECKPOINTS)
    if found is None:
        return "nothing was saved"
    path, manifest = found
    if outcome.exits and all(code in (0, EXIT_STOPPED) for _, code in outcome.exits):
        return f"saved after {manifest.step} steps: {path}"
    return f"nothing was saved since step {manifest.step}: {path}"
