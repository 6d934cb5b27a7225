"""torch.profiler traces of a run's own steps: stored in pieces, downloaded, and opened under Traces."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.form import spec_fields
from dashboard.runs.models import Run
from dashboard.runs.tracing import profiles
from dashboard.traces import services
from dashboard.traces.models import Trace, TraceState
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.run_analyst import read_next

pytestmark = pytest.mark.django_db
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#8", "pid": 1, "tid": 1, "ts": 0, "dur": 100},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 50},
]
DATA = gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())


@pytest.fixture
def member(client: Client, alice: Any, settings: Any, tmp_path: Path) -> Client:
    settings.MEDIA_ROOT = tmp_path
    client.force_login(alice)
    return client


@pytest.fixture
def run(alice: Any) -> Run:
    """Step 8 of ranks 0 and 1, of which only half has arrived for rank 1. Step 9 of rank 0 was too large."""
    run = factory.finished(alice, {"dp": 2})
    attempt = run.attempts.get()
    half = len(DATA) // 2
    feed(attempt, 0, DATA[:half], part=0, of=2)
    feed(attempt, 0, DATA[half:], part=1, of=2)
    feed(attempt, 0, DATA[half:], part=1, of=2)  # reported twice, stored once
    feed(attempt, 1, DATA[:half], part=0, of=2)
    feed(attempt, 0, b"", part=0, of=0, step=9)
    return run


def feed(attempt: Any, rank: int, blob: bytes, *, part: int, of: int, step: int = 8) -> None:
    head = {"kind": "profile", "rank": rank, "t": time.time(), "step": step, "part": part, "of": of, "size": len(DATA)}
    factory.feed(attempt, rank, encode(head, blob))


def test_the_ranks_tab_lists_what_there_is(member: Client, run: Run) -> None:
    text = member.get(f"/runs/{run.pk}/?tab=ranks").content.decode()
    assert f"/runs/{run.pk}/profile/8/0.json.gz" in text
    assert f"/runs/{run.pk}/profile/8/1.json.gz" not in text and "rank 1: on its way" in text
    assert "too large to keep" in text
    assert [(step.number, step.openable) for step in profiles.listed(run)] == [(8, True), (9, False)]


def test_a_trace_is_downloaded_as_it_was(member: Client, run: Run) -> None:
    page = member.get(f"/runs/{run.pk}/profile/8/0.json.gz")
    assert page.content == DATA
    assert f"run-{run.pk}-step-8-rank0.json.gz" in page.headers["Content-Disposition"]
    for missing in ("8/1", "9/0", "7/0"):
        assert member.get(f"/runs/{run.pk}/profile/{missing}.json.gz").status_code == 404


def test_a_step_is_opened_under_traces(member: Client, run: Run, bob: Any) -> None:
    page = member.post(f"/runs/{run.pk}/profile/8")
    trace = Trace.objects.get()
    assert page.headers["Location"] == f"/traces/{trace.pk}/"
    assert read_next()
    trace.refresh_from_db()
    assert (trace.state, trace.name, trace.steps) == (TraceState.READY, f"{run.name}, step 8", [8])
    assert member.post(f"/runs/{run.pk}/profile/9").status_code == 404
    viewer, address = Client(), f"/runs/{run.pk}/profile/8"
    viewer.force_login(bob)
    assert viewer.post(address).status_code == 403
    offered = f'action="{address}"'
    shown = [client.get(f"/runs/{run.pk}/?tab=ranks").content.decode() for client in (member, viewer)]
    assert [offered in one for one in shown] == [True, False] and f"{address}/0.json.gz" in shown[1]


def test_steps_and_ranks_survive_the_way_through_the_form() -> None:
    given = {"trace": {"profile_steps": [4, 5], "profile_ranks": [0]}}
    values = spec_fields.from_spec(given)
    assert values["trace__profile_steps"] == "4, 5"
    back = spec_fields.to_spec(values)["trace"]
    assert (back["profile_steps"], back["profile_ranks"]) == (["4", "5"], ["0"])
    plain = spec_fields.to_spec(spec_fields.from_spec({}))["trace"]
    assert (plain["profile_steps"], plain["profile_ranks"]) == ([], None)


def test_a_yard_full_of_traces_says_so_and_goes_back_to_the_run(
    member: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MAX_TRACES", 0)
    refused = member.post(f"/runs/{run.pk}/profile/8", follow=True)
    assert refused.redirect_chain == [(f"/runs/{run.pk}/?tab=ranks", 302)]
    assert "This yard keeps 0 traces; delete one that nobody needs." in refused.content.decode()
