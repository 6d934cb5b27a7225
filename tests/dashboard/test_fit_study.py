"""The fit study (largest model that fits): what it queues first, how the end of a run decides the next, what its page
says.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from dashboard.runs import cancelling, services
from dashboard.runs.models import Run, State
from dashboard.runs.waiting import queueing
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.fitting import fit, fit_runs, fit_views
from dashboard.studies.fitting.fit_views import LIVE_PARTS
from dashboard.studies.models import Study
from parallel_core.limits import MAX_LAYERS
from parallel_core.plan.largest import search_for
from parallel_core.plan.room import FRAMEWORK
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW, preview
from tests.dashboard.study_charts import charts_of

pytestmark = pytest.mark.django_db
MIB = 1 << 20
CAP = 8
ASKED = {
    **{key: value for key, value in MATRIX.items() if key not in ("timed_steps", "repeats", "model__layers")},
    "kind": "fit",
    "name": "What fits",
    "strategies": ["single", "1f1b"],
    "recompute": ["none"],
    "micro_batches": "4",
    "cap": str(CAP),
}


@pytest.fixture(autouse=True)
def _broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def study(client: Client, alice: Any) -> Study:
    """A study that was queued through the form."""
    factory.worker(devices=2)
    client.force_login(alice)
    answer = client.post(NEW, ASKED)
    assert answer.status_code == 302, answer.content.decode()
    return Study.objects.latest("pk")


def end(run: Run, truth: dict[str, int]) -> None:
    """Ends a run as if at most `truth` layers fit for its strategy."""
    layers = run.spec["model"]["layers"]
    factory.start(run)
    if layers <= truth[run.label]:
        factory.end(run, State.SUCCEEDED)
    else:
        factory.end(run, State.FAILED, "Rank 0 ran out of memory: activations", fit.OUT_OF_MEMORY)


def finish(study: Study, truth: dict[str, int]) -> list[int]:
    """Runs the study to its end and returns the number of layers of every run."""
    for _ in range(60):
        fit_runs.advance()
        fit_runs.advance()  # a second call finds nothing to do
        for run in study.runs.filter(state=State.QUEUED):
            end(run, truth)
        study.refresh_from_db()
        if not study.settings["searching"]:
            return [run.spec["model"]["layers"] for run in study.runs.order_by("pk")]
    raise AssertionError("the searches do not end")


def predictions(study: Study) -> dict[str, int]:
    return {run.label: search_for(RunSpec.model_validate(run.spec), CAP * MIB).guess for run in study.runs.all()}


def test_each_search_begins_with_what_was_predicted_under_the_cap(study: Study) -> None:
    runs = list(study.runs.order_by("position"))
    assert [run.label for run in runs] == ["Single", "PP-1F1B"]
    for run in runs:
        spec = RunSpec.model_validate(run.spec)
        assert spec.trace.memory_cap == CAP * MIB and spec.trace.memory
        assert spec.model.layers == search_for(spec, CAP * MIB).guess > 1
        assert run.name == f"{run.label}, {spec.model.layers} layers"


def test_a_study_that_cannot_go_on_ends_alone_and_says_why(client: Client, study: Study, alice: Any) -> None:
    """Its stored spec breaks a rule of a later version; the controller and the other studies go on."""
    client.post(NEW, {**ASKED, "name": "What fits, too"})
    other = Study.objects.latest("pk")
    first = study.runs.order_by("pk")[0]
    end(first, predictions(study))
    first.spec["model"]["kind"] = "gone"
    first.save(update_fields=("spec",))
    queued = other.runs.order_by("pk")[0]
    end(queued, predictions(other))
    before = other.runs.count()
    fit_runs.advance()
    study.refresh_from_db()
    assert not study.settings["searching"]
    assert study.settings["note"].startswith("The searches ended early: its spec breaks a rule of this version: ")
    other.refresh_from_db()
    assert other.settings["searching"] and other.runs.count() == before + 1


def test_the_button_says_how_many_runs_it_queues_and_that_more_follow(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    said = preview(client, ASKED)
    assert "<strong>At least 4 runs</strong>" in said and ">Queue 2 runs; 2 or more follow</button>" in said
    client.post(NEW, ASKED)
    assert Run.objects.count() == 2


def test_exact_predictions_cost_two_runs_each(client: Client, study: Study) -> None:
    truth = predictions(study)
    assert len(finish(study, truth)) == 4
    page = client.get(f"/studies/{study.pk}/")
    assert charts_of(client, study)["fit"]["title"] == "Predicted against measured: 2 equal, none above."
    more = truth["PP-1F1B"] / truth["Single"]
    assert page.context["verdict"] == [
        f"PP-1F1B fits {truth['PP-1F1B']} layers in 8 MiB: {more:.2f}x the single device.",
    ]
    assert page.context["equal"].startswith("GPT N x 32, ")
    assert "the memory model predicts; 0.5 % of the memory stays free for its error." in page.content.decode()
    text = page.content.decode()
    assert "Rank 0 ran out of memory: activations" in text and "did not fit" in text and "Over single" in text
    assert charts_of(client, study)["fit"]["rows"][0][:3] == [
        "Single",
        *[str(truth["Single"])] * 2,
    ]
    probe = study.runs.filter(state=State.FAILED).first()
    assert probe is not None
    told = client.get(f"/runs/{probe.pk}/").content.decode()
    assert "Nothing is to be mended" in told and "What would fix it" not in told
    calm = '<span class="badge" data-state="answered"'
    for where in (told, client.get("/runs/").content.decode()):
        assert calm in where and "Did not fit" in where and 'class="badge" data-state="failed"' not in where
    listed = client.get("/studies/").content.decode()
    assert "the single device" in listed and "failed</span>" not in listed, "reaching a limit is no failure"


def test_a_turn_sends_the_searches_that_moved_on_alone(client: Client, study: Study) -> None:
    address = f"/studies/{study.pk}/changes.json"
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert f'data-live-changes="{address}"' in page and "data-live-charts" not in page
    first = client.get(address).json()
    pipeline, single = (predictions(study)[label] for label in ("PP-1F1B", "Single"))
    title = f"PP-1F1B is predicted to hold {pipeline} layers, Single {single}."
    assert page.count(title) == 1 and page.count("2 of 2 searches are still under way.") == 1
    assert set(first["parts"]) == set(LIVE_PARTS) and set(first["charts"]) == {"fit"}
    for name, keys in first["parts"].items():
        assert "".join(first["texts"][key] for key in keys).strip() in page, name
    have = {"X-Have": ",".join(first["texts"])}
    assert client.get(address, headers=have).json()["texts"] == {}
    run = study.runs.filter(state=State.QUEUED).first()
    assert run is not None
    end(run, predictions(study))
    told = client.get(address, headers=have).json()["texts"].values()
    assert sum("<tr" in text for text in told) == 1 and any(f"{run.name}: fitted" in text for text in told)


def test_wrong_predictions_are_searched_and_said(client: Client, study: Study) -> None:
    said = predictions(study)
    truth = {"Single": said["Single"] + 1, "PP-1F1B": said["PP-1F1B"] - 6}
    layers = finish(study, truth)
    assert len(layers) == len(study.runs.values_list("name").distinct()), "no number of layers is run twice"
    found = {hunt.label: hunt for hunt in fit.hunts(study.runs.all())}
    assert {label: hunt.largest for label, hunt in found.items()} == truth
    assert fit.accuracy(list(found.values())) == "Predicted against measured: 1 below by one layer, 1 above."
    below, above = charts_of(client, study)["fit"]["figure"]["data"]
    assert above["text"] == [f" {truth['Single']}, predicted {said['Single']}", ""]
    assert below["text"] == ["", f" {truth['PP-1F1B']}, predicted {said['PP-1F1B']}"]
    assert below["width"] > above["width"], "an outline that ends inside the solid bar remains visible around it"
    rows = list(csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()))
    assert [(row["strategy"], int(row["difference"]), row["state"]) for row in rows] == [
        ("Single", -1, "found"),
        ("PP-1F1B", 6, "found"),
    ]
    assert client.get(f"/studies/{study.pk}/report/").headers["Location"] == f"/studies/{study.pk}/"


def test_all_that_hold_the_most_are_named_and_what_is_sought_yet_may_hold_more(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    client.post(NEW, {**ASKED, "strategies": ["single", "dp", "1f1b"]})
    study = Study.objects.latest("pk")
    finish(study, {"Single": 5, "DP": 5, "PP-1F1B": 4})
    found = fit.hunts(study.runs.all())
    single, dp, pipeline = (next(h for h in found if h.label == label) for label in ("Single", "DP", "PP-1F1B"))
    assert fit.sentences(found, None) == ["Single and DP fit 5 layers on their devices, the most of all."]
    assert fit.sentences([single, dp], None) == ["Single and DP fit 5 layers on their devices."]
    open_one = replace(dp, runs=[], search=replace(dp.search, tried={}))
    said = fit.sentences([single, open_one, pipeline], None)
    assert said[0] == "Single fits 5 layers on its device, the most so far."


def test_a_study_without_a_name_is_not_named_after_layers_that_it_seeks(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    client.post(NEW, {**ASKED, "name": ""})
    study = Study.objects.latest("pk")
    assert study.name == "Fit: GPT N x 32"
    page = client.get(f"/studies/{study.pk}/").content.decode()
    (first, _) = (run.spec["model"]["layers"] for run in study.runs.order_by("pk"))
    assert f">{first}&nbsp;(queued)</a>" in page, "1 Queued would read as a number of runs"


def test_searches_under_way_can_be_cancelled_from_the_page(client: Client, study: Study, reader: Client) -> None:
    address, cancel = f"/studies/{study.pk}/", f"/runs/cancel?all_of={study.pk}"
    assert cancel in client.get(address).content.decode()
    assert cancel not in reader.get(address).content.decode(), "not offered to users who may not change the study"
    finish(study, predictions(study))
    assert cancel not in client.get(address).content.decode()


def test_a_cancelled_run_ends_its_search_alone(client: Client, study: Study, alice: Any) -> None:
    single, other = study.runs.order_by("position")
    cancelling.request_cancel(run=single, user=alice)
    end(other, {"PP-1F1B": 99})
    fit_runs.advance()
    assert study.runs.filter(label="Single").count() == 1
    assert study.runs.filter(label="PP-1F1B").count() == 2
    text = client.get(f"/studies/{study.pk}/").content.decode()
    assert "Single was not found: its run of" in text and "still under way" in text


def test_a_search_that_was_stopped_goes_on_where_it_was(
    client: Client, study: Study, alice: Any, reader: Client
) -> None:
    """One run was cancelled and one lost; each is queued again with as many layers, and found the answer then."""
    truth, address = predictions(study), f"/studies/{study.pk}/"
    single, other = study.runs.order_by("position")
    cancelling.request_cancel(run=single, user=alice)
    factory.start(other)
    factory.end(other, State.LOST, "Its worker was silent.", "worker_lost")
    fit_runs.advance()
    study.refresh_from_db()
    assert not study.settings["searching"]
    study.settings["note"] = "The searches ended early: something went wrong"
    study.save()
    page, viewed = (who.get(address).content.decode() for who in (client, reader))
    assert "Run the cancelled one</button>" in page and "Run the one cut off again</button>" in page
    assert "its search then goes on" in page and address + "again/" not in viewed
    assert reader.post(f"{address}again/").status_code == 403
    client.post(f"{address}again/")
    kind = "application/json"
    made = client.post(f"/api/v1{address}again", {"which": "cancelled"}, content_type=kind).json()["data"]
    assert [run["name"] for run in made["queued"]] == [single.name]
    again = {run.repeats_id: run.spec for run in study.runs.filter(state=State.QUEUED)}
    assert again == {single.pk: single.spec, other.pk: other.spec}
    page = client.get(address).content.decode()
    assert "was not found" not in page and "ended early" not in page and address + "again/" not in page
    layers = finish(study, truth)
    assert sorted(layers[2:]) == sorted(n + more for n in truth.values() for more in (0, 1))
    found = {hunt.label: hunt for hunt in fit.hunts(study.runs.all())}
    assert {label: hunt.largest for label, hunt in found.items()} == truth
    assert all(hunt.best and hunt.best.state == State.SUCCEEDED for hunt in found.values())
    listed = client.get("/studies/").content.decode()
    assert "failed</span>" not in listed and "cancelled</span>" not in listed


def test_what_fitted_though_others_disturbed_it_is_not_run_again(client: Client, study: Study) -> None:
    """Nothing is timed; and an error in the training code would recur."""
    single, other = study.runs.order_by("position")
    end(single, predictions(study))
    Run.objects.filter(pk=single.pk).update(summary={"cpu_others": 0.9})
    factory.start(other)
    factory.end(other, State.FAILED, "Rank 0 failed: ValueError", "user_code")
    assert "again/" not in client.get(f"/studies/{study.pk}/").content.decode()
    said = client.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert "Nothing was queued: no run was disturbed or cut off" in said and study.runs.count() == 2


def test_the_form_wants_a_cap_on_cpus_and_leaves_out_what_cannot_fit(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    first = client.get(f"{NEW}?kind=fit").content.decode()
    assert "At least 2 for each variant: the layers that should fit, then one more, which should not." in first
    assert "for each variant" not in client.get(NEW).content.decode()
    assert "name a cap" in client.post(NEW, {**ASKED, "cap": ""}).content.decode()
    refused = client.post(NEW, {**ASKED, "cap": "1", "model__hidden": "512"})
    assert refused.status_code == 422 and "there is room for 1 MiB" in refused.content.decode()
    assert not Study.objects.exists()


def test_what_holds_no_layer_stands_on_the_page_with_its_reason(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    assert client.post(NEW, {**ASKED, "cap": "2"}).status_code == 302
    study = Study.objects.latest("pk")
    assert study.runs.count() == 1
    for kind in ("fit", "matrix"):  # a page of its own, and that of most kinds
        Study.objects.filter(pk=study.pk).update(kind=kind)
        text = " ".join(client.get(f"/studies/{study.pk}/").content.decode().split())
        assert "1 left out when it was queued" in text and "Over single" not in text
        assert "<strong>Single</strong> needs 2.2 MiB with 1 layer; there is room for 2 MiB." in text


def test_each_search_begins_with_what_fits_the_devices_that_it_can_have(client: Client, alice: Any) -> None:
    """One large GPU, and two small ones on another host: without a cap the room of a run with two ranks is theirs."""
    large, small = 5 << 29, 9 << 28
    factory.sized("yard-a", large, kind="cuda")
    factory.sized("yard-b", small, small, kind="cuda")
    client.force_login(alice)
    answer = client.post(NEW, {**ASKED, "train__device": "cuda", "cap": "", "model__hidden": "512"})
    assert answer.status_code == 302, answer.content.decode()
    study = Study.objects.latest("pk")
    assert study.settings["skipped"] == []
    specs = [RunSpec.model_validate(run.spec) for run in study.runs.order_by("position")]
    rooms = [size - FRAMEWORK["cuda"] for size in (large, small)]
    assert [spec.parallel.pp for spec in specs] == [1, 2]
    assert [spec.model.layers for spec in specs] == [
        search_for(spec, room).guess for spec, room in zip(specs, rooms, strict=True)
    ]


def test_one_strategy_in_two_precisions_is_two_searches(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    client.post(NEW, {**ASKED, "strategies": ["single"], "precisions": ["fp32", "bf16"]})
    study = Study.objects.latest("pk")
    assert [hunt.label for hunt in fit.hunts(study.runs.all())] == ["Single, m = 1, fp32", "Single, m = 1, bf16"]
    assert client.get(f"{NEW}?clone={study.pk}").context["kind"].key == "fit"


def test_a_model_of_fixed_depth_is_refused_in_words(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    vgg = {**ASKED, "model__kind": "vgg16"}
    for name in ("hidden", "heads", "seq", "vocab"):
        vgg.pop(f"model__{name}", None)
    answer = client.post(NEW, vgg)
    assert answer.status_code == 422
    assert "has no layer count, its depth is fixed; vary width, image" in answer.content.decode()
    assert not Study.objects.exists()


def test_an_mlp_is_sought_as_a_gpt_is(client: Client, alice: Any) -> None:
    factory.worker(devices=2)
    client.force_login(alice)
    mlp = {**ASKED, "model__kind": "mlp", "cap": "2"}
    for name in ("heads", "seq", "vocab"):
        mlp.pop(f"model__{name}", None)
    answer = client.post(NEW, mlp)
    assert answer.status_code == 302, answer.content.decode()
    specs = [RunSpec.model_validate(run.spec) for run in Study.objects.latest("pk").runs.all()]
    assert [spec.model.kind for spec in specs] == ["mlp", "mlp"]
    assert all(spec.model.layers == search_for(spec, 2 * MIB).guess > 1 for spec in specs)


def test_a_study_that_is_removed_while_a_trial_is_predicted_ends_quietly(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction holds no transaction open: SQLite has one writer at a time."""
    ends = dict.fromkeys(predictions(study), 1)
    for run in study.runs.all():
        end(run, ends)
    depth, prepare = len(connection.savepoint_ids), services.prepare

    def slow(**orders: Any) -> Any:
        assert len(connection.savepoint_ids) == depth
        made = prepare(**orders)
        Run.objects.filter(study=study.pk).delete()
        Study.objects.filter(pk=study.pk).delete()
        return made

    monkeypatch.setattr(services, "prepare", slow)
    fit_runs.advance()
    assert not Run.objects.exists()


