"""What-if through the API: runs and imported traces get responses of the same shape."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.api.models import ApiToken, Scope
from dashboard.runs.tracing import traces as of_runs
from dashboard.traces import services
from parallel_core.simulate.replay import FREE, Change, replay
from tests.dashboard import factory
from tests.dashboard.run_analyst import read_next
from tests.dashboard.test_traces import annotated

pytestmark = pytest.mark.django_db
PIPELINE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}


@pytest.fixture
def asked(client: Client, alice: Any) -> Any:
    """A function that GETs an API address as alice and returns (status, JSON)."""
    token = ApiToken.make(user=alice, name="t", scope=Scope.READ, expires_at=timezone.now() + timedelta(days=1))[1]

    def ask(address: str) -> tuple[int, Any]:
        answer = client.get(f"/api/v1{address}", headers={"Authorization": f"Bearer {token}"})
        return answer.status_code, answer.json()

    return ask


def test_a_run_is_replayed_with_a_change(asked: Any, alice: Any, redis_url: str) -> None:
    run = factory.finished(alice, PIPELINE)
    trace = of_runs.trace(run, None)
    assert trace is not None
    for query, change in (
        ("links=free&device=2", Change(links=FREE, device=2)),
        ("schedule=zb-h1", Change(schedule="zb-h1")),
        ("micro_batches=8&balanced=true", Change(micro_batches=8, balanced=True)),
        ("schedule=1f1b&early_gradients=true", Change(schedule="1f1b", early_gradients=True)),
    ):
        status, answer = asked(f"/runs/{run.pk}/whatif?{query}")
        data = answer["data"]
        assert status == 200 and data["step"] == trace.step
        assert data["predicted_ns"] == round(replay(trace.spec, trace.measured, change).step)
        assert data["measured_ns"] == data["unchanged_ns"] == trace.measured.step
    for idea in data["ideas"]:
        status, answer = asked(f"/runs/{run.pk}/whatif?{idea['query']}")
        assert status == 200 and answer["data"]["predicted_ns"] == idea["step_ns"]


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("no_recompute=true", "no_recompute", "schedule, micro_batches, early_gradients, balanced can be"),
        ("early_gradients=true&schedule=zb-h1", "early_gradients", "parted it already; use schedule=naive, gpipe"),
        ("micro_batches=5", "micro_batches", "do not divide"),
        ("schedule=nothing", "schedule", "Schedule must be"),
        ("device=0", "device", "at least 0.1"),
        ("links=7", "links", "'100' or 'free'"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(
    asked: Any, alice: Any, redis_url: str, query: str, field: str, words: str
) -> None:
    run = factory.finished(alice, PIPELINE)
    status, answer = asked(f"/runs/{run.pk}/whatif?{query}")
    assert status == 422 and words in answer["error"]["fields"][field]


def test_a_run_without_a_traced_step_says_so(asked: Any, alice: Any, redis_url: str) -> None:
    run = factory.queued(alice, PIPELINE)
    status, answer = asked(f"/runs/{run.pk}/whatif?links=free")
    assert status == 200 and answer["data"]["why_not"] == "No traced step has arrived yet."
    assert answer["data"]["predicted_ns"] is None and answer["data"]["ideas"] == []


def test_an_imported_pipeline_is_asked_what_a_run_is(asked: Any, alice: Any, settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    files = [SimpleUploadedFile(f"rank{rank}.json", annotated(rank)) for rank in range(2)]
    trace = services.upload(owner=alice, name="GPipe", files=files)
    assert asked(f"/traces/{trace.pk}/whatif")[0] == 404, "the trace has not been read yet"
    assert read_next()
    status, answer = asked(f"/traces/{trace.pk}/whatif?schedule=zb-h1&links=free")
    data = answer["data"]
    assert status == 200 and data["known"].startswith("Certain: PP-GPipe, 2 stages, 4 micro-batches")
    assert data["measured_ns"] == data["unchanged_ns"] == 170_000_000 > data["predicted_ns"] > 0
    assert (
        asked(f"/traces/{trace.pk}/whatif?{data['ideas'][0]['query']}")[1]["data"]["predicted_ns"]
        == (data["ideas"][0]["step_ns"])
    )
    assert asked(f"/traces/{trace.pk}/whatif?step=9")[0] == 404


def test_a_trace_of_no_pipeline_has_no_schedule(asked: Any, alice: Any, settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    alone = annotated(0).replace(b"PP:0", b"")  # without the stage numbers in its annotations
    trace = services.upload(owner=alice, name="One", files=[SimpleUploadedFile("rank0.json", alone)])
    assert read_next()
    status, answer = asked(f"/traces/{trace.pk}/whatif?device=2")
    assert status == 200 and answer["data"]["predicted_ns"] < answer["data"]["measured_ns"]
    status, answer = asked(f"/traces/{trace.pk}/whatif?schedule=1f1b&links=free")
    assert status == 422 and set(answer["error"]["fields"]) == {"schedule", "links"}
