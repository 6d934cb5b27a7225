"""Which study of its own owner keeps a queued run waiting, and what its owner can do about it: of one's own runs the
oldest comes first, however many there are (runs.waiting.turns)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.runs.models import Run, State
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.models import Study

FEW = 1
"""So many runs of a study ahead are no reason to change anything."""


@dataclass(frozen=True)
class OwnAhead:
    """`count` runs of the `study` are served before a run of the same person and priority. `lower`: the priority that
    the study would need to be passed; '' if there is none, and the run needs a higher one."""

    study: Study
    count: int
    lower: str = ""


def own_ahead(run: Run, ahead: Sequence[int]) -> OwnAhead | None:
    """The study of the run's owner with most runs among those `ahead` in the queue; None if there are but a few."""
    if len(ahead) <= FEW:
        return None
    alike = Run.objects.order_by().filter(state=State.QUEUED, owner=run.owner_id, priority=run.priority)
    before = set(ahead)
    rows = alike.exclude(study=None).values_list("pk", "study")
    counts = Counter(study for pk, study in rows if pk in before and study != run.study_id)
    for pk, count in counts.most_common(1):
        study = Study.objects.filter(pk=pk).first()
        if study is not None and count > FEW:
            lower = Priority(run.priority - 1).word if run.priority > Priority.LOW else ""
            return OwnAhead(study, count, lower)
    return None
