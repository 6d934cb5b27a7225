"""The charts of a study's page, as its scripts get them."""

from __future__ import annotations

import json
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.test import Client

from dashboard.studies.models import Study


def charts_of(client: Client, study: Study, query: str = "") -> dict[str, Any]:
    """Key -> the chart as JSON."""
    charts = client.get(f"/studies/{study.pk}/{query}").context["charts"]
    made: dict[str, Any] = json.loads(
        json.dumps({key: chart.as_dict() for key, chart in charts.items()}, cls=DjangoJSONEncoder)
    )
    return made
