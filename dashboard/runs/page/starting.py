"""The sentence on top of a run's page before its first step: where it starts, what it waits for; and ages of runs."""

from __future__ import annotations

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.ages import since, span
from dashboard.ledger.models import ProfileState
from dashboard.ledger.selectors import in_front, usual_wait
from dashboard.runs.attempts import Attempt, devices_text
from dashboard.runs.attempts_read import attempts_of
from dashboard.runs.models import Run
from parallel_core.analysis.quantities import seconds_text
from workers.contract import PROFILE_LIMIT_S


def starting(attempt: Attempt | None) -> tuple[str, str]:
    """Returns (sentence, more) for an attempt that was sent to its workers and has no rank at work yet."""
    if waits := _waits_for_a_profile(attempt):
        return waits
    phases = sorted(set(attempt.ranks.exclude(phase="").values_list("phase", flat=True))) if attempt else []
    return f"Starting {placed(attempt)}{': ' + ' and '.join(phases) if phases else ''}.", ""


def _waits_for_a_profile(attempt: Attempt | None) -> tuple[str, str] | None:
    """Says which profile occupies the attempt's devices, and for about how long; None if there is none."""
    if attempt is None or attempt.sent_at is None:
        return None
    profile = in_front(attempt).filter(state=ProfileState.ASKED).select_related("worker").order_by("id").first()
    if profile is None:
        return None
    name, usual = profile.worker.name, usual_wait(profile.worker.name)
    long = f"that usually takes {seconds_text(round(usual))} here" if usual else "that takes one to two minutes"
    asked = (timezone.now() - profile.asked_at).total_seconds()
    return (
        f"Waits for {name}, which times the layers of {profile.title} first: {long}.",
        f"The profile was asked for {span(asked)} ago, and is stopped after {PROFILE_LIMIT_S / 60:.0f} min at the "
        f"latest. This run then starts automatically {placed(attempt)}.",
    )


def placed(attempt: Attempt | None) -> str:
    """`on yard-a, devices 0 and 1`; for several hosts `on yard-a (device 0) and yard-b (device 0)`."""
    return f"on {devices_text(attempt.devices)}" if attempt and attempt.devices else "on a worker"


def age_text(run: Run) -> SafeString:
    """How long the run has been queued or running; or how long ago it ended, and how long it took if it started."""
    if run.ended_at:
        return format_html("ended {}{}", since(run.ended_at, "ago"), _took(run))
    began, first = run.started_at, run.first_started_at
    before = format_html(", first started {}", since(first, "ago")) if first and first != began else ""
    if began:
        this = " in this attempt" if before else ""
        return format_html("running for {}{}{}", since(began, "span"), this, before)
    return format_html("queued {}{}", since(run.queued_at, "ago"), before)


def _took(run: Run) -> str:
    """`, took 8.2 s`: how long the ranks of its attempts ran, all together; '' if none ever did. As their workers timed
    it, whatever was done to the clocks of hosts; of one that was lost, as the controller saw it."""
    ran = ((one.started_at, one.ended_at, one.report.get("ran_s")) for one in attempts_of(run))
    seen = ((timed, (end - begin).total_seconds()) for begin, end, timed in ran if begin and end)
    took = [timed if isinstance(timed, (int, float)) else max(0.0, between) for timed, between in seen]
    each = f" in {len(took)} attempts" if len(took) > 1 else ""
    return f", took {seconds_text(round(sum(took), 1))}{each}" if took else ""
