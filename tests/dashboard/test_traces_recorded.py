"""A step of a run that was exported from its page and opened under Traces looks the same as on the run's page."""

from __future__ import annotations

import gzip
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from dashboard.runs.findings import findings
from dashboard.runs.models import Run
from dashboard.runs.page import charts
from dashboard.runs.page import whatif as page_whatif
from dashboard.runs.tracing import traces
from dashboard.traces import page
from dashboard.traces.models import Trace, TraceSpans, TraceState
from dashboard.traces.spans import step_of
from parallel_core.analysis import waits
from parallel_core.analysis.export import MARK
from parallel_core.analysis.quantities import significant
from tests.dashboard import factory
from tests.dashboard.run_analyst import read_next
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.django_db
PIPELINE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}


@pytest.fixture(autouse=True)
def _places(settings: Any, tmp_path: Path, redis_url: str) -> None:
    settings.MEDIA_ROOT = tmp_path
    cache.clear()


@pytest.fixture
def run(alice: Any) -> Run:
    return factory.finished(alice, PIPELINE)


def exported(client: Client, run: Run, form: str = "chrome") -> bytes:
    answer = client.get(reverse("runs:trace", args=(run.pk, 10, form)))
    return received(answer)


def opened(client: Client, *files: bytes) -> tuple[Trace, Any]:
    """Uploads the files, lets the analyst read them, and returns the trace and its page."""
    uploads = [SimpleUploadedFile(f"step{i}.trace.json", data) for i, data in enumerate(files)]
    assert client.post(reverse("traces:new"), {"files": uploads}).status_code == 302
    assert read_next()
    trace = Trace.objects.latest("pk")
    return trace, client.get(f"/traces/{trace.pk}/")


def of_run(run: Run) -> traces.Trace:
    found = traces.trace(run, 10)
    assert found is not None
    return found


def text_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


@pytest.mark.parametrize("form", ["chrome", "chrome-gz"])
def test_the_page_shows_what_the_page_of_the_run_shows(member: Client, run: Run, form: str) -> None:
    data = exported(member, run, form)
    assert data.startswith(b"\x1f\x8b") == (form == "chrome-gz")
    trace, shown = opened(member, data)
    assert trace.state == TraceState.READY and trace.steps == [10]
    mine, theirs = step_of(trace, 10), of_run(run)
    assert {rank: rows.tolist() for rank, rows in mine.spans.items()} == {
        rank: rows.tolist() for rank, rows in waits.ordered(theirs.spans).items()
    }
    assert mine.accounts == theirs.accounts
    bars = [row for row in page.timeline(trace, 10).figure["data"] if row["type"] == "bar"]
    gantt = charts.timeline(run, 10)
    assert gantt is not None and bars == [row for row in gantt.figure["data"] if row["type"] == "bar"]
    text = text_of(shown)
    assert f"As recorded: run {run.pk}, step 10, 2 ranks." in text
    assert "Backward" in text or "backward" in text  # the largest operations
    rows = shown.context["accounts"]
    (most,) = re.findall(r"over all ranks and steps: ([0-9 ]+) of ([0-9 ]+) spans", text)
    assert int(most[0]) == sum(one["count"] for one in shown.context["largest"]) <= int(most[1]) == theirs.total
    times = [*shown.context["largest"], *({"time": text} for row in rows for text in row["parts"] if text != "0")]
    digits = [re.sub(r"\D", "", one["time"].split()[0]).lstrip("0") for one in times]
    assert digits and {len(own) for own in digits} == {3}, "of a column, as 49 ms below 67.4 ms looks less exact"
    heads = re.findall(r"<th [^>]*>([^<]+)</th>", shown.content.decode().split('aria-label="Largest operations"')[1])
    assert heads[:2] == ["Operation", "Time in all"]  # which is what a phone shows
    assert rows == member.get(f"/runs/{run.pk}/?tab=accounts&step=10").context["accounts"] and len(rows) == 2


def test_a_run_that_was_disturbed_stays_so(member: Client, alice: Any) -> None:
    """Rules that judge times are skipped for a disturbed run, both here and on its own page."""
    run = factory.finished(alice, PIPELINE, cpu_others=0.5)
    _, shown = opened(member, exported(member, run))
    there = [card.finding for card in findings(run).cards if card.finding.tab != "memory"]
    assert [found for found, *_ in shown.context["findings"].found] == there
    assert [one.rule for one in there] == ["disturbed"]


