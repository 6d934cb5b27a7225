"""How far off a what-if may be: the step that a run with the change would have, in a range."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dashboard.ledger.replay_ranges import off_by
from dashboard.runs.models import Run
from dashboard.runs.places import together_of
from dashboard.runs.tracing.traces import Trace
from parallel_core.analysis.quantities import percent_text, range_text, step_text
from parallel_core.simulate.likely import REPLAYED
from parallel_core.simulate.replay import Change, Replay


class Likely(NamedTuple):
    """`text` says in a sentence how far off the prediction may be; `low` and `high` are ns between which eight of ten
    runs with the change are, None where too few are known."""

    text: str = ""
    low: float | None = None
    high: float | None = None


UNKNOWN = Likely()
"""Of changes that no run can have, as of faster links, and of none."""


def can_run(change: Change) -> bool:
    """Whether a run can have the change: of schedule, micro-batches, or early gradients alone."""
    plain = Change()
    return change != plain and replace(change, schedule="", micro_batches=0, early_gradients=False) == plain


def likely(trace: Trace, change: Change, made: Replay) -> Likely:
    """That of the step `made` with the change; it is of a run's median, however long the replayed step was. None of a
    run whose ranks share devices: no run settles such a prediction (`ledger.replays`), which is too fast."""
    before = trace.trained.parallel.micro_batches
    recounted = bool(change.micro_batches) and change.micro_batches != before
    if not can_run(change) or trace.run.injected or together_of(trace.run) > 1:
        return UNKNOWN
    found = off_by(trace.run, recounted)
    if found is None:
        return Likely(_elsewhere(recounted) if trace.trained.train.device == "cpu" else "")
    timed = (trace.run.summary or {}).get("timed")
    median = timed["median"] if timed else trace.measured.step / 1e9
    seconds = median * made.step / trace.measured.step
    words = f"Run with this change, {found.text(seconds)}."
    return Likely(words, found.low * seconds * 1e9, found.high * seconds * 1e9)


def _elsewhere(recounted: bool) -> str:
    mean, worst = REPLAYED[recounted]
    what = "Other numbers of micro-batches" if recounted else "Other schedules"
    return (
        f"{what} were predicted {percent_text(mean)} off in the mean, {percent_text(worst)} at worst, on other hosts "
        f"whose cores trained both in turns. From one run to the next a host may change its pace by more."
    )


def which_step(trace: Trace, asked: int | None, newest: int | None) -> str:
    """Which step is replayed, where nobody `asked` for one and it is not the newest, in a sentence; else ''."""
    if asked is not None or trace.step == newest:
        return ""
    return f"{step_text(trace.step).capitalize()} is replayed, the traced one nearest to the median."


def spread_text(run: Run) -> str:
    """Within which times eight of ten timed steps of the run were, in a sentence; '' while it is not known."""
    timed = (run.summary or {}).get("timed")
    return f"Eight of ten timed steps of the run took {range_text(timed['p10'], timed['p90'])}." if timed else ""
