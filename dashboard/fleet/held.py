"""How much of the time of a fleet's devices was held by runs, and what of it brought nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dashboard.epoch import Epoch
from dashboard.runs.run_state import State, ended_as
from parallel_core.analysis.quantities import percent_text, significant

LOST = (State.FAILED, State.LOST)
HOUR = 3600.0


class Hold(NamedTuple):
    """One attempt: the number of its devices and when it held them, in seconds since 1970; `end` None = now. In the
    order of COLUMNS."""

    devices: int
    sent: float
    started: float | None
    end: float | None
    outcome: str
    cause: str
    kind: str | None
    """Of its study: a trial of a fit study that does not fit in memory is an answer and not lost."""


COLUMNS: tuple[str | Epoch, ...] = (
    "run__devices",
    *map(Epoch, ("sent_at", "started_at", "ended_at")),
    *("outcome", "cause", "run__study__kind"),
)


@dataclass(frozen=True)
class Held:
    """In device-seconds of a window of `hours`: what the devices `have`, and what was `held`; of that, what attempts
    held that failed or were `lost`, and what all held before their processes had started (`waited`)."""

    hours: int
    have: float
    held: float = 0.0
    lost: float = 0.0
    waited: float = 0.0

    @property
    def title(self) -> str:
        """The share in a sentence."""
        window = "hour" if self.hours == 1 else f"{self.hours} h"
        if not self.held:
            return f"No device was held in the last {window}."
        share, all_of = percent_text(min(1.0, self.held / self.have)), significant(self.have / HOUR)
        return (
            f"Devices were held {share} of the last {window}: {significant(self.held / HOUR)} of {all_of} device-hours."
        )

    @property
    def of_it(self) -> str:
        """What of it brought nothing, in a sentence; '' if all did."""
        parts = {
            "went to attempts that failed or were lost": self.lost,
            "passed before processes had started": self.waited,
        }
        said = [f"{percent_text(part / self.held)} {what}" for what, part in parts.items() if part]
        return f"Of the time held, {' and '.join(said)}." if said else ""


def held(attempts: Iterable[Hold], devices: int, since: float, now: float, hours: int) -> Held:
    """Sums over the attempts that held any of these `devices` after `since`."""
    total = lost = waited = 0.0
    for one in attempts:
        begin, end = max(one.sent, since), one.end or now
        took = one.devices * max(0.0, end - begin)
        total += took
        waited += one.devices * max(0.0, min(one.started or end, end) - begin)
        if _was_lost(one):
            lost += took
    return Held(hours, devices * (now - since), total, lost, waited)


def _was_lost(one: Hold) -> bool:
    """Whether it ended without what it was to give."""
    answer = one.kind == "fit" and one.cause == "out_of_memory"
    return ended_as(one.outcome, one.cause) in LOST and not answer
