"""The sentence on top of a run's page for every state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dashboard.fleet.listening import away_sentence
from dashboard.runs import left_out, linking, resuming, selectors
from dashboard.runs.form.form_words import OF_ERRORS, in_ended_words
from dashboard.runs.generation import generated_text, text_times
from dashboard.runs.left_out import NO_SPACE, QUOTA
from dashboard.runs.models import ACTIVE, Attempt, Run, State
from dashboard.runs.page import losses, standing
from dashboard.runs.page.fix import fix
from dashboard.runs.page.shares import shares
from dashboard.runs.page.starting import placed, starting
from dashboard.runs.waiting.asking import queued_runs
from dashboard.runs.waiting.expected_start import expected_start, seconds_left
from dashboard.runs.waiting.own_ahead import OwnAhead, own_ahead
from dashboard.runs.waiting.turns import queue_order
from parallel_core.analysis.disturbance import is_disturbed
from parallel_core.analysis.meters import Work
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    one_of,
    percent_text,
    rate_text,
    seconds_text,
    significant,
    step_text,
    steps_text,
)
from parallel_core.faults import trained
from parallel_core.observe.progress import NO_STEPS
from parallel_core.outline import outline_of
from parallel_core.plan.strategy import idle_share
from parallel_core.schedule.text import under_way
from parallel_core.spec import RunSpec

LOG_LINES = 10
AHEAD_SHOWN = 5

CAUSES = {
    "user_code": "an error in the training code",
    "out_of_memory": "out of memory",
    "killed_by_signal": "killed by a signal",
    "worker_lost": "worker lost",
    "timed_out": "timed out",
    "no_progress": "no progress",
    "cancelled": "cancelled",
    "refused": "refused by the worker",
    "interrupted": "interrupted",
    "not_finite": "loss not finite",
    "time_limit": "time limit",
}


@dataclass(frozen=True)
class Verdict:
    """`sentence` first, `more` below it, then the `warning` of what would be lost; `ahead` = the last of the runs that
    are served before a queued one."""

    sentence: str
    more: str = ""
    warning: str = ""
    fix: str = ""
    rank: int | None = None
    log: str = ""
    traceback: str = ""
    traceback_label: str = "Traceback"
    ahead: list[Run] = field(default_factory=list)
    further: int = 0
    """Number of runs served before those."""
    own: OwnAhead | None = None
    """A study of its owner that keeps a queued run waiting."""
    holding: list[tuple[Run, str]] = field(default_factory=list)
    """Runs on the hosts that a queued run waits for, each with how long it will still take; '' if that is not known."""

    @property
    def does(self) -> str:
        """The first word of the fix, such as Resume or Clone: the page fills the button of that name."""
        return self.fix.partition(" ")[0]


def cause_of(run: Run) -> str:
    """Why the run ended, in few words; '' if it has not ended, or its state says why."""
    if run.state == State.LOST:
        return ""
    if NO_SPACE in run.detail:
        return "a full disk"
    if QUOTA in run.detail:
        return "a used-up disk quota"
    named = next((words for error, words in OF_ERRORS.items() if f"{error}: " in run.detail), "")
    return named or CAUSES.get(run.cause, run.cause)


def verdict(run: Run) -> Verdict:
    """The verdict for the run's present state; of one under way, also that nobody hears from it at present."""
    found = _verdict(run)
    away = away_sentence() if run.state in ACTIVE else ""
    return replace(found, more=" ".join(filter(None, (found.more, away)))) if away else found


def _verdict(run: Run) -> Verdict:
    attempt = selectors.attempt_of(run)
    if run.state == State.QUEUED:
        return _queued(run)
    if run.state == State.STARTING:
        return Verdict(*starting(attempt))
    if run.task and run.state in (State.RUNNING, State.SUCCEEDED):
        return Verdict(linking.sentence(run)) if run.between else _text(run)
    if run.state == State.RUNNING:
        return _running(run)
    if run.state == State.CANCELLING or (run.cancel_requested_at and run.ended_at is None):
        return Verdict("Stopping: its processes are asked to end, and are killed after 2 s.")
    if run.state == State.SUCCEEDED:
        return _succeeded(run)
    if run.state == State.CANCELLED:
        return _cancelled(run, attempt)
    return _failed(run, attempt)


