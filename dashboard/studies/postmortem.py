"""The post-mortem of a scenario that breaks: what the rules find in its broken run, and what the proof run shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.runs.findings import case_of
from dashboard.runs.form.form_words import in_form_words
from dashboard.runs.models import ENDED
from dashboard.studies.breakages import BEFORE, BROKEN, BY_KEY, KIND, NAMES, PROOF, Breakage
from dashboard.studies.models import Study
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.breakdown import PARTS
from parallel_core.analysis.diagnosis import Case, Finding, diagnose, disturbed
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.quantities import percent_text, ratio_text, seconds_text, signed_percent_text, significant
from parallel_core.simulate.replay import Change, replay

NOT_SEEN = "The symptom did not come up on these devices."
_LOST = {True: "bubble", False: "communication not hidden"}
"""Whether the proof is a pipeline -> the part of its step that is compared (`breakdown.PARTS`)."""


@dataclass(frozen=True)
class Postmortem:
    """`findings` of the broken run, compared with the run before: first those that the scenario is about, then the
    others.

    `proof` says what the change did, '' until it has ended; `disturbed` that other processes used the devices, else ''.
    """

    breakage: Breakage
    broken: Row
    findings: list[Finding]
    proof: str
    proof_run: Row
    waits: str = ""
    """What has to end before anything can be said; '' once it has."""
    disturbed: str = ""

    @property
    def proof_name(self) -> str:
        """The proof run's label without the word in front of it."""
        return self.proof_run.entry.label.removeprefix(f"{NAMES[PROOF]}: ")

    @property
    def proof_ended(self) -> bool:
        return self.proof_run.run.state in ENDED

    @property
    def causes(self) -> list[Finding]:
        """The findings that the scenario is about."""
        return [finding for finding in self.findings if finding.rule in self.breakage.about]

    @property
    def headline(self) -> str:
        """What the scenario was made to find, for a list; '' while that is not known."""
        if self.waits:
            return ""
        return " ".join(in_form_words(cause.title) for cause in self.causes) or NOT_SEEN

    @property
    def not_seen(self) -> str:
        """What stands in place of causes where there are none."""
        return "" if self.waits or self.causes else NOT_SEEN

    @property
    def besides(self) -> list[Finding]:
        """The other findings."""
        return [finding for finding in self.findings if finding.rule not in self.breakage.about]


def of_study(study: Study, view: Overview) -> Postmortem | None:
    """The post-mortem; None for any other study, or if one of its three runs was deleted."""
    breakage = BY_KEY.get(study.settings.get("scenario", "")) if study.kind == KIND else None
    rows = {row.run.position: row for row in reversed(view.rows)}  # what is done, not its repetition under way
    if breakage is None or not {BEFORE, BROKEN, PROOF} <= set(rows):
        return None
    before, broken, proof = (rows[i] for i in (BEFORE, BROKEN, PROOF))
    if broken.run.state not in ENDED:
        return Postmortem(breakage, broken, [], "", proof, "The broken run has not ended yet.")
    case = case_of(broken.run, before.run if before.entry.done else None)
    found = _found(case, breakage)
    said = _proof(breakage, case, broken, proof) if proof.entry.done else ""
    return Postmortem(breakage, broken, found, said, proof, disturbed=_noise((before, broken, proof)))


def _noise(rows: Sequence[Row]) -> str:
    """How much of a device others used in the worst of the compared runs; '' if little."""
    taken = [others for row in rows if (others := row.entry.others or 0.0) > DISTURBED_ABOVE]
    if not taken:
        return ""
    most = f"{'Up to ' * (len(taken) > 1)}{percent_text(max(taken))}"
    return f"{most} of the time of one device went to other processes, in {len(taken)} of {len(rows)} runs."


def _found(case: Case, breakage: Breakage) -> list[Finding]:
    """The findings of a run, those that the scenario is about first, the others by their cost.

    Those of the scenario, and what was lost compared with the run before, are looked for even on busy devices, because
    the effect was made large.
    """
    found = [one for one in diagnose(case, (*breakage.about, "scaling")) if one.rule != "disturbed"]
    places = {rule: i for i, rule in enumerate(breakage.about)}
    return sorted(found, key=lambda one: places.get(one.rule, len(places)))


def _proof(breakage: Breakage, case: Case, broken: Row, proof: Row) -> str:
    """Step time, waits, loss and findings of the run with the change; `case` = the broken one."""
    after = case_of(proof.run)
    left = _found(after, breakage)
    parts = [f"{seconds_text(proof.entry.traced_median)} a step" if proof.entry.traced_median else "it ended"]
    if broken.entry.traced_median and proof.entry.traced_median:
        parts[0] += (
            f", {ratio_text(broken.entry.traced_median / proof.entry.traced_median)} the speed of the broken run"
        )
    if (foreseen := _foreseen(case, proof)) and proof.entry.traced_median:
        error = signed_percent_text(foreseen / proof.entry.traced_median - 1)
        parts.append(f"a replay of the broken step predicts {seconds_text(foreseen)} ({error})")
    if case.traced and after.traced:
        # Over all traced steps, as in the evidence, and not of the one step that the charts show.
        words = _LOST[proof.spec.parallel.pp > 1]
        now, then = (percent_text(one.share(*dict(PARTS)[words])) for one in (after, case))
        parts.append(f"{words} {now} instead of {then}")
    if proof.run.loss is not None:
        parts.append(f"last loss {significant(proof.run.loss)}{_instead(broken.run.loss, proof.run.loss)}")
    skipped = "" if disturbed.check(after) is None else ", but most that judge times were left out"
    parts.append(f"the rules find nothing{skipped}" if not left else f"the rules still find: {left[0].title}")
    return "; ".join(parts).removesuffix(".") + "."


def _foreseen(case: Case, proof: Row) -> float | None:
    """Seconds of a step of the proof by replaying a typical one of the broken run, if they differ only in the program;
    else None."""
    split, now = case.spec.parallel, proof.spec.parallel
    change = Change(
        schedule=now.schedule if now.schedule != split.schedule else "",
        micro_batches=now.micro_batches if now.micro_batches != split.micro_batches else 0,
    )
    if split.pp == 1 or case.typical is None:
        return None
    try:
        made = replay(case.spec, case.typical, change)
    except ValueError:  # too long, or no valid run has that change
        return None
    return made.step / 1e9 if made.spec.parallel == now else None


def _instead(loss: float | None, of: float) -> str:
    """The broken run's last loss, if it differs."""
    if loss is None or math.isclose(loss, of, rel_tol=0.01):
        return ""
    return f" instead of {significant(loss) if math.isfinite(loss) else 'NaN'}"
