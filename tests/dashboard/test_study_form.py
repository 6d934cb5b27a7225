"""New study: what would run is shown before the click, errors are shown at their field, and all input is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs.form.entry import html_name
from dashboard.runs.form.spec_fields import ENTRIES, part_of, to_spec
from dashboard.runs.models import Run
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import families, kinds, variants
from dashboard.studies.new.axes import Swept
from dashboard.studies.new.forms import TrainingForm
from dashboard.studies.new.matrix_form import MatrixForm
from dashboard.studies.new.strategies import BY_KEY
from dashboard.studies.new.sweep_form import SweepForm
from dashboard.studies.starter import create_starter
from parallel_core.outline import outline_of
from parallel_core.spec import ModelSpec, RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW, SWEEP, preview
from tests.dashboard.plain import error_at, plain

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker


@pytest.fixture
def member(client: Client, alice: Any) -> Client:
    client.force_login(alice)
    host = factory.worker()
    host.calibration = {
        "device": "cpu",
        "model": {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 256},
        "global_batch": 16,
        "step_time": 0.1,
    }
    host.save()
    return client


def test_first_page_already_says_what_would_run(member: Client) -> None:
    page = member.get(NEW).content.decode()
    assert "<strong>14 runs</strong>" in page
    assert "2 devices" in page
    assert "min</strong>" in page
    assert member.get(NEW + "?kind=sweep").status_code == 200


def test_strategies_stand_in_the_families_of_new_run(member: Client) -> None:
    grouped = dict(families.choices())
    assert sorted(key for group in grouped.values() for key, _ in group) == sorted(BY_KEY)
    assert [key for key, _ in grouped["Tensor parallel"]] == ["tp", "tp-columns", "tp-sp"]
    assert {"naive", "1f1b", "zb-v"} <= {key for key, _ in grouped["Pipeline"]}
    assert all(key.startswith("1f1b-") for key, _ in grouped["Pipeline, no flush"])
    page = member.get(NEW).content.decode()
    assert [page.count(f'role="group" aria-label="{name}"') for name in grouped] == [1] * len(grouped)
    assert page.count('name="strategies"') == len(BY_KEY)


def test_queues_what_the_preview_said(member: Client) -> None:
    assert "<strong>8 runs</strong>" in preview(member, MATRIX)
    answer = member.post(NEW, MATRIX)
    study = Study.objects.get()
    assert answer.status_code == 302
    assert answer.headers["Location"] == reverse("studies:page", args=[study.pk])
    assert study.runs.count() == 8
    assert {run.spec["train"]["steps"] for run in study.runs.all()} == {23}


@pytest.mark.parametrize(
    ("data", "message"),
    (
        ({**MATRIX, "name": "x" * 130}, "A name has at most 120 characters; this one has 130."),
        ({**SWEEP, "values": ""}, "Write at least one value, such as 1, 2, 4."),
        ({**SWEEP, "values": " , "}, "Write at least one value, such as 1, 2, 4."),
        (
            {**MATRIX, "kind": "stashing", "devices": "2", "micro_batches": "3"},
            "3 micro-batches do not divide the global batch 16; try 1, 2, 4, 8, 16.",
        ),
        (
            {**MATRIX, "kind": "stashing", "devices": "2", "micro_batches": "3"},
            "3 micro-batches do not divide the global batch 16; try 15 or 18.",
        ),
        ({**MATRIX, "kind": "stashing", "devices": "3"}, "The fleet has 2 CPU devices; choose at most that many."),
        (
            {**MATRIX, "micro_batches": " ".join(map(str, range(1, 66)))},
            "Write at most 64 different numbers; these are 65.",
        ),
    ),
)
def test_what_is_wrong_is_said_at_its_field(member: Client, data: dict[str, Any], message: str) -> None:
    answer = member.post(NEW, data)
    assert answer.status_code == 422 and not Study.objects.exists()
    assert message in answer.content.decode()


@pytest.mark.parametrize("kind", [key for key, one in kinds.KINDS.items() if issubclass(one.form, TrainingForm)])
def test_a_refused_study_begins_with_links_to_what_is_wrong(member: Client, kind: str) -> None:
    data = SWEEP if kind == "sweep" else {**MATRIX, "kind": kind}
    page = member.post(NEW, {**data, "train__lr": "-1", "model__vocab": "x"}).content.decode()
    assert "<strong>Not queued.</strong> Put right <a href=" in page
    assert "; everything you typed is still there." in page
    for anchor, label in (("f-model__vocab", "Vocabulary"), ("f-train__lr", "Learning rate")):
        assert f'<a href="#{anchor}">{label}</a>' in page and f'id="{anchor}"' in page
    assert "Not queued" not in member.post(NEW, {**data, "train__lr": "-1", "preview": "1"}).content.decode()
    assert "Not queued" not in member.get(f"{NEW}?kind={kind}").content.decode()


def test_a_refused_study_shows_what_is_wrong_in_its_folded_part_and_in_its_boxes(member: Client) -> None:
    folded = '<details class="accordion"><summary>Architecture in detail'
    assert folded in member.get(NEW).content.decode()
    page = member.post(NEW, {**MATRIX, "strategies": [], "model__dropout": "2"}).content.decode()
    assert '<a href="#f-strategies_0_0">Strategies</a> and <a href="#f-model__dropout">' in page
    assert 'id="f-strategies_0_0"' in page and folded not in page


def test_a_study_of_which_nothing_can_run_says_so(member: Client) -> None:
    said = preview(member, {**SWEEP, "values": "15, 17"})
    assert "<strong>Nothing would run:</strong>" in said and "up to" not in said.split("</p>")[0]
    assert " disabled>Queue 0 runs</button>" in said


def test_products_that_need_more_devices_say_how_many(member: Client) -> None:
    said = preview(member, {**MATRIX, "strategies": ["dp", "dp-tp"], "devices": "2"})
    assert "needs 4 devices, or a larger even number; this study has 2." in said


def test_a_split_that_cannot_be_is_named_by_its_strategy(member: Client) -> None:
    asked = {**MATRIX, "kind": "scaling", "strategies": ["dp"], "ways": ["strong"], "counts": "2, 3"}
    said = preview(member, {**asked, "micro_batches": "4"})
    assert "DP on 3" in said and "This split" not in said


def test_sweep_names_the_value_it_leaves_out(member: Client) -> None:
    said = preview(member, SWEEP)
    assert "<strong>2 runs</strong>" in said
    assert "Global batch = 15" in said
    assert "does not divide Global batch = 15" in said
    member.post(NEW, SWEEP)
    assert [run.spec["train"]["global_batch"] for run in Run.objects.order_by("position")] == [8, 16]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    (
        ("micro_batches", "", "Write whole numbers"),
        ("name", "n" * 121, "at most 120 characters"),
        ("model__heads", "5", "does not divide Hidden size = 32"),
        ("model__layers", "-1", "at least 1; got -1"),
        ("model__layers", "two", "A whole number is needed"),
        ("train__lr", "nan", "A number is needed"),
        ("train__lr", "0", "more than 0"),
        ("devices", "64", "The fleet has 2 CPU devices"),
        ("micro_batches", "2, x", "Write whole numbers"),
        ("micro_batches", "5000", "Each must be from 1 to 4\xa0096"),
        ("timed_steps", "3", "Timed steps must be a whole number from 10 to"),
        ("repeats", "99", "Repeats must be a whole number from 1 to 20; got 99."),
        ("train__corpus", "blob:" + "0" * 64, "Corpus must be stdlib"),
        ("strategies", [], "Choose at least one strategy."),
    ),
)
def test_a_wrong_field_is_named_and_nothing_is_lost(member: Client, field: str, value: Any, message: str) -> None:
    data = {**MATRIX, "name": "Kept <b>name</b>", field: value}
    answer = member.post(NEW, data)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert message in error_at(page, field)
    if field != "name":
        assert 'value="Kept &lt;b&gt;name&lt;/b&gt;"' in page
    assert not Study.objects.exists()
    assert not Run.objects.exists()


def test_preview_answers_with_the_message_of_each_field(member: Client) -> None:
    said = preview(member, {**MATRIX, "model__heads": "5"})
    assert 'hx-swap-oob="true"' in said
    assert "does not divide Hidden size = 32" in said.split('id="error-model__heads"')[1].split("</p>")[0]


@pytest.mark.parametrize(("asked", "kind"), [(MATRIX, "Matrix"), (SWEEP, "Sweep of Global batch")])
def test_a_study_without_a_name_is_called_by_its_kind_and_model(
    member: Client, asked: dict[str, Any], kind: str
) -> None:
    assert member.post(NEW, {**asked, "name": "  "}).status_code == 302
    study = Study.objects.get()
    assert study.name == f"{kind}: {outline_of(ModelSpec(**study.base['model'])).title}"


def test_a_study_is_cloned_with_everything_it_asked_for(member: Client, alice: Any) -> None:
    member.post(NEW, {**MATRIX, "model__tied": "on"})
    study = Study.objects.get()
    page = member.get(NEW, {"clone": study.pk}).content.decode()
    assert "<strong>8 runs</strong>" in page
    assert 'value="2, 4"' in page
    assert 'value="Which is fastest? (again)"' in page
    member.post(NEW, {**SWEEP, "name": "sweep"})
    page = member.get(NEW, {"clone": Study.objects.get(name="sweep").pk}).content.decode()
    assert 'value="8, 16, 15"' in page
    assert member.get(NEW, {"clone": 999}).status_code == 404


def test_the_starter_study_can_be_cloned(member: Client, alice: Any) -> None:
    starter = create_starter(owner=alice, worker=factory.worker())
    assert "<strong>14 runs</strong>" in member.get(NEW, {"clone": starter.pk}).content.decode()


def test_a_run_becomes_the_base_of_a_study(member: Client, alice: Any) -> None:
    run = factory.queued(alice, train={"global_batch": 48})
    assert 'value="48"' in member.get(NEW, {"run": run.pk}).content.decode()


def test_viewers_are_refused(client: Client, bob: Any) -> None:
    client.force_login(bob)
    assert client.get(NEW).status_code == 403
    assert client.post(NEW, MATRIX).status_code == 403
    assert not Study.objects.exists()


@pytest.mark.parametrize("key", kinds.KINDS)
def test_every_kind_opens_under_its_own_name(member: Client, key: str) -> None:
    answer = member.get(NEW, {"kind": key})
    assert answer.status_code == 200
    assert type(answer.context["form"]) is kinds.KINDS[key].form and kinds.KINDS[key].form.kind == key


class TwoSeeds(TrainingForm):
    """The least that a kind consists of."""

    kind = "seeds"
    title = "Two seeds"

    def plan(self) -> variants.Plan:
        return variants.sweep(self.base(), Swept("train.seed", ["1", "2"]))

    def create(self, owner: Any) -> Study:
        return services.create(**self.common(owner), new=self.new({}))


def test_a_kind_without_fields_of_its_own_has_no_group_of_them(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.KINDS, "seeds", kinds.StudyKind("Twice.", TwoSeeds))
    page = member.get(NEW, {"kind": "seeds"}).content.decode()
    assert "Twice." in page and "What differs" not in page
    asked = {name: value for name, value in MATRIX.items() if name not in ("strategies", "recompute")}
    assert member.post(NEW, {**asked, "kind": "seeds"}).status_code == 302
    assert [run.spec["train"]["seed"] for run in Study.objects.get().runs.order_by("position")] == [1, 2]


def test_another_kind_plugs_in(member: Client) -> None:
    class Other(MatrixForm):
        kind = "other"
        title = "Other kind"

    with patch.dict(kinds.KINDS):  # which other tests find as it was
        kinds.register(kinds.StudyKind("Said of it.", Other))
        assert '<a href="?kind=other">Other kind</a>' in member.get(NEW).content.decode()
        assert "Said of it." in member.get(NEW, {"kind": "other"}).content.decode()
        with pytest.raises(ValueError, match="exists already"):
            kinds.register(kinds.StudyKind("", Other))
    assert "other" not in kinds.KINDS


def test_the_first_page_has_the_defaults_of_the_spec(db: None) -> None:
    form = SweepForm()
    shown = {name: form[name].value() for name in form.fields}
    asked = [path for path in ENTRIES if html_name(path) in shown and path != "train.corpus"]
    assert {"model.layers", "train.lr", "parallel.schedule"} <= set(asked)
    assert part_of(RunSpec.model_validate(to_spec(shown, asked)), asked) == part_of(RunSpec(), asked)


def test_a_sweep_leaves_out_what_no_worker_can_run(member: Client) -> None:
    sweep = {**SWEEP, "field": "parallel.dp", "values": "1, 2, 4"}
    said = preview(member, sweep)
    assert "<strong>2 runs</strong>" in said
    assert "4 replicas need 4 CPU devices; the fleet has 2." in said
    large = {**MATRIX, "model__layers": "64", "model__hidden": "8192", "model__vocab": "100000"}
    said = preview(member, large)
    assert "<strong>Nothing would run:</strong>" in said
    assert "there is room for 3.7 GiB." in said
    answer = member.post(NEW, large)
    assert answer.status_code == 422
    assert "Nothing is left to run." in answer.content.decode()
    assert not Run.objects.exists()


def test_a_fleet_of_one_device_has_a_plan_at_once_or_its_field_is_marked(client: Client, alice: Any) -> None:
    client.force_login(alice)
    factory.worker(devices=1)
    for kind in ("matrix", "fit"):
        page = client.get(NEW, {"kind": kind})
        assert page.context["form"]["devices"].value() == 1 and page.context["preview"]["total"], kind
    page = client.get(NEW, {"kind": "stashing"})
    said = page.content.decode()
    assert not page.context["preview"] and "Correct the marked fields" in said
    assert "The fleet has 1 CPU device; choose at most that many." in plain(said), "so it is marked"
    assert "Not queued" not in said, "nobody has sent anything"


def test_a_silent_worker_offers_no_devices(member: Client) -> None:
    host = factory.worker("silent", 8)
    host.heartbeat_at = timezone.now() - timedelta(minutes=1)
    host.save()
    assert "The fleet has 2 CPU devices" in preview(member, {**MATRIX, "devices": "4"})


def test_a_matrix_of_too_many_combinations_is_not_worked_out(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> variants.Plan:
        plan = matrix(*args, **kwargs)
        planned.append(len(plan.variants) + len(plan.skipped))
        return plan

    matrix = variants.matrix
    monkeypatch.setattr(variants, "matrix", counted)
    monkeypatch.setattr(variants, "MOST_TRIED", 3)
    why = "there are more than 3, and a study holds at most 200 runs."
    assert f"were not looked at: {why}" in preview(member, MATRIX)
    assert planned == [4], "the plan is made once, of three combinations"
    answer = member.post(NEW, MATRIX)
    assert answer.status_code == 422 and f"Choose fewer combinations: {why}" in answer.content.decode()
    assert not Study.objects.exists()


def test_more_runs_than_a_study_holds_are_said_before_they_are_queued(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    disabled, why = 'id="queue" disabled', "4 runs; a study holds at most 3."
    few = preview(member, {**SWEEP, "repeats": "2"})
    assert "4 runs" in few and disabled not in few and "holds at most" not in few
    monkeypatch.setattr(variants, "MAX_RUNS", 3)
    many = preview(member, {**SWEEP, "repeats": "2"})
    assert why in many and disabled in many
    refused = member.post(NEW, {**SWEEP, "repeats": "2"}).content.decode()
    assert refused.count(f'<p class="error">{why}') == 1


def test_the_form_looks_once_however_many_variants_it_lists(member: Client, django_assert_max_num_queries: Any) -> None:
    """Queries for the user (3), the fleet (2), whether the controller is at work, corpora (of the form and of the
    specs), and the profiles of all variants. The HTMX response needs the corpora once, and whether there is any study.
    """
    listed = str(member.get(NEW).content)
    assert listed.count("<li>") > 8
    with django_assert_max_num_queries(9):
        member.get(NEW)
    with django_assert_max_num_queries(9):
        assert "14 runs" in preview(member, {**MATRIX, "micro_batches": "1, 2, 4, 8, 16"})


def test_a_corpus_that_no_run_could_read_is_refused_before_the_study(member: Client) -> None:
    """Each of its runs would fail with the same words; a field that is swept is not judged by what its form has."""
    pets = {"name": "pets", "images": 900, "height": 32, "width": 32, "channels": 3, "classes": 7}
    Worker.objects.update(image_files=[pets])
    images = {**SWEEP, "model__kind": "vgg16", "model__width": "2", "train__corpus": "images:pets"}
    assert "has images of 3 channels, and the model 1; use Image channels = 3." in preview(member, images)
    images |= {"model__channels": "3"}
    assert "Image file pets" not in preview(member, images)
    images |= {"model__classes": "5"}
    assert "Image file pets has 7 classes, and the model 5" in preview(member, images)
    assert "Image file pets" not in preview(member, images | {"field": "model.classes", "values": "7, 8"})
