"""Lists and records of predictions read numbers only: a profile's table and a run's summary may have a megabyte."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.ledger import recalibration, records
from dashboard.ledger.fleet_page import FleetForm
from dashboard.ledger.forms import CutForm
from dashboard.ledger.models import Profile
from dashboard.ledger.services import settle
from tests.dashboard.test_ledger_predictions import SPEC, submitted

pytestmark = pytest.mark.django_db
LARGE = ('"ledger_profile"."table"', '"runs_run"."summary"')


@pytest.fixture
def settled(profile: Profile, alice: Any, redis_url: str) -> None:
    for split in ({}, {"dp": 2}):
        run, said = submitted(alice, split)
        settle(run, {"timed": {"median": said.seconds}, "memory": {"peak_total": 1 << 20}, "cpu_others": 0.0})


def large(queries: CaptureQueriesContext) -> list[str]:
    """The queries that read a large column."""
    return [query["sql"] for query in queries if any(column in query["sql"] for column in LARGE)]


def test_records_and_lists_read_no_tables(settled: None) -> None:
    with CaptureQueriesContext(connection) as seen:
        times, paced, replayed = records.time_record(), records.paced_record(), records.replay_record()
        rows = list(records.settled())
        assert {str(row.profile) for row in rows} == {"GPT 4 x 32, fp32 on yard-a"}
        assert len(list(recalibration.eligible())) == 2
        for form in (CutForm(), FleetForm()):
            assert "GPT 4 x 32, fp32 on yard-a" in str(form["profile"])
    assert (len(times.errors), len(paced.errors), len(replayed.errors)) == (2, 0, 0)
    assert len(seen) >= 7 and not large(seen)


@pytest.mark.parametrize("address", ["/runs/new/", "/planner/accuracy/", "/partition/record/", "/partition/fleet/"])
def test_pages_with_a_record_read_no_tables(settled: None, member: Client, address: str) -> None:
    asked = {"spec": SPEC.model_dump_json()} if address == "/runs/new/" else {}
    assert member.get(address, asked).status_code == 200  # keeps the table that predicts, asks for the search
    with CaptureQueriesContext(connection) as seen:
        assert member.get(address, asked).status_code == 200
    assert len(seen) > 2 and not large(seen)
