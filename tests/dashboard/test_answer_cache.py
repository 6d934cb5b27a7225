"""Texts about ended runs are cached until the data they were written from changes."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.control.summary import store_summary
from dashboard.fleet.models import Worker
from dashboard.runs.models import Attempt, Checkpoint, Corpus, Cursor, DeadLetter, Run, State
from dashboard.studies.models import Study
from dashboard.studies.overview import answer_cache
from tests.dashboard import factory
from tests.dashboard.test_by_loss import swept

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    cache.clear()


@pytest.fixture
def study(alice: Any) -> Study:
    """Three finished runs: a single device, a naive pipeline, and data parallelism."""
    study = Study.objects.create(name="Three", owner=alice)
    for i, split in enumerate((factory.SPLITS[0], factory.SPLITS[2], {"dp": 2})):
        factory.finished(alice, split, study=study, position=i)
    for attempt in Attempt.objects.all():
        Cursor.objects.create(attempt=attempt, rank=0, channel="events", offset=1000)
    return study


def changed(run: Run, **fields: Any) -> None:
    Run.objects.filter(pk=run.pk).update(**fields)


def test_a_verdict_is_written_once_and_again_when_a_summary_changes(study: Study) -> None:
    first = answer_cache.verdicts([study])[study.pk]
    assert first
    with CaptureQueriesContext(connection) as asked:
        assert answer_cache.verdicts([study]) == {study.pk: first}
    assert len(asked) == 1 and '"spec"' not in asked.captured_queries[0]["sql"]
    fastest = study.runs.get(label="DP")
    summary = {**fastest.summary, "timed": {k: 10 * v for k, v in fastest.summary["timed"].items()}}
    changed(fastest, summary=summary)
    assert answer_cache.verdicts([study])[study.pk] != first
    changed(fastest, summary=fastest.summary)
    assert answer_cache.verdicts([study])[study.pk] == first


@pytest.mark.parametrize("fields", [{"name": "Another", "label": "Another"}, {"state": State.FAILED}])
def test_a_verdict_follows_the_rows_of_its_runs(study: Study, fields: dict[str, Any]) -> None:
    first = answer_cache.verdicts([study])[study.pk]
    changed(study.runs.get(label="DP"), **fields)
    said = answer_cache.verdicts([study])[study.pk]
    assert said == answer_cache._verdicts([study], ())[study.pk] != first


def test_a_lowest_loss_is_so_far_while_a_run_of_the_study_has_not_ended(alice: Any) -> None:
    study = swept(alice, {0.001: 0.5, 0.01: 0.0})
    assert answer_cache.verdicts([study])[study.pk].startswith("Lowest final loss: 2.731, ")
    run = factory.queued(alice, {}, study=study, position=2, name="lr = 1", train={"lr": 1.0})
    so_far = "Lowest final loss so far: 2.731, "
    for state in (State.QUEUED, State.RUNNING):
        changed(run, state=state)
        assert answer_cache.verdicts([study])[study.pk].startswith(so_far), state
    with CaptureQueriesContext(connection) as asked:
        changed(run, detail="Waits.")
        assert answer_cache.verdicts([study])[study.pk].startswith(so_far)
    assert len(asked) == 2, "what an open run says is not part of it"
    changed(run, state=State.CANCELLED)
    assert answer_cache.verdicts([study])[study.pk].startswith("Lowest final loss: 2.731, ")


def test_the_verdicts_of_many_studies_take_as_many_queries_as_of_one(alice: Any) -> None:
    def made() -> Study:
        own = Study.objects.create(name="own", owner=alice)
        factory.finished(alice, study=own)
        return own

    def queries(studies: list[Study]) -> int:
        cache.clear()
        with CaptureQueriesContext(connection) as asked:
            assert len(answer_cache.verdicts(studies)) == len(studies)
        return len(asked)

    studies = [made() for _ in range(4)]
    assert queries(studies) == queries(studies[:1])


def test_studies_have_their_own_verdicts(study: Study, alice: Any) -> None:
    other = Study.objects.create(name="None", owner=alice)
    both = answer_cache.verdicts([study, other])
    assert both == {**answer_cache._verdicts([study], ()), **answer_cache._verdicts([other], ())}
    assert answer_cache.verdicts([other, study]) == both


class Maker:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        return {"made": self.times}


def test_the_same_is_made_once_for_each_thing_that_is_asked(study: Study) -> None:
    make = Maker()
    for _ in range(3):
        assert answer_cache.of_ended(study, ["report", ""], make) == {"made": 1}
    assert answer_cache.of_ended(study, ["report", "7"], make) == {"made": 2}
    assert answer_cache.of_ended(study, ["report", ""], make) == {"made": 1}


def test_a_late_byte_another_attempt_and_other_hosts_make_it_anew(study: Study, alice: Any) -> None:
    make = Maker()

    def made() -> bool:
        before = make.times
        answer_cache.of_ended(study, ["report"], make)
        assert answer_cache.of_ended(study, ["report"], make) == {"made": make.times}, (
            "and the new text is cached again"
        )
        return make.times > before

    assert made() and not made()
    Cursor.objects.filter(pk=Cursor.objects.latest("pk").pk).update(offset=1001)
    assert made(), "a late byte"
    Cursor.objects.create(attempt=Attempt.objects.latest("pk"), rank=1, channel="events", offset=0)
    assert made(), "another file"
    about = {"rank": 0, "channel": "events", "start": 1, "end": 2, "data": b"x"}
    letter = DeadLetter.objects.create(attempt=Attempt.objects.latest("pk"), **about)
    Cursor.objects.filter(pk=Cursor.objects.latest("pk").pk).update(offset=2)
    assert made(), "a record that was set aside"
    letter.delete()
    assert made(), "and stored then"
    Worker.objects.update(version="2.0")
    assert made(), "another version on a host"
    worker = Worker.objects.get()
    worker.devices = [{**device, "memory_used": 5} for device in worker.devices]
    worker.save()
    assert not made(), "a heartbeat that changes only loads"
    last = Attempt.objects.latest("pk")
    kept = Checkpoint.objects.create(run=last.run, attempt=last, worker="yard-a", step=9, bytes=1, seconds=0.1)
    assert made(), "a checkpoint"
    kept.delete()
    kept = Checkpoint.objects.create(run=last.run, attempt=last, worker="yard-a", step=19, bytes=1, seconds=0.1)
    assert made(), "another checkpoint instead"
    text = Corpus.objects.create(owner=alice, name="tale.txt", sha256="0" * 64, size=3)
    assert made(), "a text whose name is told"
    text.delete()
    study.runs.all()[0].delete()
    assert made(), "one run fewer"
    Study.objects.filter(pk=study.pk).update(name="Other")
    study.refresh_from_db()
    assert made(), "another name"
    assert not made()


def test_nothing_is_kept_while_a_run_goes_on(study: Study, alice: Any) -> None:
    make = Maker()
    run = study.runs.last()
    assert run is not None
    answer_cache.of_ended(study, ["report"], make)
    for state in (State.QUEUED, State.STARTING, State.RUNNING, State.CANCELLING):
        changed(run, state=state)
        before = make.times
        answer_cache.of_ended(study, ["report"], make)
        answer_cache.of_ended(study, ["report"], make)
        assert make.times == before + 2


def test_a_report_follows_what_arrives_late(client: Client, alice: Any, study: Study) -> None:
    client.force_login(alice)
    address = f"/studies/{study.pk}/report/"
    first = client.get(address)
    again = client.get(address)
    assert first.context["body"] == again.context["body"]
    assert "download" in again.content.decode() and study.name in again.content.decode()
    run = study.runs.get(label="DP")
    attempt = run.attempts.get()
    factory.feed_steps(attempt, 43, loss_shift=0.25)
    Cursor.objects.filter(attempt=attempt).update(offset=2000)
    store_summary(run.pk)
    assert client.get(address).context["body"] != first.context["body"]
    other = client.get(address, {"baseline": run.pk})
    assert f"baseline={run.pk}" in other.context["address"] and other.context["body"] != first.context["body"]


def test_answers_are_kept_too_and_follow_their_baseline(client: Client, alice: Any, study: Study) -> None:
    client.force_login(alice)
    address = f"/studies/{study.pk}/questions/"
    first = client.get(address).content
    with CaptureQueriesContext(connection) as asked:
        assert client.get(address).content == first
    assert not any("runs_spanchunk" in query["sql"] for query in asked.captured_queries)
    other = study.runs.get(label="DP")
    assert client.get(address, {"baseline": other.pk}).content != first
    changed(other, state=State.RUNNING)
    assert f'data-live-src="{address}"'.encode() in client.get(address).content
