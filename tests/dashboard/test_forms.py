"""The New run form: generated from the spec; it keeps all input and queues nothing that is wrong."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from dashboard.fleet.models import Worker
from dashboard.runs import services, submission
from dashboard.runs.form import spec_fields
from dashboard.runs.form.choice_labels import CHOICE_LABELS
from dashboard.runs.form.forms import RunForm
from dashboard.runs.form.panel import Panel
from dashboard.runs.form.presets import PRESETS, Preset
from dashboard.runs.models import Run
from dashboard.runs.page import tiles
from parallel_core.analysis.quantities import bytes_text
from parallel_core.outline import KINDS
from parallel_core.outline.recompute import RECOMPUTE_LABELS
from parallel_core.plan.memory import NOT_COUNTED, worst_stage
from parallel_core.plan.room import FRAMEWORK
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import BYTES_PER_ELEMENT, RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain

pytestmark = pytest.mark.django_db


def filled(**changes: Any) -> dict[str, Any]:
    values = {"name": "", "tags": "", "retries": "0", **spec_fields.from_spec({})}
    return {name: value for name, value in {**values, **changes}.items() if value is not False}


@pytest.fixture
def two_cpus(db: None) -> None:
    devices = [{"index": i, "kind": "cpu", "memory_total": 2**30} for i in range(2)]
    heard = timezone.now() + timedelta(hours=1)  # still fresh at a test's second request on a busy host
    Worker.objects.create(name="yard-a", devices=devices, heartbeat_at=heard)


def test_every_leaf_of_the_spec_is_asked_for() -> None:
    without = sorted(set(spec_fields.leaves()) ^ set(spec_fields.ENTRIES))
    assert not without, f"give {', '.join(without)} an Entry in dashboard/runs/form/spec_groups.py: GROUPS"


def test_a_refused_file_is_named_as_a_noun(member: Client, two_cpus: None) -> None:
    noise = SimpleUploadedFile("noise.txt", bytes(300))
    page = member.post("/runs/new/", filled(upload=noise)).content.decode()
    assert "This is not text" in page and 'Put right <a href="#f-upload">Your own text</a>;' in page


def test_presets_with_recomputation_say_so_in_the_word_of_the_form() -> None:
    said = [preset.blurb for preset in PRESETS if preset.spec["parallel"].get("recompute")]
    assert said and all("recomputed" in blurb for blurb in said)


def test_a_leaf_without_a_field_keeps_its_default_and_blocks_no_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(spec_fields.ENTRIES, "train.seed")
    made = spec_fields.to_spec(spec_fields.from_spec({}))
    assert "seed" not in made["train"]
    assert RunSpec.model_validate(made) == RunSpec()


def test_will_it_run_counts_what_a_fault_holds(member: Client, two_cpus: None) -> None:
    hog = {"inject__memory_hog": "on", "inject__memory_hog__rank": "1", "inject__memory_hog__mib": "900"}
    typed = filled(parallel__dp="2", **hog)
    page = member.post("/runs/new/check", typed).content.decode()
    assert "Ranks 0–1, most on 1" in page and "on rank 1" in page and "Needs 948 MiB" in plain(page)
    assert '<span class="whole">948 MiB</span>' in page, "no line breaks before a unit"
    typed["inject__memory_hog__mib"] = "1024"
    assert "more than the device has" in member.post("/runs/new/check", typed).content.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_model_is_asked_for_its_own_fields_alone(kind: str) -> None:
    """Hidden fields of other kinds of models may hold anything; they must neither be required nor checked."""
    form = RunForm(filled(model__kind=kind, model__heads="7", model__hidden="14"))
    own = {f"model__{name}" for name in ("kind", *KINDS[kind].fields)}
    for name, field in form.fields.items():
        if name.startswith("model__"):
            shown = field.widget.attrs.get("data-shown-for", " ".join(KINDS)).split()
            assert (kind in shown) == (name in own)
    assert form.is_valid(), form.errors
    assert form.assessment.spec is not None
    assert (form.assessment.spec.model.heads == 7) == ("heads" in KINDS[kind].fields)


def test_every_kind_of_model_has_words_in_the_form() -> None:
    assert all(CHOICE_LABELS[kind].startswith(outline.name) for kind, outline in KINDS.items())


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.key)
def test_presets_are_valid_and_survive_the_way_through_the_form(preset: Preset) -> None:
    spec = RunSpec.model_validate(preset.spec)
    assert RunSpec.model_validate(spec_fields.to_spec(spec_fields.from_spec(preset.spec))) == spec


def test_odd_values_survive_the_way_through_the_form() -> None:
    spec = RunSpec.model_validate(
        {
            "parallel": {"pp": 3, "cuts": [3, 6]},
            "train": {"clip_norm": None, "lr": 1e-5, "eps": 1e-12},
            "trace": {"memory_cap": 3 * 2**20 + 2**19, "memory": False},
        }
    )
    assert RunSpec.model_validate(spec_fields.to_spec(spec_fields.from_spec(spec.model_dump()))) == spec


@pytest.mark.parametrize(
    ("typed", "got"), [("lots", "&#x27;lots&#x27;"), ("-1.5", "-1.5"), ("0", "0"), ("2e12", "2000000000000")]
)
def test_a_wrong_memory_cap_is_told_in_the_unit_in_which_it_is_typed(
    member: Client, two_cpus: None, typed: str, got: str
) -> None:
    answer = member.post("/runs/new/", filled(trace__memory_cap=typed)).content.decode()
    assert f"A number of MiB above 0, at most 1\xa0099\xa0511\xa0627\xa0776, is needed; got {got}" in answer


def test_a_good_form_queues_one_run(member: Client, two_cpus: None) -> None:
    answer = member.post("/runs/new/", filled(name="mine", tags="a, b", parallel__dp="2", retries="2"))
    run = Run.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/runs/{run.pk}/")
    assert (run.name, run.tags, run.label, run.retries_left) == ("mine", ["a", "b"], "DP", 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parallel__tp", "3"),
        ("parallel__pp", "11"),
        ("parallel__micro_batches", "3"),
        ("parallel__micro_batches", "4097"),
        ("parallel__dp", "4"),
        ("parallel__cuts", "a"),
        ("model__layers", "-1"),
        ("model__layers", ""),
        ("model__hidden", "100000"),
        ("train__lr", "NaN"),
        ("train__lr", "1e400"),
        ("train__steps", "10000001"),
        ("train__steps", "many"),
        ("train__device", "cuda"),
        ("train__device", "abacus"),
        ("train__corpus", "blob:" + "a" * 64),
        ("trace__memory_cap", "lots"),
        ("trace__memory_cap", "1"),
        ("name", "x" * 121),
        ("retries", "99"),
        ("tags", "x" * 41),
    ],
)
def test_a_bad_field_is_said_at_the_field_and_everything_kept(
    member: Client, two_cpus: None, field: str, value: str
) -> None:
    sent = {"name": "keep me", "model__layers": "7", field: value}
    answer = member.post("/runs/new/", filled(**sent))
    assert answer.status_code == 422
    form: RunForm = answer.context["form"]
    assert field in form.errors, form.errors
    kept = {"name": "keep me", "model__layers": "7"} | {field: value}
    assert {name: form[name].value() for name in kept} == kept
    assert not Run.objects.exists()


def test_every_choice_of_a_split_has_a_preset() -> None:
    """So that a person can begin with any of them: New run shows no other list of what there is."""
    specs = [RunSpec.model_validate(preset.spec) for preset in PRESETS]
    splits = [spec.parallel for spec in specs]
    missing: dict[str, set[Any]] = {
        "schedule": set(TRAITS) - {split.schedule for split in splits},
        "zero": {0, 1, 2, 3} - {split.zero for split in splits},
        "recompute": set(RECOMPUTE_LABELS) - {split.recompute for split in splits},
        "precision": set(BYTES_PER_ELEMENT) - {spec.train.precision for spec in specs},
        "kind": set(KINDS) - {spec.model.kind for spec in specs},
    }
    flags = ("replicas", "widths", "program", "recompute_layers", "sequence", "early_gradients")
    missing |= {leaf: {"any"} for leaf in flags if not any(getattr(split, leaf) for split in splits)}
    said = [f"{leaf}={value}" for leaf, values in missing.items() for value in sorted(values)]
    assert not said, f"no Preset in dashboard/runs/form/presets.py has {', '.join(said)}"


def test_what_a_preset_is_stands_by_itself() -> None:
    """A preset's text is read on its own and must not continue the text of the preset before it."""
    assert [preset.key for preset in PRESETS if preset.blurb.startswith("and ")] == []


