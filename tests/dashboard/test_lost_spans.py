"""Every page says which spans a step has lost, and judges nothing by what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.runs import findings, selectors
from dashboard.runs.models import Attempt, Run
from dashboard.runs.page import charts
from dashboard.studies.overview import gantts
from dashboard.studies.selectors import overview
from parallel_core.analysis.diagnosis import unjudged
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import OMITTED
from tests.dashboard import factory
from tests.dashboard.fake_worker import spans_frame
from tests.dashboard.query_plans import plans
from tests.dashboard.test_spooled_spans import SPANS

pytestmark = pytest.mark.django_db


def omitted(rank: int, *steps: int) -> bytes:
    rows = np.array([(step, SPANS) for step in steps], OMITTED)
    return encode({"kind": "omitted", "rank": rank, "t": 1.0, "end": 10_000}, rows.tobytes())


@pytest.fixture
def partly(alice: Any) -> Run:
    """A run whose ranks have spans of step 10; of step 20 none has, of step 30 rank 0 alone."""
    run = factory.finished(alice, {"dp": 2})
    attempt = Attempt.objects.get(run=run)
    factory.feed(attempt, 0, spans_frame(30, 3) + omitted(0, 20))
    factory.feed(attempt, 1, omitted(1, 20, 30))
    return Run.objects.get(pk=run.pk)


NONE = "0 of 80 spans of step 20 were kept: its worker"


@pytest.mark.parametrize("tab", ["timeline", "accounts", "operators", "whatif"])
def test_a_step_without_spans_says_how_many_there_were(reader: Client, partly: Run, tab: str) -> None:
    text = reader.get(f"/runs/{partly.pk}/", {"tab": tab, "step": "20"}).content.decode()
    assert NONE in text.partition('id="tab"')[2]
    assert "The spans of this step were not kept" in text
    gantt = reader.get(reverse("runs:data", args=(partly.pk, "gantt")), {"step": 20}).json()
    assert gantt["figure"]["layout"]["meta"]["empty"].startswith(NONE)


MISSING = "he spans of 1 of 2 ranks of step 30 were not kept: its worker&#x27;s disk limit was reached"


@pytest.mark.parametrize(
    ("tab", "said"),
    [
        ("timeline", MISSING),
        ("timeline", "3 of 43 spans of step 30:"),
        ("accounts", "3 of 43 spans were kept: sums cover those alone."),
        ("operators", f"1 of 2 ranks are here: 0. T{MISSING}"),
        ("whatif", MISSING),
    ],
)
def test_a_step_without_the_spans_of_one_rank_says_how_many_are_there(
    reader: Client, partly: Run, tab: str, said: str
) -> None:
    text = reader.get(f"/runs/{partly.pk}/", {"tab": tab, "step": "30"}).content.decode()
    above, _, below = text.partition('id="tab"')
    assert "measured, step 30, 3 of 43 spans" in above
    assert said in below and NONE not in below and "a rank is missing" not in below


def test_the_newest_whole_step_is_not_called_the_newest(reader: Client, partly: Run) -> None:
    text = reader.get(f"/runs/{partly.pk}/").content.decode()
    assert '<h2 id="timeline-title">Newest whole traced step</h2>' in text
    assert "measured, the newest whole traced step" in text
    assert [selectors.newest_words(partly, step) for step in (20, 30)] == [
        "newest traced step with spans",
        "newest traced step",
    ]
    factory.feed(Attempt.objects.get(run=partly), 0, spans_frame(40, 3))
    assert selectors.newest_traced_step(partly) == 10, "step 40 is not whole"
    factory.feed(Attempt.objects.get(run=partly), 1, spans_frame(40, 3))
    assert '<h2 id="timeline-title">Newest traced step</h2>' in reader.get(f"/runs/{partly.pk}/").content.decode()


def test_the_choice_of_a_step_says_which_have_lost_spans(reader: Client, partly: Run) -> None:
    text = reader.get(f"/runs/{partly.pk}/").content.decode()
    options = [">10<", ">20: spans not kept<", ">30: spans of 1 of 2 ranks not kept<"]
    assert [option in text for option in options] == [True, True, True]


@pytest.mark.parametrize("form", ["chrome", "csv"])
def test_a_download_says_why_there_is_none(reader: Client, partly: Run, form: str) -> None:
    answer = reader.get(f"/runs/{partly.pk}/trace/20/{form}")
    assert answer.status_code == 404 and NONE in answer.content.decode()
    assert reader.get(f"/runs/{partly.pk}/trace/30/{form}").status_code == 200
    assert "were kept" not in reader.get(f"/runs/{partly.pk}/trace/25/{form}").content.decode()


@pytest.fixture
def lost(alice: Any) -> Run:
    """A run with one traced step, whose spans were dropped."""
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    for rank in (0, 1):
        factory.feed(attempt, rank, omitted(rank, 10))
    return Run.objects.get(pk=attempt.run_id)


def test_a_run_whose_traced_steps_were_dropped_was_traced(reader: Client, lost: Run) -> None:
    assert unjudged(findings.case_of(lost)) == "the spans of its traced steps were not kept"
    text = reader.get(f"/runs/{lost.pk}/").content.decode()
    assert '<h2 id="timeline-title">Newest traced step</h2>' in text
    rows = overview([lost]).rows
    assert gantts.of_rows(rows).title == "1 of these runs was traced, but the spans were not kept."


def test_compare_calls_no_older_step_the_newest(partly: Run) -> None:
    del partly.summary["breakdown_step"]  # as of a run that goes on
    rows = overview([partly]).rows
    assert "the newest whole traced step" in gantts.of_rows(rows).source


def test_the_newest_step_is_found_without_the_rows_of_others(partly: Run) -> None:
    """Each has a rank's spans: with some thousand steps, looking at each row takes seconds."""
    with CaptureQueriesContext(connection) as asked:
        assert selectors.newest_traced_step(partly) == 10
    assert len(asked) == 2
    if connection.vendor == "sqlite":
        found = plans(asked)
        assert "COVERING INDEX" in found[0] and "INDEX dropped_spans" in found[1], found


