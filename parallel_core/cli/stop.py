"""The end of a run by Ctrl-C, SIGTERM or the loss of its terminal: how long it may save, and what it has saved."""

from __future__ import annotations

import argparse
import os
import signal
from types import FrameType

from parallel_core.analysis.quantities import plural_text
from parallel_core.checkpoint import folder as folders
from parallel_core.cli.common import CommandError
from parallel_core.cli.numbers import above
from parallel_core.cli.output import say
from parallel_core.launch import EXIT_STOPPED
from parallel_core.outcome import Outcome

SWITCH, SAVE_S = "TRAINYARD_SAVE_S", 60.0
"""Environment variable with the seconds that a stopped run has to save, and its default."""


def listen() -> None:
    """Makes SIGTERM, which a batch system sends before it kills, and SIGHUP, which a lost terminal sends, act like
    Ctrl-C, so that ranks save and exit. A SIGHUP that is ignored stays so: that is what `nohup` asks for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def _hang_up(number: int, frame: FrameType | None) -> None:
    """Acts like Ctrl-C once: the kernel sends one when a terminal goes, and so may its shell."""
    _ignore_hang_up()
    raise KeyboardInterrupt


def _ignore_hang_up() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def save_s() -> float:
    """Returns the seconds that the ranks of a stopped run have to save. Raises CommandError."""
    try:
        return above(0)(os.environ.get(SWITCH, str(SAVE_S)))
    except argparse.ArgumentTypeError as error:
        raise CommandError(f"{SWITCH}: {error}") from error


def announce(seconds: float) -> None:
    """Says what happens after the first Ctrl-C. A terminal that is lost from now on does not count as a second one."""
    _ignore_hang_up()
    first = f"stopping: the ranks save first, which may take {seconds:g} s at most ({SWITCH})"
    say(f"{first}; Ctrl-C again ends them at once", error=True)


def left(outcome: Outcome) -> str:
    """Returns what a stopped run has saved, if anything."""
    found = folders.newest(outcome.folder / folders.CHECKPOINTS)
    if found is None:
        return "nothing was saved"
    path, manifest = found
    if outcome.exits and all(one.code in (0, EXIT_STOPPED) for one in outcome.exits):
        return f"saved after {plural_text(manifest.step, 'step')}: {path}"
    return f"nothing was saved since step {manifest.step}: {path}"
