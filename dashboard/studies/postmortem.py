"""The postmortem of a scenario that breaks: what the rules find in its broken run, and what the proof run shows."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.runs.findings import case_of
from dashboard.runs.models import ENDED
from dashboard.studies.breakages import BEFORE, BROKEN, BY_KEY, KIND, PROOF, Breakage
from dashboard.studies.models import Study
from dashboard.studies.selectors import Overview, Row
from parallel_core.analysis.diagnosis import Finding, diagnose
from parallel_core.analysis.quantities import ratio_text, seconds_text, significant


@dataclass(frozen=True)
class Postmortem:
    """`findings` of the broken run, held against the one before; `proof` says what the change did, '' so far."""

    breakage: Breakage
    broken: Row
    findings: list[Finding]
    proof: str
    proof_run: Row
    waits: str = ""
    """What has to end before anything can be said; '' once it has."""


def of_study(study: Study, view: Overview) -> Postmortem | None:
    """None of any other study, or where one of its runs was deleted."""
    breakage = BY_KEY.get(study.settings.get("scenario", "")) if study.kind == KIND else None
    rows = {row.run.position: row for row in view.rows}
    if breakage is None or not {BEFORE, BROKEN, PROOF} <= set(rows):
        return None
    before, broken, proof = (rows[i] for i in (BEFORE, BROKEN, PROOF))
    if broken.run.state not in ENDED:
        return Postmortem(breakage, broken, [], "", proof, "The broken run has not ended yet.")
    found = diagnose(case_of(broken.run, before.run if before.entry.done else None))
    said = _proof(broken, proof) if proof.entry.done else ""
    return Postmortem(breakage, broken, found, said, proof)


def _proof(broken: Row, proof: Row) -> str:
    """Step time, loss and findings of the run that has the change."""
    left = diagnose(case_of(proof.run))
    parts = [f"{seconds_text(proof.entry.traced_median)} a step" if proof.entry.traced_median else "it ended"]
    if broken.entry.traced_median and proof.entry.traced_median:
        parts[0] += (
            f", {ratio_text(broken.entry.traced_median / proof.entry.traced_median)} the speed of the broken run"
        )
    if proof.run.loss is not None:
        parts.append(f"last loss {significant(proof.run.loss)}")
    parts.append("the rules find nothing" if not left else f"the rules still find: {left[0].title}")
    return "; ".join(parts).removesuffix(".") + "."
