"""Notes that a run, and with it perhaps its study, has ended: written in the transaction of the end, posted later."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from dashboard.runs.models import ENDED, Run
from dashboard.webhook.models import Delivery, Webhook

SUMMARY_WITHIN = timedelta(seconds=10)
"""How long a post waits for the summary of a run, on which its verdict is based."""
STUDY_AFTER = timedelta(seconds=15)
"""How long that of a study waits: the controller may queue its next run, and its verdict needs every summary."""


def note_end(run: Run) -> None:
    """Notes the end of `run` inside the caller's transaction, if there is a webhook.

    That of its study is noted with every run: of two transactions that end its last two runs at once neither sees the
    other's end. Once it is due, the sender sees both, and posts the newest note of a study whose runs have all ended.
    """
    if Webhook.in_use() is None:
        return
    now = timezone.now()
    Delivery.objects.create(run=run, ended_at=now, due_at=now)
    if run.study_id is not None:
        Delivery.objects.create(study_id=run.study_id, ended_at=now, due_at=now + STUDY_AFTER)


def study_ended(study: int) -> bool:
    """Whether every run of the study has ended."""
    return not Run.objects.filter(study=study).exclude(state__in=ENDED).exists()