def test_a_name_that_is_too_long_is_counted(member: Client) -> None:
    errors = member.post("/runs/new/", filled(name="x" * 121)).context["form"].errors
    assert errors["name"] == ["A name has at most 120 characters; this one has 121."]


def test_the_panel_names_the_field_of_each_message(member: Client) -> None:
    sent = filled(model__layers="abc", train__lr="-1", model__heads="5")
    panel = member.post("/runs/new/check", sent).context["panel"]
    assert panel.errors == [
        "Layers: A whole number is needed; got 'abc'.",
        "Learning rate: Must be more than 0; got -1.",
    ]


@pytest.mark.parametrize("path", ["/runs/new/", "/studies/new/"])
def test_the_browser_is_not_told_to_cut_what_is_too_long(member: Client, path: str) -> None:
    assert b"maxlength" not in member.get(path).content


def test_html_in_what_was_typed_stays_text(member: Client) -> None:
    evil = '"><script>alert(1)</script>'
    page = member.post("/runs/new/", filled(name=evil, tags=evil, model__layers=evil)).content.decode()
    assert "<script>alert" not in page


def test_the_live_check_answers_with_messages_and_memory_and_queues_nothing(member: Client, two_cpus: None) -> None:
    page = member.get("/runs/new/").content.decode()
    spoken = page.partition('id="panel-verdict" aria-live="polite">')[2].partition('id="panel-rest"')[0]
    assert "<strong>Yes.</strong>" in spoken and "Strategy" not in spoken
    one = member.post("/runs/new/check", filled(model__seq="1", train__global_batch="1")).content.decode()
    assert "1 sample a step = 1 replica × 1 micro-batch × 1; 1 token." in strip_tags(one)
    good = member.post("/runs/new/check", filled(parallel__pp="2", parallel__micro_batches="8")).content.decode()
    assert "2\N{NO-BREAK SPACE}048 tokens" in good and "1\N{NO-BREAK SPACE}048\N{NO-BREAK SPACE}576" in page
    assert "PP-1F1B" in good and "Rank 1" in good and "activations" in good
    bad = member.post("/runs/new/check", filled(parallel__tp="3")).content.decode()
    assert "Tensor parallel = 3 does not divide Attention heads = 4; try 1, 2, 4." in bad
    assert not Run.objects.exists()