def _text(run: Run) -> Verdict:
    """What it has generated, where the time of a token goes, and whether others disturbed it."""
    more = [text_times.sentence(run), _busy(run)]
    return Verdict(generated_text.sentence(run), more=" ".join(filter(None, more)))


def _queued(run: Run) -> Verdict:
    waiting = selectors.waiting(run)
    first = run.detail or waiting.sentence
    order = queue_order()[: waiting.ahead] if waiting.ahead else []
    ahead = queued_runs(order[-AHEAD_SHOWN:]) if order else []
    holding = selectors.on_hosts(waiting.hosts)
    more = " ".join(filter(None, (waiting.sentence if run.detail else "", expected_start(holding, order))))
    there = [(other, left_text(other)) for other in holding[:AHEAD_SHOWN]]
    own = own_ahead(run, order)
    return Verdict(first, more=more, ahead=ahead, further=waiting.ahead - len(ahead), own=own, holding=there)


def left_text(run: Run) -> str:
    """How long a running run will still take, `3 min left`; '' if no step has been timed, or none is left."""
    left = seconds_left(run)
    return f"{seconds_text(left)} left" if left else ""


def _running(run: Run) -> Verdict:
    spec = RunSpec.stored(run.spec)
    if run.step is None:
        return Verdict(f"Running {placed(selectors.attempt_of(run))}: no step is done yet.")
    parts = [f"{count_text(run.steps_done)} of {steps_text(spec.train.steps)}"]
    if run.step_time:  # from the median, as the time left is: the newest step may be untypical
        parts.append(rate_text(Work.of(spec).speeds(run.step_time, None)["tokens_per_s"], target_of(run)))
    elif run.tokens_per_s:
        parts.append(rate_text(run.tokens_per_s, target_of(run)))
    parts += filter(None, [left_text(run)])
    sentence = f"{losses.diverged(run)}{', '.join(parts)}{_bubble(run, spec)}."
    warnings = filter(None, (standing.sentence(run, selectors.attempt_of(run)), left_out.warning(run)))
    return Verdict(sentence, more=losses.skipped_updates(run), warning=" ".join(warnings))


def _bubble(run: Run, spec: RunSpec) -> str:
    """For a pipeline, the bubble's share of the newest traced step next to the planned one; else the share of what the
    ranks of that step lose most by."""
    if not (parts := shares(run)):
        return ""
    if spec.parallel.world == 1:
        return f"; {percent_text(parts['compute'])} of the step is compute"
    if spec.parallel.pp == 1 and parts["bubble"] > parts["communication"]:
        return f"; {percent_text(parts['bubble'])} of the step is bubble"
    if spec.parallel.pp == 1:
        return f"; {percent_text(parts['communication'])} of the step is communication not hidden"
    planned = percent_text(planned_bubble(spec))
    whose = f"planned {planned}" if trained(spec).parallel.cuts is None else f"{planned} with equal stages"
    return f"; {percent_text(parts['bubble'])} of the step is pipeline bubble ({whose})"


def planned_bubble(spec: RunSpec) -> float:
    """Idle share of an evenly cut pipeline's step: (p - 1) / (m + p - 1) for 1F1B (Huang et al. 2019)."""
    idle = idle_share(spec.parallel)
    return idle / (1 + idle)


def _succeeded(run: Run) -> Verdict:
    timed = run.summary.get("timed")
    early = f"{in_ended_words(run.detail, run.cause)} " if run.cause == "time_limit" else ""
    if not timed:
        return Verdict(f"{early}{losses.diverged(run)}{steps_text((run.step or 0) + 1)} done; none was timed.")
    spread = f"{seconds_text(timed['p10'])} to {seconds_text(timed['p90'])} over {timed['n']} timed steps"
    first = f"{seconds_text(timed['median'])} a step ({spread if timed['n'] > 1 else 'the only one that was timed'})"
    if timed["median"] > 0:
        rate = RunSpec.stored(run.spec).tokens_per_step / timed["median"]
        first += f", {rate_text(rate, target_of(run))}"
    memory = run.summary.get("memory")
    second = f" Rank {memory['rank']} held most: {bytes_text(memory['peak_total'])}." if memory else ""
    risen = losses.diverged(run) or losses.rise(run)
    ending = "" if risen and not run.summary.get("held_out") else losses.final_losses(run)
    more = [losses.skipped_updates(run), _busy(run), lateness(run.summary.get("staleness") or {})]
    return Verdict(f"{early}{risen}{first}.{second}{ending}", more=" ".join(part for part in more if part))