def test_the_newest_step_of_which_some_rank_has_spans_is_shown_if_none_is_whole(alice: Any, lost: Run) -> None:
    assert selectors.newest_traced_step(lost) == 10
    attempt = Attempt.objects.get(run=lost)
    factory.feed(attempt, 0, spans_frame(20, 3) + omitted(0, 30))
    factory.feed(attempt, 1, omitted(1, 20, 30))
    assert selectors.newest_traced_step(lost) == 20


def test_steps_without_spans_stand_for_nothing(partly: Run) -> None:
    assert selectors.newest_traced_step(partly) == 10
    assert selectors.find_typical_step(partly) == 10
    assert selectors.traced_steps(partly) == [10]
    assert selectors.step_choice(partly, None).steps == [10, 20, 30]
    assert {rank: len(rows) for rank, rows in selectors.spans(partly, 30).items()} == {0: 3}
    assert [sorted(step) for step in findings.case_of(partly).traced] == [[0, 1]]
    chart = charts.timeline(partly)
    assert chart is not None and " of " not in chart.subtitle.split(";")[0], "of step 10 all were kept"


def test_the_api_says_how_many_were_recorded(partly: Run, alice: Any, client: Client) -> None:
    client.force_login(alice)
    refused = client.get(f"/api/v1/runs/{partly.pk}/chrome", {"step": 20})
    assert refused.status_code == 404 and refused.json()["error"]["message"].startswith(NONE)
    assert client.get(f"/api/v1/runs/{partly.pk}/chrome", {"step": 25}).json()["error"]["code"] == "not_found"
    for step, shown, total in ((20, 0, 80), (30, 3, 43)):
        data = client.get(f"/api/v1/runs/{partly.pk}/spans", {"step": step}).json()["data"]
        assert (data["shown"], data["total"]) == (shown, total)


def test_a_step_of_which_a_rank_has_no_spans_has_no_shares(alice: Any) -> None:
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    factory.feed(attempt, 1, omitted(1, 5))
    factory.feed(attempt, 0, spans_frame(5, 3))
    assert selectors.series(attempt.run, "bubble_share").step.tolist() == []


def test_steps_without_spans_are_found_by_their_own_index(partly: Run) -> None:
    """Rows of steps with spans are large: with a million of them, reading each would take minutes."""
    if connection.vendor == "sqlite":
        assert "dropped_spans" in selectors.spans_of_newest(partly).filter(count=0).order_by().explain()
    assert sorted(selectors.dropped_steps(partly)) == [20, 20, 30]