def test_the_live_check_says_the_meshes_of_stages(member: Client, two_cpus: None) -> None:
    split = {"parallel__pp": "2", "parallel__micro_batches": "4", "parallel__widths": "1, 2"}
    said = member.post("/runs/new/check", filled(**split, parallel__replicas="2, 1")).content.decode()
    assert "PP-1F1B 2-1 x TP 1-2" in said
    assert "4 CPU devices asked for, 2 × 1 + 1 × 2 by stage (replicas × tensor ranks)" in said
    assert "2 × 1 + 1 × 2 (replicas × tensor ranks of each stage) need 4 CPU devices; the fleet has 2. A " in said
    refused = member.post("/runs/new/", filled(**split, parallel__tp="2"))
    assert "leave “Tensor ranks of each stage” empty" in str(refused.context["form"].errors["parallel__widths"])


def test_a_model_beyond_memory_is_queued_only_on_insistence(member: Client, two_cpus: None) -> None:
    big = filled(model__layers="100", model__hidden="1024")
    refused = member.post("/runs/new/", big)
    assert refused.status_code == 422 and "model__hidden" in refused.context["form"].errors
    assert 'name="anyway"' in refused.content.decode()
    assert member.post("/runs/new/", big | {"anyway": "on"}).status_code == 302


def test_cloning_fills_the_form(member: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec={"model": {"layers": 6}, "parallel": {"pp": 2}}, name="old", tags=["t"])
    form = member.get(f"/runs/{run.pk}/clone").context["form"]
    assert (form["model__layers"].value(), form["name"].value(), form["tags"].value()) == ("6", "old (copy)", "t")


def test_a_clone_is_not_called_by_the_strategy_of_its_source(member: Client, alice: Any) -> None:
    """The clone may be split another way; an unnamed clone is named after its own strategy."""
    run = services.submit(owner=alice, spec={"parallel": {"dp": 2}})
    assert run.name == "DP"
    assert member.get(f"/runs/{run.pk}/clone").context["form"]["name"].value() == ""


def test_cancel_asks_once_and_then_does(member: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec={})
    assert b"Cancel the run" in member.get(f"/runs/{run.pk}/cancel").content
    member.post(f"/runs/{run.pk}/cancel")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert b"already ended" in member.get(f"/runs/{run.pk}/cancel").content


def test_renaming(member: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec={})
    assert member.post(f"/runs/{run.pk}/edit", {"name": "", "tags": ""}).status_code == 422
    member.post(f"/runs/{run.pk}/edit", {"name": "new", "tags": "x, y"})
    run.refresh_from_db()
    assert (run.name, run.tags) == ("new", ["x", "y"])