def test_findings_operators_and_what_if_are_those_of_the_run(member: Client, run: Run) -> None:
    trace, shown = opened(member, exported(member, run))
    there = [card.finding for card in findings(run).cards]
    here = [found for found, *_ in shown.context["findings"].found]
    assert [one.rule for one in here] == [one.rule for one in there if one.rule != "memory_surplus"]
    assert (f"checked the {shown.context['findings'].rules} rules" in shown.content.decode()) == (not here)
    operators = member.get(reverse("traces:operators", args=(trace.pk,))).context["operators"]
    at_home = member.get(f"/runs/{run.pk}/?tab=operators&step=10").context
    assert operators.sentence == at_home["operators_sentence"] and operators.rows == at_home["operator_rows"]
    address = reverse("traces:whatif", args=(trace.pk,))
    asked = {"schedule": "zb-h1", "links": "free"}
    made = member.get(address, asked).context["whatif"]
    wanted = page_whatif.context(run, 10, asked)
    assert made.sentence == wanted["sentence"] and made.times == wanted["times"]
    assert wanted["check"].startswith(f"{made.check} Eight of ten timed steps"), "a trace has no other steps"
    assert [(idea["words"], idea["ns"]) for idea in made.ideas] == [
        (idea["words"], idea["ns"]) for idea in wanted["ideas"]
    ]
    assert made.known.startswith("As recorded: ")
    assert made.chart.figure["data"] == wanted["chart"].figure["data"]


def test_the_plan_over_it_is_that_of_the_run(member: Client, run: Run) -> None:
    trace, shown = opened(member, exported(member, run))
    address = reverse("traces:planned", args=(trace.pk,))
    assert f'hx-get="{address}?step=10"' in shown.content.decode()
    here = member.get(address, {"step": 10}).context
    there = member.get(f"/runs/{run.pk}/?tab=timeline&step=10").context
    mine, own = here["overlay"], there["overlay"]
    assert (mine.title, mine.figure, mine.rows) == (own.title, own.figure, own.rows)
    assert here["late"] == there["late"] and here["late_total"] == there["late_total"] > 0
    assert {row["type"] for row in mine.figure["data"]} == {"bar", "scatter"}, "the critical path is a line"


def test_operators_of_a_run_with_a_moved_cut_are_on_the_layers_that_were_trained(member: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE, inject=[{"kind": "unbalanced_cut", "stage": 0, "units": 2}])
    trace, _ = opened(member, exported(member, run))
    assert trace.spec is not None and trace.spec.inject and trace.trained == of_run(run).trained
    operators = member.get(reverse("traces:operators", args=(trace.pk,))).context["operators"]
    at_home = member.get(f"/runs/{run.pk}/?tab=operators&step=10").context
    assert operators.sentence == at_home["operators_sentence"]


def test_a_run_that_was_broken_on_purpose_says_so_there_too(member: Client, alice: Any) -> None:
    said = "Straggler: rank 1 takes 3 times as long to compute"
    straggler = [{"kind": "straggler", "rank": 1, "factor": 3}]
    trace, shown = opened(member, exported(member, factory.finished(alice, PIPELINE, inject=straggler)))
    badge = f'data-state="broken" title="{said}"'
    assert shown.content.decode().count(badge) == 1 and f"broken on purpose. {said}." in text_of(shown)
    healthy, other = opened(member, exported(member, factory.finished(alice, PIPELINE)))
    assert 'data-state="broken"' not in other.content.decode()
    assert member.get("/traces/").content.decode().count(badge) == 1
    told = member.get("/api/v1/traces").json()["data"]
    assert {one["id"]: one["broken"] for one in told} == {trace.pk: [said], healthy.pk: []}


def test_through_the_api_and_back_and_once_more(client: Client, member: Client, run: Run) -> None:
    answer = member.get(f"/api/v1/runs/{run.pk}/chrome", {"gzip": "true"})
    packed = received(answer)
    assert answer.headers["Content-Disposition"].endswith('-step-10.trace.json.gz"')
    assert gzip.decompress(packed) == exported(member, run)
    sent = member.post("/api/v1/traces", {"files": SimpleUploadedFile("a.json.gz", packed)})
    assert sent.status_code == 201
    assert read_next()
    number = sent.json()["data"]["id"]
    told = member.get(f"/api/v1/traces/{number}").json()["data"]
    assert told["spec"] == of_run(run).spec.model_dump(mode="json") and told["steps"] == [10]
    analysed = member.get(f"/api/v1/traces/{number}/analysis").json()["data"]
    own = {rank: account.parts.as_dict() for rank, account in of_run(run).accounts.items()}
    assert {row["rank"]: row["components"] for row in analysed["accounts"]} == own
    whatif = member.get(f"/api/v1/traces/{number}/whatif", {"links": "free"}).json()["data"]
    assert whatif["sentence"] == member.get(f"/api/v1/runs/{run.pk}/whatif?links=free").json()["data"]["sentence"]
    again = received(member.get(f"/api/v1/traces/{number}/chrome"))
    assert again == exported(member, run), "what was opened can be handed on as it came"
    assert member.get(f"/api/v1/runs/{run.pk}/chrome?step=3").status_code == 404


