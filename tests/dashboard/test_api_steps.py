"""Steps in the API: which points a client has not yet, which steps were traced, and how they are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.api import measured
from dashboard.api.models import Scope
from dashboard.runs import selectors
from dashboard.runs.models import Run, SpanChunk, State
from dashboard.traces import services as trace_services
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame
from tests.dashboard.run_analyst import read_next
from tests.dashboard.streamed_body import received
from tests.dashboard.test_api import bearer
from tests.dashboard.test_selectors import add_points
from tests.dashboard.test_traces import annotated

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def asked(client: Client, alice: Any) -> Any:
    """A function that GETs an API address as alice and returns (status, JSON)."""
    headers = bearer(alice, Scope.READ)

    def ask(address: str) -> tuple[int, Any]:
        answer = client.get(f"/api/v1{address}", headers=headers)
        return answer.status_code, answer.json()

    return ask


def test_replaced_points_are_announced(asked: Any, alice: Any) -> None:
    run = factory.queued(alice)
    add_points(factory.start(run), 0, 30, 1.0)
    address = f"/runs/{run.pk}/series?since_step=29"
    before = asked(address)[1]
    assert (before["data"]["step"], before["meta"]["begins"]) == ([], "1:0")
    add_points(factory.start(run), 20, 5, 2.0)
    after = asked(address)[1]
    assert (after["data"]["step"], after["meta"]["begins"]) == ([], "2:20")
    anew = asked(f"/runs/{run.pk}/series")[1]["data"]
    assert anew["step"] == list(range(25)) and anew["value"][20:] == [2.0] * 5
    assert asked(f"/runs/{run.pk}/series?rank=7")[1]["meta"]["begins"] == ""


def test_a_series_that_there_is_not_is_refused_with_those_that_there_are(asked: Any, alice: Any) -> None:
    run = factory.queued(alice)
    add_points(factory.start(run), 0, 3, 1.0, name="of_an_older_engine")
    status, said = asked(f"/runs/{run.pk}/series?name=losss")
    assert status == 422 and "loss, grad_norm" in said["error"]["fields"]["name"]
    assert asked(f"/runs/{run.pk}/series?name=eval_loss")[1]["data"]["value"] == []
    assert asked(f"/runs/{run.pk}/series?name=of_an_older_engine")[1]["data"]["value"] == [1.0] * 3


def parts_of(asked: Any, run: Run, limit: int, name: str = "loss") -> tuple[list[int], list[float]]:
    """Steps and values of a series that is read in parts of `limit` points."""
    steps: list[int] = []
    values: list[float] = []
    since, left = -1, 1
    while left:
        data = asked(f"/runs/{run.pk}/series?name={name}&since_step={since}&limit={limit}")[1]["data"]
        assert data["shown"] == len(data["step"]) == len(data["value"]) == len(data["time"]) <= limit
        steps, values = steps + data["step"], values + data["value"]
        left, since = data["total"] - data["shown"], steps[-1]
    return steps, values


@pytest.mark.parametrize("limit", [1, 7, 10, 11, 1000])
def test_a_series_read_in_parts_is_the_series(asked: Any, alice: Any, limit: int) -> None:
    run = factory.queued(alice)
    first = factory.start(run)
    for begin in range(0, 60, 10):
        add_points(first, begin, 10, 1.0)
    second = factory.start(run)
    add_points(second, 25, 10, 2.0)
    add_points(second, 35, 3, 2.0)
    add_points(factory.start(run), 33, 9, 3.0)
    whole = selectors.series(run, "loss")
    assert parts_of(asked, run, limit) == (whole.step.tolist(), whole.value.tolist())
    assert asked(f"/runs/{run.pk}/series?limit={limit}")[1]["data"]["total"] == 42 == whole.total


def test_held_out_losses_that_a_retry_has_replaced_are_in_no_part(asked: Any, alice: Any) -> None:
    """The retry has none yet, but its losses are behind the step of one."""
    run = factory.queued(alice, train={"eval_every": 20, "steps": 100})
    evaluated = b"".join(points_frame(at, 1, "eval_loss") for at in (19, 39, 59))
    factory.feed(factory.start(run), 0, points_frame(0, 61) + evaluated)
    assert parts_of(asked, run, 2, "eval_loss")[0] == [19, 39, 59]
    factory.feed(factory.start(run), 0, points_frame(30, 3))
    assert parts_of(asked, run, 2, "eval_loss")[0] == [19]
    assert asked(f"/runs/{run.pk}/series?name=eval_loss")[1]["meta"]["begins"] == "2:30"


def test_a_series_of_more_than_a_million_points_is_sent_in_parts(
    asked: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = factory.queued(alice)
    factory.feed(factory.start(run), 0, points_frame(0, 61))
    assert asked(f"/runs/{run.pk}/series")[1]["data"]["shown"] == 61
    monkeypatch.setattr(measured, "MOST_AT_ONCE", 60)
    status, said = asked(f"/runs/{run.pk}/series")
    assert status == 422 and "There are 61 points: give a limit" in str(said)
    assert asked(f"/runs/{run.pk}/series?limit=61")[1]["data"]["shown"] == 61
    assert asked(f"/runs/{run.pk}/series?since_step=3")[1]["data"]["shown"] == 57


def test_points_behind_the_limit_are_not_read(alice: Any) -> None:
    run = factory.queued(alice)
    attempt = factory.start(run)
    for begin in range(0, 400, 10):
        add_points(attempt, begin, 10)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = selectors.first_after(run, "loss", 0, 99, 20)
    assert (found.step.tolist(), found.shown, found.total) == (list(range(100, 120)), 20, 300)
    (reading,) = [one["sql"] for one in queries.captured_queries if '"data"' in one["sql"]]
    assert reading.count(",") < 20, "three chunks are read by their numbers, not forty"


def test_more_points_than_the_most_are_refused(asked: Any, alice: Any) -> None:
    run = factory.queued(alice)
    assert asked(f"/runs/{run.pk}/series?limit=100001")[0] == 422
    assert asked(f"/runs/{run.pk}/series?limit=0")[0] == 422


def test_a_step_that_was_not_traced_is_a_404_that_names_those_that_were(client: Client, asked: Any, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "schedule": "gpipe", "micro_batches": 4})  # step 10 is traced
    for part in ("spans", "chrome", "whatif"):
        status, answer = asked(f"/runs/{run.pk}/{part}?step=9")
        said = "Step 9 was not traced: the nearest that was is step 10."
        assert (status, answer["error"]["message"]) == (404, said), part
        assert client.get(f"/api/v1/runs/{run.pk}/{part}?step=10", headers=bearer(alice, Scope.READ)).status_code == 200
    chunk = SpanChunk.objects.get(attempt__run=run, rank=0)
    chunk.pk, chunk.step = None, 40
    chunk.save()
    for step, nearest in ((0, 10), (24, 10), (26, 40)):
        said = asked(f"/runs/{run.pk}/spans?step={step}")[1]["error"]["message"]
        more = "" if nearest == 40 else ", the newest is step 40"
        assert said == f"Step {step} was not traced: the nearest that was is step {nearest}{more}."


def test_of_a_run_without_traces_no_step_is_there_and_none_is_null(asked: Any, alice: Any) -> None:
    run = factory.queued(alice)
    for part in ("spans", "chrome", "whatif"):
        status, answer = asked(f"/runs/{run.pk}/{part}?step=3")
        assert (status, answer["error"]["message"]) == (404, "No traced step has arrived yet."), part
    assert asked(f"/runs/{run.pk}/spans")[1]["data"]["step"] is None
    assert asked(f"/runs/{run.pk}/whatif")[1]["data"]["why_not"] == "No traced step has arrived yet."
    assert asked(f"/runs/{run.pk}/chrome")[0] == 404
    Run.objects.filter(pk=run.pk).update(state=State.FAILED, ended_at=timezone.now())
    for part in ("spans", "chrome", "whatif"):
        status, answer = asked(f"/runs/{run.pk}/{part}?step=3")
        said = "This run ended before a traced step was complete."
        assert (status, answer["error"]["message"]) == (404, said), part


def test_an_imported_trace_names_its_steps_too(asked: Any, alice: Any, settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    files = [SimpleUploadedFile(f"rank{rank}.json", annotated(rank)) for rank in range(2)]
    trace = trace_services.upload(owner=alice, name="GPipe", files=files)
    assert read_next()
    (step,) = asked(f"/traces/{trace.pk}")[1]["data"]["steps"]
    for part in ("spans", "chrome", "whatif", "analysis"):
        status, answer = asked(f"/traces/{trace.pk}/{part}?step=99")
        assert status == 404 and f"the nearest that was is step {step}." in answer["error"]["message"], part


def test_the_page_does_not_say_that_nothing_was_traced_of_a_step_that_was_not(member: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2})
    page = member.get(f"/runs/{run.pk}/?tab=whatif&step=9").content.decode()
    assert "No traced step has arrived yet" not in page


def test_steps_done_are_counted_as_on_the_screen(client: Client, asked: Any, alice: Any) -> None:
    run = factory.queued(alice, name="going")
    assert asked(f"/runs/{run.pk}")[1]["data"]["steps_done"] == 0
    factory.feed_steps(factory.start(run), 7)
    data = asked(f"/runs/{run.pk}")[1]["data"]
    assert (data["step"], data["steps_done"]) == (6, 7)
    assert asked("/runs")[1]["data"][0]["steps_done"] == 7
    client.force_login(alice)
    assert client.get("/runs/export.json").json()["data"][0]["steps_done"] == 7
    head, row = received(client.get("/runs/export.csv")).decode().splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=True))["steps_done"] == "7"
    assert ",ended_at,steps_done,final_loss,held_out,notes,run_on,priority,first_started_at,spec." in head, (
        "columns keep their places"
    )