UNKNOWN_OTHERS = (
    "How much of its devices other processes used before it was restarted is not known: read the timing with care."
)


def _busy(run: Run) -> str:
    """What is known of other processes on the run's devices, if that is a reason for care; else ''."""
    if run.summary.get("others_missing"):
        return UNKNOWN_OTHERS
    if count := run.summary.get("other_processes"):
        what = f"Other processes on one of its GPUs: {count}"
        return f"{what}; whether they used it is not known, so read the timing with care."
    return disturbance(run.summary.get("cpu_others"), run.devices)


def disturbance(others: float | None, devices: int) -> str:
    """A warning if other processes used more than a tenth of one of the `devices` (`others` = their share); else ''."""
    if others is None or not is_disturbed(others):
        return ""
    return f"Other processes used {percent_text(others)} of {one_of(devices)}: read the timing with care."


def lateness(stages: Mapping[str, Mapping[str, float]]) -> str:
    """How many updates late the gradients were on each stage; '' if the pipeline flushes."""
    if not stages:
        return ""
    parts = [
        f"{significant(late['mean'])} on stage {stage} (at most {late['max']:.0f})" for stage, late in stages.items()
    ]
    return f"Mean staleness of gradients, in updates of the weights: {', '.join(parts)}."


def _cancelled(run: Run, attempt: Attempt | None) -> Verdict:
    if attempt is None:
        return Verdict("Cancelled before it started; it used no device.")
    if run.generates:
        done = max((sample.done for sample in generated_text.texts(run)), default=0)
        return Verdict(f"Cancelled after {done} of {run.task['new']} tokens.")
    before = "" if run.between else " before its first step"
    at = f" after {steps_text(run.steps_done)}" if run.steps_done else before
    gone = " No process is left." if attempt.report.get("none_left") else ""
    kept = [] if run.between else resuming.sound(run)
    more = f"“Resume as…” goes on from its checkpoint after {steps_text(kept[-1])}." if kept else ""
    return Verdict(f"Cancelled{at}.{gone}", more=more)


PROBED = "That is the answer this run was for: its fit study asked whether so many layers fit. Nothing is to be mended."


def _failed(run: Run, attempt: Attempt | None) -> Verdict:
    report: dict[str, Any] = attempt.report if attempt else {}
    rank = report.get("rank") if run.cause != "no_progress" or not attempt else standing.held_up_by(run, attempt)
    unsaid = f"It ended without saying why; known cause: {CAUSES.get(run.cause, 'none')}"
    sentence = in_ended_words(run.detail, run.cause) or unsaid
    text = selectors.log(run, rank or 0, start=-4096).text
    return Verdict(
        sentence if sentence.endswith((".", "!", "?")) else f"{sentence}.",
        more=PROBED if run.answered else _progress(run, attempt, report.get("rank")),
        fix="" if run.answered else fix(run),
        rank=rank,
        log="\n".join(text.splitlines()[-LOG_LINES:]),
        traceback=str(report.get("traceback") or ""),
        traceback_label="Where each rank stood" if run.cause == "no_progress" else "Traceback",
    )


def _progress(run: Run, attempt: Attempt | None, rank: int | None) -> str:
    """Where the failing rank was last seen, unless the run's sentence, which is newer than a heartbeat, says it, or
    the rank ended the run itself, between two steps."""
    where = attempt.progress.get(str(rank)) if attempt and rank is not None else None
    if not where or "at step " in run.detail or run.cause == "not_finite":
        return ""
    if where.get("step", 0) == NO_STEPS:
        return f"Rank {rank} was last seen while it measured {where.get('op')}."
    if where.get("step", 0) < 0:
        return f"Rank {rank} was last seen {where.get('op') or 'starting'}, before its first step."
    doing = under_way(where.get("op") or "no operation")
    return f"Rank {rank} was last seen at {step_text(where.get('step', 0))} in {doing}."


def target_of(run: Run) -> str:
    """What a run's speed counts: tokens, images, or positions (tokens and padding)."""
    return outline_of(RunSpec.stored(run.spec).model).target
