"""A live page polls for changes: the response holds the pieces that changed, and pieces the page has are not sent
again.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone
from numpy.typing import NDArray

from dashboard.charts import loss
from dashboard.live.changes import changed, chart_pieces, digest, pieces
from dashboard.runs.models import Run, State
from dashboard.studies import compare_views
from dashboard.studies.models import Study
from dashboard.studies.overview.figures import LOSS_BUCKETS
from dashboard.studies.views import LIVE_PARTS
from parallel_core.analysis.downsample import thin
from tests.dashboard import factory
from tests.dashboard.study_charts import charts_of

pytestmark = pytest.mark.django_db
RUNS = 20


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def study(alice: Any) -> Study:
    """A study with one running run, many queued and a few ended ones."""
    made = Study.objects.create(name="large", owner=alice, kind="matrix", base=factory.BASE)
    for i in range(3):
        factory.finished(alice, factory.SPLITS[i], study=made, position=i, exclusive=True, name=f"done {i}")
    for i in range(3, RUNS):
        run = factory.queued(alice, factory.SPLITS[i % 7], study=made, position=i, exclusive=True, name=f"run {i}")
        if i == 3:
            factory.feed_steps(factory.start(run), 12)
    return made


def turn(client: Client, study: Study | str, have: dict[str, str] | None = None) -> Any:
    address = study if isinstance(study, str) else f"/studies/{study.pk}/changes.json"
    answer = client.get(address, headers={"X-Have": ",".join(have or {})})
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
    speedup = json.loads("".join(told["texts"][key] for key in told["charts"]["speedup"]))
    assert speedup == charts_of(reader, study)["speedup"]


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
    assert any("21 of 43 steps" in text for text in sent)
    assert told["charts"]["breakdown"] == first["charts"]["breakdown"]
    assert joined(told, first["texts"] | told["texts"])["table"].count("<tr") == RUNS + 1
    assert {key for key in told["charts"] if told["charts"][key] != first["charts"][key]} == {"speedup"}
    old = set(first["charts"]["speedup"])
    assert len([key for key in told["charts"]["speedup"] if key not in old]) == 1, "only the text next to its bars"
    assert sum(map(len, sent)) * 8 < sum(map(len, first["texts"].values()))


def test_an_end_sends_the_charts_anew(reader: Client, study: Study) -> None:
    first, run = turn(reader, study), Run.objects.get(name="run 3")
    factory.end(run, State.SUCCEEDED)
    told = turn(reader, study, first["texts"])
    assert told["charts"]["breakdown"] != first["charts"]["breakdown"]
    assert not {*told["charts"]["breakdown"]} <= {*first["texts"]} and {*told["charts"]["breakdown"]} & {*told["texts"]}
    assert any("4 of 20 runs done" in text for text in told["texts"].values())


def test_pieces_make_up_the_text() -> None:
    text = "<table><tr>1</tr>\n<tr>2</tr></table><ul><li>a</li></ul>"
    assert "".join(pieces(text)) == text and len(pieces(text)) == 4
    same = changed({"a": "<li>x</li><li>x</li>"}, {}, ())
    assert len(same["parts"]["a"]) == 2 and len(same["texts"]) == 1
    assert len(changed({"a": "words"}, {}, {digest("words")})["texts"]) == 0
    figure: dict[str, Any] = {"data": [{"x": [1]}, {"x": [2]}], "layout": {"height": 9}}
    chart = {"key": "c", "figure": figure, "rows": [["a"]]}
    assert json.loads("".join(chart_pieces(chart))) == chart and len(chart_pieces(chart)) == 5
    empty = {"key": "c", "figure": {"data": [], "layout": {}}}
    assert json.loads("".join(chart_pieces(empty))) == empty
    first = changed({}, {"c": chart}, ())
    figure["data"][1]["x"] = [3]
    assert list(changed({}, {"c": chart}, first["texts"])["texts"].values()) == [', {"x": [3]}']


def test_the_list_sends_the_card_that_changed_alone(reader: Client, study: Study, alice: Any) -> None:
    other = Study.objects.create(name="other", owner=alice, kind="matrix", base=factory.BASE)
    factory.queued(alice, factory.SPLITS[0], study=other)
    # an age whose text does not change during the test
    Study.objects.update(created_at=timezone.now() - timedelta(hours=3))
    page = reader.get("/studies/").content.decode()
    assert 'data-live-changes="/studies/changes.json"' in page
    first = turn(reader, "/studies/changes.json")
    assert joined(first, first["texts"])["studies"].strip() in page and set(first["parts"]) == {"studies"}
    assert turn(reader, "/studies/changes.json", first["texts"])["texts"] == {}
    factory.end(Run.objects.get(name="run 3"), State.SUCCEEDED)
    told = turn(reader, "/studies/changes.json", first["texts"])
    (card,) = told["texts"].values()
    assert ">large<" in card and "4 of 20 runs done" in card and ">other<" not in card
    assert turn(reader, "/studies/changes.json?page=2")["parts"] == told["parts"], (
        "a page number that is too high means the last page"
    )


def test_a_comparison_sends_what_changed(reader: Client, study: Study) -> None:
    runs = [run.pk for run in study.runs.order_by("position")[:5]]
    asked = f"?runs={','.join(map(str, runs))}"
    page = reader.get(f"/compare/{asked}").content.decode()
    assert 'data-live-changes="/compare/changes.json"' in page
    first = turn(reader, f"/compare/changes.json{asked}")
    assert set(first["parts"]) == set(compare_views.LIVE_PARTS)
    assert all(text.strip() in page for text in joined(first, first["texts"]).values())
    assert set(first["charts"]) >= {"loss", "steps", "memory"}
    Run.objects.filter(name="run 3").update(step=20, loss=1.25)
    told = turn(reader, f"/compare/changes.json{asked}", first["texts"])
    assert [">run 3<" in text for text in told["texts"].values() if "<tr" in text] == [True]
    assert set(told["charts"]) == set(first["charts"])
    assert sum(map(len, told["texts"].values())) * 8 < sum(map(len, first["texts"].values()))
    assert reader.get("/compare/changes.json?runs=999999").status_code == 404, (
        "the page explains it when it is reloaded"
    )


def test_a_comparison_sends_what_there_is_only_once_its_runs_have_ended(reader: Client, alice: Any) -> None:
    split = {"pp": 4, "schedule": "naive", "micro_batches": 4}
    runs = factory.finished(alice), factory.queued(alice, split), factory.queued(alice, split)
    address = "/compare/changes.json?runs={},{}"

    def told(other: Run) -> tuple[dict[str, str], set[str]]:
        found = turn(reader, address.format(runs[0].pk, other.pk))
        return joined(found, found["texts"]), set(found["charts"])

    parts, charts = told(runs[1])
    assert 'data-chart="speedup"' in parts["times"] and not parts["scaling"].strip()
    assert not charts & set(compare_views.IN_PARTS), "they are in the parts, so they are not sent twice"
    factory.feed_steps(factory.start(runs[1]), 43)
    assert not told(runs[1])[0]["scaling"].strip(), "the times of a run that goes on are not judged"
    factory.end(runs[1], State.SUCCEEDED)
    parts, _ = told(runs[1])
    assert 'data-chart="waterfall"' in parts["times"] and "bubble grew most" in parts["scaling"]
    assert 'data-chart="tradeoff"' in parts["tradeoff"] and "cancelled" not in parts["chips"]
    factory.end(runs[2], State.CANCELLED)
    assert "· cancelled" in told(runs[2])[0]["chips"]


@pytest.mark.parametrize("steps", [400, 2_000])
def test_a_curve_that_grows_sends_its_end(steps: int) -> None:
    """With several complete curves and one that grows, both short ones and ones that are thinned."""

    def told(upto: int, have: Any = ()) -> Any:
        losses = 5.0 - np.random.default_rng(1).random(steps + 1)
        curves = [_curve(f"run {i}", losses[:steps] + i) for i in range(6)] + [_curve("growing", losses[:upto])]
        return changed({}, {"loss": loss.chart(curves, "A title.", "measured").as_dict()}, have)

    first, again = told(steps), told(steps + 1)
    sent = told(steps + 1, first["texts"])["texts"]
    assert "".join((first["texts"] | sent)[key] for key in again["charts"]["loss"]) == "".join(
        again["texts"][key] for key in again["charts"]["loss"]
    )
    assert sum(map(len, sent.values())) * 8 < sum(map(len, first["texts"].values()))
    assert len(first["texts"]) < 150, "the names of all pieces of a page fit into a header"


def _curve(label: str, values: NDArray[np.float64]) -> loss.Curve:
    kept = thin(values, LOSS_BUCKETS) if len(values) > 3 * LOSS_BUCKETS else np.arange(len(values))
    seconds = 0.25 * kept.astype(np.float64)
    return loss.Curve(label, kept.astype(np.int32), seconds, values[kept], len(values), samples_per_step=8)


def test_an_answer_says_what_it_cost(reader: Client, study: Study) -> None:
    """live.js derives the polling interval from this cost."""
    compared = f"/compare/changes.json?runs={study.runs.all()[0].pk}"
    for address in (f"/studies/{study.pk}/changes.json", "/studies/changes.json", compared):
        assert float(reader.get(address).headers["X-Cost-Ms"]) > 0, address


def test_a_page_of_runs_that_ended_some_time_ago_is_settled(reader: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)

    def settled() -> bool:
        return "data-settled" in reader.get(f"/studies/{study.pk}/").content.decode()

    assert not settled()
    study.runs.update(ended_at=timezone.now() - timedelta(minutes=2))
    assert settled()
    assert study.baseline
    study.runs.filter(pk=study.baseline.pk).update(state=State.QUEUED)
    assert not settled()
