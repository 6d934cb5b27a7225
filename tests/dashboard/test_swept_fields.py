"""Sweeps: of one field or two crossed, in the units of New run, and without runs that would be twins."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from dashboard.runs.form.entry import html_name
from dashboard.runs.form.form_words import short_label
from dashboard.runs.models import Run
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import kinds, sweepable, variants
from dashboard.studies.new.axes import Swept
from dashboard.studies.new.forms import FINE, TrainingForm
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW, SWEEP, preview
from tests.dashboard.plain import error_at

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker

BASE = {"model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 32}, "train": {"global_batch": 16}}


@pytest.fixture
def member(client: Client, alice: Any) -> Client:
    client.force_login(alice)
    factory.worker()
    return client


READS: dict[str, dict[str, Any]] = {
    **{f"model.{name}": {"model": {"kind": "vgg16"}} for name in ("image", "width", "channels", "classes")},
    "parallel.recompute_layers": {"parallel": {"recompute": "full"}},
    "parallel.zero_backend": {"model": {"tied": False}, "parallel": {"dp": 2, "zero": 3}},
    "train.eval_samples": {"train": {"eval_every": 10}},
    "train.momentum": {"train": {"optimizer": "sgd"}},
    "train.lr_final": {"train": {"lr_schedule": "cosine"}},
    **{path: {"train": {"precision": "fp16"}} for path in sweepable.fields() if path.startswith("train.loss_scale")},
}
"""Fields that a run of the defaults does not read: a base that reads them."""


@pytest.mark.parametrize(("field", "base"), READS.items())
def test_a_value_that_no_run_would_read_is_left_out_with_its_reason(field: str, base: dict[str, Any]) -> None:
    """Each would be the twin of every other run of the study."""
    section, leaf = field.split(".")
    value = getattr(getattr(RunSpec.model_validate(base), section), leaf)
    plan = variants.sweep({}, Swept(field, [str(value)]))
    assert not plan.variants
    assert [f"“{short_label(field)}” changes nothing while" in gone.reason for gone in plan.skipped] == [True]


def test_a_size_is_swept_in_the_unit_of_its_field() -> None:
    plan = variants.sweep(BASE, Swept("trace.memory_cap", ["64", "0.5", "none"]))
    assert [variant.spec.trace.memory_cap for variant in plan.variants] == [64 << 20, 1 << 19, None]
    assert [variant.name for variant in plan.variants] == [
        "Memory cap = 64 MiB",
        "Memory cap = 0.5 MiB",
        "Memory cap = none",
    ]
    assert sweepable.fields()["trace.memory_cap"] == "Memory cap, MiB"


def test_caps_that_were_swept_in_bytes_are_cloned_as_they_were(alice: Any) -> None:
    made = Study.objects.create(
        name="Caps",
        owner=alice,
        kind="sweep",
        base={},
        settings={"field": "trace.memory_cap", "values": ["67108864", "524289", "none", "x"], "timed_steps": 40},
    )
    other = Study.objects.create(
        name="Seeds", owner=alice, kind="sweep", base={}, settings={"field": "train.seed", "values": ["1048576"]}
    )
    import_module("dashboard.studies.migrations.0004_caps_in_mib").to_mib(apps, None)
    made.refresh_from_db()
    other.refresh_from_db()
    again = [sweepable.parse("trace.memory_cap", text) for text in made.settings["values"]]
    assert again == [67108864, 524289, None, "x"]
    assert other.settings["values"] == ["1048576"]


def test_two_fields_are_crossed(alice: Any) -> None:
    study = services.create_sweep(
        owner=alice,
        name="rate x batch",
        base=BASE,
        swept=Swept("train.lr", ["0.1", "0.01"], "train.global_batch", ["8", "16", "x"]),
    )
    runs = list(study.runs.order_by("position"))
    pairs = [(run.spec["train"]["lr"], run.spec["train"]["global_batch"]) for run in runs]
    assert pairs == [(0.1, 8), (0.1, 16), (0.01, 8), (0.01, 16)]
    assert runs[0].name == "Learning rate = 0.1, Global batch = 8"
    assert [name for name, _ in study.settings["skipped"]] == [
        "Learning rate = 0.1, Global batch = x",
        "Learning rate = 0.01, Global batch = x",
    ]


def test_of_two_fields_one_that_is_not_read_is_not_crossed() -> None:
    plan = variants.sweep(BASE, Swept("train.lr_schedule", ["constant", "cosine"], "train.lr_final", ["0.1", "0.5"]))
    assert [variant.name for variant in plan.variants] == [
        "Learning-rate schedule = constant",
        "Learning-rate schedule = cosine, Rate at the end = 0.1",
        "Learning-rate schedule = cosine, Rate at the end = 0.5",
    ]
    assert len(plan.skipped) == 2 and all("constant, Rate at the end" in gone.name for gone in plan.skipped)


def test_a_sweep_of_the_optimizer_has_the_one_without_a_momentum_once() -> None:
    base = {"train": {"optimizer": "sgd", "momentum": 0.5}}
    plan = variants.sweep(base, Swept("train.optimizer", ["sgd", "adamw"]))
    assert [variant.spec.train.momentum for variant in plan.variants] == [0.5, 0.9] and not plan.skipped
    plan = variants.sweep(base, Swept("train.optimizer", ["sgd", "adamw"], "train.momentum", ["0", "0.5"]))
    names = ["Optimizer = sgd, Momentum = 0", "Optimizer = sgd, Momentum = 0.5", "Optimizer = adamw"]
    assert [variant.name for variant in plan.variants] == names and len(plan.skipped) == 2


def test_a_grid_is_tried_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MOST_TRIED", 3)
    many = [str(n) for n in range(2, 5)]
    plan = variants.sweep(BASE, Swept("train.seed", many, "train.lr", ["0.1", "0.2"]))
    assert plan.cut and len(plan.variants) == 3


@pytest.mark.parametrize("field", sorted(sweepable.fields()))
def test_every_sweepable_field_takes_its_own_default(field: str) -> None:
    section, leaf = field.split(".")
    default = getattr(getattr(variants.RunSpec(), section), leaf)
    plan = variants.sweep(READS.get(field, {}), Swept(field, [str(default)]))
    assert len(plan.variants) == 1, f"{plan.skipped}: add a base to READS with which {field} is read"
    assert getattr(getattr(plan.variants[0].spec, section), leaf) == default


RECIPE = {
    "train__lr_schedule": "cosine",
    "train__lr_warmup_steps": "5",
    "train__lr_final": "0.2",
    "train__weight_decay": "0.01",
    "train__beta2": "0.99",
    "train__clip_norm": "",
    "train__eval_every": "10",
    "train__eval_samples": "8",
    "train__checkpoint_every": "10",
}


@pytest.mark.parametrize("data", [MATRIX, SWEEP], ids=["matrix", "sweep"])
def test_a_study_trains_by_its_recipe(member: Client, data: dict[str, Any]) -> None:
    assert member.post(NEW, {**data, **RECIPE}).status_code == 302
    for run in Run.objects.all():
        train = run.spec["train"]
        assert (train["lr_schedule"], train["lr_warmup_steps"], train["lr_final"]) == ("cosine", 5, 0.2)
        assert (train["weight_decay"], train["beta2"], train["clip_norm"]) == (0.01, 0.99, None)
        assert (train["eval_every"], train["eval_samples"], train["checkpoint_every"]) == (10, 8, 10)
    again = member.get(NEW, {"clone": Study.objects.get().pk}).context["form"]
    assert {name: again[name].value() for name in RECIPE} == RECIPE
    assert next(again.fine_sections()).open


def test_precisions_that_scale_their_loss_read_its_scale(member: Client) -> None:
    assert member.post(NEW, {**MATRIX, "precisions": ["fp16"], "train__loss_scale": "1024"}).status_code == 302
    assert {run.spec["train"]["loss_scale"] for run in Run.objects.all()} == {1024}


def test_a_sweep_states_the_whole_split_and_what_is_traced(member: Client) -> None:
    more = {"model__tied": "", "parallel__zero": "1", "trace__trace_every": "7", "trace__memory_cap": "512"}
    assert member.post(NEW, {**SWEEP, **more}).status_code == 302
    run = Run.objects.order_by("position")[0]
    assert run.spec["parallel"]["zero"] == 1
    assert (run.spec["trace"]["trace_every"], run.spec["trace"]["memory_cap"]) == (7, 512 << 20)


@pytest.mark.parametrize("kind", [key for key, one in kinds.KINDS.items() if issubclass(one.form, TrainingForm)])
def test_every_kind_shows_each_of_its_fields_once(member: Client, kind: str) -> None:
    page: Any = member.get(NEW, {"kind": kind})
    names = re.findall(r' name="((?:model|parallel|train|trace)__[^"]*)"', page.content.decode())
    form = page.context["form"]
    assert sorted(names) == sorted(name for name in form.fields if "__" in name)
    assert kind == "fit" or {"train__weight_decay", "train__eval_every", "train__keep"} <= set(names)


def test_a_form_that_was_opened_before_a_field_was_new_keeps_its_default(member: Client) -> None:
    old = {name: value for name, value in SWEEP.items() if name not in {html_name(path) for path in FINE}}
    assert "<strong>2 runs</strong>" in preview(member, old)


def test_a_sweep_of_a_run_begins_with_everything_that_it_states(member: Client, alice: Any) -> None:
    spec: dict[str, Any] = {
        "model": {**BASE["model"], "tied": False, "dropout": 0.1},
        "parallel": {"dp": 2, "zero": 3, "zero_backend": "fully_shard"},
        "train": {"steps": 65, "warmup_steps": 5, "global_batch": 16, "lr": 0.003, "lr_schedule": "linear"}
        | {"lr_final": 0.3, "eval_every": 10, "eval_samples": 32, "checkpoint_every": 20, "keep": 5, "beta1": 0.8},
        "trace": {"trace_every": 0, "memory_cap": 700 << 20, "fingerprint_every": 0},
    }
    run: Any = factory.services.submit(owner=alice, spec=spec)
    assert f'href="/studies/new/?kind=sweep&amp;run={run.pk}"' in member.get(f"/runs/{run.pk}/").content.decode()
    page: Any = member.get(NEW, {"kind": "sweep", "run": run.pk})
    shown = {name: page.context["form"][name].value() for name in page.context["form"].fields}
    asked = {**shown, "kind": "sweep", "field": "train.seed", "values": "1, 2"}
    sent = {name: value for name, value in asked.items() if value not in (None, False)}
    assert member.post(NEW, sent).status_code == 302
    for number, made in enumerate(Run.objects.exclude(pk=run.pk).order_by("position"), 1):
        assert made.spec == {**run.spec, "train": {**run.spec["train"], "seed": number}}
    assert f'href="?kind=matrix&amp;run={run.pk}"' in page.content.decode()


def test_a_sweep_of_a_broken_run_says_that_it_is_not_broken(member: Client, alice: Any) -> None:
    broken = factory.queued(alice, {"dp": 2}, inject=[{"kind": "straggler", "rank": 1}])
    sound = factory.queued(alice, {"dp": 2})
    pages = [member.get(f"{NEW}?kind=sweep&run={run.pk}").content.decode() for run in (broken, sound)]
    assert ["without what it was broken with" in page for page in pages] == [True, False]


def test_a_grid_is_previewed_queued_named_and_cloned(member: Client) -> None:
    grid = {**SWEEP, "name": "", "second_field": "train.lr", "second_values": "0.1, 0.01"}
    assert "<strong>4 runs</strong>" in preview(member, grid)
    assert member.post(NEW, grid).status_code == 302
    study = Study.objects.get()
    assert study.name.startswith("Sweep of Global batch x Learning rate: ")
    form = member.get(NEW, {"clone": study.pk}).context["form"]
    assert [form[name].value() for name in ("second_field", "second_values")] == ["train.lr", "0.1, 0.01"]


@pytest.mark.parametrize(
    ("second", "values", "field", "message"),
    (
        ("train.lr", "", "second_values", "Write at least one value"),
        ("train.global_batch", "1", "second_field", "Global batch is swept already"),
        ("parallel.cuts", "1, 2, 4, 8", "second_values", "Write semicolons between lists"),
    ),
)
def test_a_wrong_second_field_is_named(member: Client, second: str, values: str, field: str, message: str) -> None:
    page = member.post(NEW, {**SWEEP, "second_field": second, "second_values": values}).content.decode()
    assert message in error_at(page, field)
    assert not Study.objects.exists()


@pytest.mark.parametrize("field", ["parallel__replicas", "parallel__widths", "trace__profile_ranks"])
def test_an_error_in_a_list_is_shown_at_its_field(member: Client, field: str) -> None:
    """Above the form, "A whole number is needed" would name none of some eighty fields."""
    values = {"parallel__pp": "2", "trace__profile_steps": "3", field: "1, x"}
    errors = member.post(NEW, {**SWEEP, **values}).context["form"].errors
    assert errors == {field: ["A whole number is needed; got 'x'."]}


def test_a_second_field_that_is_chosen_begins_in_its_notation(member: Client) -> None:
    asked = {**SWEEP, "begun_for": SWEEP["field"], "second_field": "parallel.cuts", "second_values": ""}
    said = preview(member, asked)
    assert 'name="second_values" value="1; 2"' in said and ' name="values"' not in said
    assert 'name="second_field_begun_for" value="parallel.cuts"' in said