def test_an_export_has_no_more_than_the_spec_and_names(member: Client, run: Run) -> None:
    mark = json.loads(exported(member, run))["otherData"][MARK]
    names = {"format", "clock", "begin", "ranks", "step", "spec", "run", "recorded", "others", "device", "counted"}
    assert set(mark) == names
    assert mark["spec"] == run.spec and mark["run"] == f"run {run.pk}" and mark["step"] == 10


def test_a_run_like_it_is_one_click_away(member: Client, reader: Client, run: Run) -> None:
    trace, shown = opened(member, exported(member, run))
    form = member.get(shown.context["address"])
    assert form.status_code == 200 and "New run like it" in shown.content.decode()
    assert "New run like it" not in reader.get(f"/traces/{trace.pk}/").content.decode()


def edited(data: bytes, **changes: Any) -> bytes:
    made = json.loads(data)
    made["otherData"][MARK] |= changes
    return json.dumps(made).encode()


def test_without_a_spec_that_holds_the_rest_is_shown_and_names_are_text(member: Client, run: Run) -> None:
    data = edited(exported(member, run), spec={"<script>x": 1}, run="<script>alert(1)</script>")
    trace, shown = opened(member, data)
    assert trace.state == TraceState.READY and trace.spec is None
    assert "<script>alert" not in shown.content.decode() and "<script>x" not in shown.content.decode()
    text = text_of(shown)
    assert "The spec of its run does not hold here" in text and "New run like it" not in text
    for part in ("planned", "whatif", "operators"):
        assert member.get(reverse(f"traces:{part}", args=(trace.pk,))).status_code == 200
    assert "did not come with it" in text_of(member.get(reverse("traces:operators", args=(trace.pk,))))


def test_of_a_part_what_can_be_judged_is_judged(member: Client, run: Run) -> None:
    made = json.loads(exported(member, run))
    made["traceEvents"] = [event for event in made["traceEvents"] if event["pid"] == 0]
    trace, shown = opened(member, json.dumps(made).encode())
    text = text_of(shown)
    assert "There are no spans of rank 1." in text and "not every rank of the run has its spans here" in text
    for name in ("planned", "whatif"):
        assert "a rank is missing" in text_of(member.get(reverse(f"traces:{name}", args=(trace.pk,))))
    assert "It has rank 0 alone" in text_of(member.get(reverse("traces:operators", args=(trace.pk,))))
    assert member.get(f"/api/v1/traces/{trace.pk}/analysis").status_code == 200


def test_a_schedule_far_longer_than_the_spans_is_not_built(
    member: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = of_run(run).spec.model_dump(mode="json")
    spec["parallel"]["micro_batches"] = spec["train"]["global_batch"] = 4096
    trace, shown = opened(member, edited(exported(member, run), spec=spec))
    assert trace.spec is not None
    monkeypatch.setattr(traces, "build", None)
    assert "are not whole" in text_of(member.get(reverse("traces:whatif", args=(trace.pk,))))
    assert shown.status_code == 200 and shown.context["findings"].why_not


def test_a_spec_that_held_once_may_hold_no_more(member: Client, run: Run) -> None:
    trace, _ = opened(member, exported(member, run))
    Trace.objects.update(recorded=trace.recorded | {"spec": {"model": {"layers": -1}}})
    for part in ("", "planned/", "whatif/", "operators/"):
        assert member.get(f"/traces/{trace.pk}/{part}").status_code in (200, 404)
    assert member.get(f"/traces/{trace.pk}/").context["verdict"]
    assert TraceSpans.objects.count() == 2


def test_waits_are_those_of_all_ranks_where_some_are_drawn(
    member: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came last to a collective, and when a message was sent, may be on a rank that is not drawn."""
    monkeypatch.setattr(page, "DRAWN_RANKS", 1)
    trace, _ = opened(member, exported(member, run))
    made, found = page.timeline(trace, 10), step_of(trace, 10)
    assert "1 of 2 ranks" in made.source
    at = made.columns.index("waiting in messages and collectives, ms")
    (row,) = made.rows
    (rank,) = page._drawn(page._idle(found))
    waited = int(found.waited[rank].ns.sum())
    assert waited > 0 and row[at] == significant(waited / 1e6)
    assert found.part([rank]).breakdown[rank] == found.breakdown[rank]