def test_a_cloned_run_keeps_every_digit() -> None:
    spec = RunSpec.model_validate({"train": {"lr": 0.00012345678, "beta2": 0.95}, "trace": {"memory_cap": 1_000_001}})
    assert RunSpec.model_validate(spec_fields.to_spec(spec_fields.from_spec(spec.model_dump()))) == spec


def test_a_silent_worker_is_no_device(member: Client, two_cpus: None) -> None:
    host = factory.worker("far", 8)
    wanted = {"parallel": {"dp": 4}, "train": {"global_batch": 8}}
    assert "parallel.dp" not in submission.assess(wanted).errors
    Worker.objects.filter(pk=host.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert "the fleet has 2" in submission.assess(wanted).errors["parallel.dp"]


def test_a_list_with_long_choices_has_a_line_of_its_own_on_a_phone(member: Client) -> None:
    page = member.get("/runs/new/").content.decode()
    assert re.search(r'class="field long" id="field-train__corpus"', page)
    assert re.search(r'class="field" id="field-train__device"', page), (
        "the CPU/GPU list is short and needs no line of its own"
    )
    assert re.search(r'class="field" id="field-model__layers"', page)


def test_a_preset_that_cannot_run_here_is_marked_before_anything_is_typed(member: Client, two_cpus: None) -> None:
    answer = member.get("/runs/new/?preset=dp2tp2")
    form: RunForm = answer.context["form"]
    assert answer.status_code == 200 and form.errors
    for name, (said,) in form.errors.items():
        assert re.search(rf'id="error-{name}">{re.escape(html.escape(str(said)))}<', answer.content.decode())
    assert "Not queued." not in answer.content.decode(), "nothing has been submitted yet"
    assert not member.get("/runs/new/?preset=dp2").context["form"].errors


def test_memory_that_would_take_long_to_count_is_not_predicted(
    member: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1024 stages, two a rank: said in the panel, and on the run's page once it is queued without a worker."""
    for module, name in ((submission, "needed"), (tiles, "worst_stage")):
        monkeypatch.setattr(module, name, lambda spec: pytest.fail("it was counted"))
    found = submission.assess(factory.UNCOUNTED)
    panel = Panel.of(found)
    assert (found.stages, panel.rows, panel.fits, panel.memory) == ([], [], None, NOT_COUNTED)
    run = services.submit(owner=alice, spec=factory.UNCOUNTED)
    assert "not predicted; measured on a step" in member.get(f"/runs/{run.pk}/").content.decode()


def test_of_many_stages_the_one_that_the_panel_names_is_shown() -> None:
    """Twenty stages, the last of which needs most: it has the output layer of a large vocabulary."""
    model = {"layers": 20, "hidden": 16, "heads": 2, "seq": 64, "vocab": 50_000}
    spec = {"model": model, "parallel": {"pp": 20, "micro_batches": 20}, "train": {"global_batch": 20}}
    panel = Panel.of(submission.assess(spec))
    assert (len(panel.rows), panel.hidden) == (16, 4)
    assert " on rank 19" in panel.memory
    assert [row.ranks for row in panel.rows][-2:] == ["Rank 14", "Rank 19"]


def test_a_device_that_tensors_alone_would_fill_is_refused() -> None:
    need = worst_stage(RunSpec()).total
    host = factory.worker()
    for short, said in (
        (0, "that the device has beside 300 MiB"),
        (1, "more than the device has beside 300 MiB for the framework"),
    ):
        size = need + FRAMEWORK["cpu"] - short
        host.devices = [{**device, "memory_total": size} for device in host.devices]
        host.save()
        found = submission.assess(RunSpec().model_dump(mode="json"))
        assert found.limit == need - short and bool(found.memory_error) == bool(short)
        assert found.feasibility and said in found.feasibility.sentence


def test_a_prediction_and_the_limit_that_refuses_it_do_not_read_alike() -> None:
    """Both in two digits, one that needs slightly more than there is would be refused at what looks like the limit."""
    need = worst_stage(RunSpec()).total
    host = factory.worker()
    host.devices = [{**one, "memory_total": FRAMEWORK["cpu"] + need - (64 << 10)} for one in host.devices]
    host.save()
    found = submission.assess(RunSpec().model_dump(mode="json"))
    panel = Panel.of(found)
    [needs] = [row.total for row in panel.rows]
    assert bytes_text(need) == bytes_text(found.limit) and needs != panel.limit
    assert panel.memory.startswith(f"Needs {needs} on rank 0, ") and panel.fits is False
