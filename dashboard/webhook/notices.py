"""What is posted about an end: JSON of a few fields, with the sentence on top of the page of the run or study."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.urls import reverse
from django.utils import timezone

from dashboard.runs.models import Run
from dashboard.runs.page.verdict import verdict
from dashboard.studies.models import Study
from dashboard.studies.overview.answer_cache import verdicts
from dashboard.webhook.models import Delivery


def of(delivery: Delivery, origin: str) -> dict[str, Any]:
    """The notice of a delivery. `delivery` tells a repeated post from another end."""
    about = of_run(delivery.run) if delivery.run else of_study(delivery.study) if delivery.study else {}
    at = delivery.ended_at.isoformat()
    return {**about, "link": f"{origin}{about['link']}", "ended_at": at, "delivery": delivery.pk}


def of_run(run: Run) -> dict[str, Any]:
    return {
        "event": "run.ended",
        "id": run.pk,
        "study": run.study_id,
        "name": run.name,
        "owner": run.owner.get_username(),
        "state": run.state,
        "cause": run.cause,
        "verdict": verdict(run).sentence,
        "link": reverse("runs:page", args=[run.pk]),
    }


def of_study(study: Study) -> dict[str, Any]:
    states = Counter(study.runs.values_list("state", flat=True))
    return {
        "event": "study.ended",
        "id": study.pk,
        "name": study.name,
        "owner": study.owner.get_username(),
        "state": "ended",
        "cause": "",
        "runs": dict(sorted(states.items())),
        "verdict": verdicts([study])[study.pk],
        "link": reverse("studies:page", args=[study.pk]),
    }


def of_test(origin: str) -> dict[str, Any]:
    return {
        "event": "test",
        "id": None,
        "name": "Test of the webhook",
        "state": "",
        "cause": "",
        "verdict": "An admin has sent a test.",
        "link": f"{origin}/",
        "ended_at": timezone.now().isoformat(),
        "delivery": 0,
    }
