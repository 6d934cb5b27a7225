"""A turn of a study's live page sends what changed: its pieces make up the page, and those it has stay away."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.live.changes import changed, digest, pieces
from dashboard.runs.models import Run, State
from dashboard.studies.models import Study
from dashboard.studies.views import LIVE_PARTS
from tests.dashboard import factory

pytestmark = pytest.mark.django_db
RUNS = 30


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements have somewhere to go."""


@pytest.fixture
def study(alice: Any) -> Study:
    """One run goes on, many wait, a few have ended."""
    made = Study.objects.create(name="large", owner=alice, kind="matrix", base=factory.BASE)
    for i in range(3):
        factory.finished(alice, factory.SPLITS[i], study=made, position=i, exclusive=True, name=f"done {i}")
    for i in range(3, RUNS):
        run = factory.queued(alice, factory.SPLITS[i % 7], study=made, position=i, exclusive=True, name=f"run {i}")
        if i == 3:
            factory.feed_steps(factory.start(run), 12)
    return made


def turn(client: Client, study: Study, have: dict[str, str] | None = None) -> Any:
    answer = client.get(f"/studies/{study.pk}/changes.json", headers={"X-Have": ",".join(have or {})})
    assert answer.status_code == 200
    return answer.json()


def joined(told: Any, texts: dict[str, str]) -> dict[str, str]:
    return {name: "".join(texts[key] for key in own) for name, own in told["parts"].items()}


def test_the_first_turn_has_all_that_the_page_has(reader: Client, study: Study) -> None:
    told = turn(reader, study)
    page = reader.get(f"/studies/{study.pk}/").content.decode()
    assert set(told["parts"]) == set(LIVE_PARTS)
    for name, text in joined(told, told["texts"]).items():
        assert text.strip() in page and (name == "again" or text.strip())
    assert set(told["charts"]) >= {"speedup", "breakdown", "memory", "loss"}
    assert '"title":' in told["texts"][told["charts"]["speedup"]]


def test_where_nothing_changed_nothing_is_sent(reader: Client, study: Study) -> None:
    first = turn(reader, study)
    again = turn(reader, study, first["texts"])
    assert again["texts"] == {} and again["parts"] == first["parts"] and again["charts"] == first["charts"]


def test_a_step_sends_the_rows_of_its_run_alone(reader: Client, study: Study) -> None:
    first = turn(reader, study)
    run = Run.objects.get(name="run 3")
    Run.objects.filter(pk=run.pk).update(step=20, loss=1.25)
    told = turn(reader, study, first["texts"])
    sent = told["texts"].values()
    rows = [text for text in sent if "<tr" in text]
    assert len(rows) == 1 and ">run 3<" in rows[0] and "1.25" in rows[0]
    assert any("step 21 of 43" in text for text in sent)
    assert told["charts"]["breakdown"] == first["charts"]["breakdown"]
    assert joined(told, first["texts"] | told["texts"])["table"].count("<tr") == RUNS + 1
    assert {key for key in told["charts"] if told["charts"][key] != first["charts"][key]} == {"speedup"}
    assert sum(map(len, sent)) * 4 < sum(map(len, first["texts"].values()))


def test_an_end_sends_the_charts_anew(reader: Client, study: Study) -> None:
    first, run = turn(reader, study), Run.objects.get(name="run 3")
    factory.end(run, State.SUCCEEDED)
    told = turn(reader, study, first["texts"])
    assert told["charts"]["breakdown"] != first["charts"]["breakdown"]
    assert told["charts"]["breakdown"] in told["texts"]
    assert any("4 of 30 runs done" in text for text in told["texts"].values())


def test_pieces_make_up_the_text() -> None:
    text = "<table><tr>1</tr>\n<tr>2</tr></table><ul><li>a</li></ul>"
    assert "".join(pieces(text)) == text and len(pieces(text)) == 4
    same = changed({"a": "<li>x</li><li>x</li>"}, {}, ())
    assert len(same["parts"]["a"]) == 2 and len(same["texts"]) == 1
    left = changed({"a": "words"}, {"c": {"n": 1}}, {digest("words")})["texts"]
    assert list(left.values()) == ['{"n": 1}']
