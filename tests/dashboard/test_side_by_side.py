"""A study whose runs go side by side: several at a time on a host, compared by their losses alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from dashboard.charts import speedup
from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.ledger.models import Prediction, Profile
from dashboard.ledger.services import settle
from dashboard.runs.models import Run, State
from dashboard.runs.tracing import traces
from dashboard.studies import compare, joining, reruns, services
from dashboard.studies.models import Study
from dashboard.studies.new.axes import Swept
from dashboard.studies.new.forms import initial_of
from dashboard.studies.overview import by_loss, figures, method
from dashboard.studies.overview.overviews import SIDE_BY_SIDE
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import overview
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from tests.dashboard.new_study import NEW, SWEEP, preview
from tests.dashboard.plain import plain
from tests.dashboard.test_api_studies import ask
from tests.dashboard.test_by_loss import FOUND, swept, view_of

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker
__all__ = ["ask"]
RATES = Swept("train.lr", ["0.1", "0.01", "0.001"])


def rates(owner: Any, side_by_side: bool = True) -> Study:
    queue = services.InQueue(side_by_side=side_by_side)
    return services.create_sweep(owner=owner, name="rates", base=factory.BASE, swept=RATES, queue=queue)


@pytest.mark.parametrize(("side_by_side", "together"), [(True, 2), (False, 1)])
def test_as_many_runs_start_as_there_are_devices(
    side_by_side: bool, together: int, peer: Peer, controller: Controller, alice: Any
) -> None:
    peer.beat()
    controller.turn()
    study = rates(alice, side_by_side)
    controller.turn()
    assert study.runs.exclude(state=State.QUEUED).count() == together <= peer.devices


def test_runs_that_join_or_run_again_go_beside_the_others_too(worker: Worker, alice: Any) -> None:
    study = rates(alice)
    joining.submit(owner=alice, study=study, request={"spec": factory.spec_of({}, lr=0.5)})
    factory.start(study.runs.all()[0])
    factory.end(study.runs.all()[0], State.LOST, cause="worker_lost")
    assert len(reruns.run_again(study=study, user=alice)) == 1
    assert study.runs.count() == 5 and not study.runs.filter(exclusive=True).exists()
    assert initial_of(study)["side_by_side"] is True and "side_by_side" not in initial_of(rates(alice, False))


def test_no_run_is_called_faster_than_another(reader: Client, alice: Any) -> None:
    study = swept(alice, {0.001: 0.5, 0.01: 0.0, 0.1: 0.25})
    study.runs.update(exclusive=False)
    view = view_of(study)
    assert view.verdict[:2] == [FOUND, SIDE_BY_SIDE] and not any("fastest" in said for said in view.verdict)
    assert figures.speedups(view).title == view.on_times == SIDE_BY_SIDE
    assert not any(entry.speed for entry in view.entries) and "tradeoff" not in figures.of_overview(view)
    disturbed = [replace(entry, others=0.4) for entry in view.entries]
    drawn = speedup.chart(disturbed, SIDE_BY_SIDE, "").figure
    assert drawn["data"] == [], "+40 % in a chart of speedups, beside no bar, was read as one"
    assert drawn["layout"]["meta"]["empty"] == "No speed is compared here."
    links = [said for line in method.of_overview(view, []) for said, _ in line.links if "(run " in said]
    assert links and not any("Single" in said for said in links), "all of them are: it names none"
    two = list(study.runs.all()[:2])
    pair = overview(two, two[0])
    told = compare.verdict(pair, [row for row in pair.rows if row is not pair.baseline])
    assert SIDE_BY_SIDE in told and not any("faster" in said and said != SIDE_BY_SIDE for said in told)
    study.settings["side_by_side"] = True
    study.save()
    page = plain(reader.get(f"/studies/{study.pk}/").content.decode())
    assert SIDE_BY_SIDE in page and "fastest" not in page
    assert page.count('id="loss"') == 1 and page.index('id="loss"') < page.index('aria-label="Speedup"')
    questions = [(one.question, one.lines) for one in report_answers.of_overview(view, {})]
    assert questions[0] == ("Which is fastest, which slowest, and why?", [SIDE_BY_SIDE])
    assert [question for question, _ in questions[1:]] == [
        "Do the ranks run the same operators?",
        "Which takes the least memory?",
        "How many layers fit?",
    ]
    table = plain(reader.get(f"/studies/{study.pk}/report/").content.decode())
    assert SIDE_BY_SIDE in table and "fastest:" not in table and "of the speed" not in table
    runs = ",".join(str(run.pk) for run in study.runs.all()[:2])
    compared = plain(reader.get(f"/compare/?runs={runs}").content.decode())
    assert SIDE_BY_SIDE in compared and "of the earlier speed" not in compared


def test_its_times_are_no_measurement_for_anything_else(alice: Any, profile: Profile) -> None:
    """Neither for the record of predictions, nor for what splitting lost; nor is a loss of equal time compared."""
    study = swept(alice, {0.001: 0.5, 0.01: 0.0})
    first, second = study.runs.order_by("position")
    assert traces.baseline(second) is not None
    Run.objects.filter(study=study).update(exclusive=False)
    first, second = study.runs.order_by("position")
    assert traces.baseline(second) is None
    for run, disturbed in ((first, True), (factory.finished(alice), False)):
        Prediction.objects.filter(run=run).delete()
        Prediction.objects.create(run=run, seconds=0.1)
        settle(run, {**run.summary, "cpu_others": 0.0})
        assert Prediction.objects.get(run=run).disturbed is disturbed
    limited = {**first.spec, "train": {**first.spec["train"], "max_minutes": 5.0}}
    study.runs.update(cause=by_loss.LEFT, spec=limited)
    assert view_of(study).ranking is None
    study.runs.update(exclusive=True)
    found = view_of(study).ranking
    assert found is not None and found.within == "in 5 minutes"


def test_other_processes_are_no_reason_to_run_it_again(alice: Any) -> None:
    study = swept(alice, {0.001: 0.5, 0.01: 0.0})
    for run in study.runs.all():
        Run.objects.filter(pk=run.pk).update(summary={**run.summary, "cpu_others": 0.6})
    assert view_of(study).mostly_disturbed and len(reruns.disturbed(study.runs.all())) == 2
    study.runs.update(exclusive=False)
    assert not reruns.disturbed(study.runs.all())
    assert not any("disturbed" in said for said in view_of(study).verdict)


def test_the_form_and_the_api_ask_for_it(worker: Worker, member: Client, ask: Any) -> None:
    assert "If they ran one after another" in plain(preview(member, {**SWEEP, "side_by_side": "on"}))
    assert member.post(NEW, {**SWEEP, "name": "beside", "side_by_side": "on"}).status_code == 302
    study = Study.objects.get(name="beside")
    assert study.side_by_side and not study.runs.filter(exclusive=True).exists()
    assert "runs side by side" in plain(member.get(f"/studies/{study.pk}/").content.decode())
    again = member.get(NEW, {"clone": study.pk}).content.decode()
    assert 'name="side_by_side"' in again and "checked" in again.split('name="side_by_side"')[1].split(">")[0]
    member.post(NEW, {**SWEEP, "name": "in turn"})
    assert not Study.objects.get(name="in turn").side_by_side
    assert "side_by_side" not in member.get(f"{NEW}?kind=matrix").content.decode()
    runs = [{"label": f"lr {lr}", "spec": factory.spec_of({}, lr=lr)} for lr in (0.1, 0.01)]
    status, answer = ask("POST", "studies", {"name": "listed", "runs": runs, "side_by_side": True})
    assert status == 201 and answer["data"]["side_by_side"] is True
    assert not Run.objects.filter(study=answer["data"]["id"], exclusive=True).exists()


def test_its_queued_runs_are_one_line_of_the_fleets_queue(worker: Worker, member: Client, alice: Any) -> None:
    study = rates(alice)
    factory.queued(alice, name="of no study")
    page = member.get("/fleet/").content.decode()
    assert "Queue: 4 of 4 runs" in page
    line = page.split('<ol class="queue">')[1].split("</li>")[0]
    more = line.split('<p class="small">')[1].split("</p>")[0]
    assert more == f'with 2 more of <a href="/studies/{study.pk}/">rates</a>, side by side'
    assert page.split('<ol class="queue">')[1].split("</ol>")[0].count("<li>") == 2