@pytest.mark.parametrize("removed", [True, False])
def test_a_study_that_is_removed_or_changed_while_a_trial_fails_is_not_ended_as_it_was(
    study: Study, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    ends = dict.fromkeys(predictions(study), 1)
    for run in study.runs.all():
        end(run, ends)
    changed = {**study.settings, "note": "asked again"}

    def fails(**orders: Any) -> Any:
        if removed:
            Run.objects.filter(study=study.pk).delete()
            Study.objects.filter(pk=study.pk).delete()
        else:
            Study.objects.filter(pk=study.pk).update(settings=changed)
        raise services.Invalid({"devices": "too many"})

    monkeypatch.setattr(services, "prepare", fails)
    fit_runs.advance()
    assert [found.settings for found in Study.objects.all()] == ([] if removed else [changed])


def test_a_study_whose_owner_may_not_submit_any_more_says_whose_it_is(client: Client, study: Study, alice: Any) -> None:
    """It said to everybody who read it that their own account may not submit."""
    ends = dict.fromkeys(predictions(study), 1)
    for run in study.runs.all():
        end(run, ends)
    alice.groups.clear()
    fit_runs.advance()
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "The searches ended early: alice, who owns the study, may not submit runs any more." in page
    assert "Your account" not in page


def test_a_trial_goes_where_its_study_was_put_while_it_was_predicted(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = dict.fromkeys(predictions(study), 1)
    for run in study.runs.all():
        end(run, ends)
    prepare = services.prepare

    def beside_a_change(**orders: Any) -> Any:
        queueing.change_study(study=study, user=study.owner, run_on="worker:yard-a", priority=Priority.LOW)
        return prepare(**orders)

    monkeypatch.setattr(services, "prepare", beside_a_change)
    fit_runs.advance()
    trials = study.runs.filter(state=State.QUEUED)
    assert set(trials.values_list("run_on", "priority")) == {("worker:yard-a", Priority.LOW)}


def test_a_trial_that_was_queued_meanwhile_is_not_queued_again(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = dict.fromkeys(predictions(study), 1)
    for run in study.runs.all():
        end(run, ends)
    prepare, count = services.prepare, study.runs.count()

    def beside_another(**orders: Any) -> Any:
        monkeypatch.undo()
        fit_runs.advance()
        return prepare(**orders)

    monkeypatch.setattr(services, "prepare", beside_another)
    fit_runs.advance()
    assert study.runs.count() == count + 2


def test_what_fitted_so_far_is_outlined_until_the_search_has_found_the_largest(
    client: Client, study: Study, alice: Any
) -> None:
    truth = predictions(study)
    for run in study.runs.all():
        end(run, truth)
    fit_runs.advance()
    under_way = charts_of(client, study)["fit"]
    _, ran = under_way["figure"]["data"]
    assert ran["marker"]["color"] == ["rgba(0,0,0,0)"] * 2
    assert under_way["subtitle"].endswith("; thin outline = fitted so far")
    assert [row[2:] for row in under_way["rows"]] == [
        [f"{truth[label]} so far", "still searching"] for label in ("Single", "PP-1F1B")
    ]
    single = study.runs.get(label="Single", state=State.QUEUED)
    cancelling.request_cancel(run=single, user=alice)
    end(study.runs.get(label="PP-1F1B", state=State.QUEUED), truth)
    fit_runs.advance()
    over = charts_of(client, study)["fit"]
    assert over["figure"]["data"][1]["marker"]["color"] == ["rgba(0,0,0,0)", "var(--bar)"]
    assert over["rows"][0][2:] == [f"{truth['Single']} so far", "not found"]
    assert over["rows"][1][2:] == [str(truth["PP-1F1B"]), ""]


def test_a_search_that_ends_at_the_most_layers_a_spec_may_have_knows_no_largest(study: Study) -> None:
    single, pipeline = fit.hunts(study.runs.all())
    for hunt in (single, pipeline):
        Run.objects.filter(pk=hunt.runs[0].pk).update(state=State.SUCCEEDED)
    runs = list(study.runs.order_by("pk"))
    for run in runs:
        run.spec["model"]["layers"] = MAX_LAYERS
    found = fit.hunts(runs)
    assert [(hunt.bounded, hunt.largest, hunt.off) for hunt in found] == [(True, MAX_LAYERS, None)] * 2
    said = fit.sentences(found, None)
    assert said[0] == "Single and PP-1F1B fit at least 1024 layers on their devices, the most a spec may have."
    assert len(said) == 1
    made = fit_views._chart(found, None)
    assert (
        made.title == "Predicted against measured: not known, as no search ended below the most layers a spec may have."
    )
    assert "thin outline at 1\N{NO-BREAK SPACE}024 = fitted, and no spec may have more layers" in made.subtitle
    assert made.rows[0][2:] == ["1\N{NO-BREAK SPACE}024 or more", "no spec may have more layers"]
    assert fit_views._line(found, found[1]).times is None, "no ratio of two lower bounds"
