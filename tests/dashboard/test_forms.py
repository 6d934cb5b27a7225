"""The New run form: generated from the spec, keeps what was typed, queues nothing that is wrong."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs import queue, services, spec_fields, submission
from dashboard.runs.forms import RunForm
from dashboard.runs.models import Corpus, Run
from dashboard.runs.presets import PRESETS, Preset
from parallel_core.outline import KINDS
from parallel_core.spec import RunSpec
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


def filled(**changes: Any) -> dict[str, Any]:
    values = {"name": "", "tags": "", "retries": "0", **spec_fields.from_spec({})}
    return {name: value for name, value in {**values, **changes}.items() if value is not False}


@pytest.fixture
def member_client(client: Client, alice: Any) -> Client:
    client.force_login(alice)
    return client


@pytest.fixture
def two_cpus(db: None) -> None:
    devices = [{"index": i, "kind": "cpu", "memory_total": 2**30} for i in range(2)]
    Worker.objects.create(name="yard-a", devices=devices, heartbeat_at=timezone.now())


def test_every_leaf_of_the_spec_is_asked_for() -> None:
    assert set(spec_fields.leaves()) == set(spec_fields.ENTRIES)


def test_will_it_run_counts_what_a_fault_holds(member_client: Client, two_cpus: None) -> None:
    hog = {"inject__memory_hog": "on", "inject__memory_hog__rank": "1", "inject__memory_hog__mib": "900"}
    typed = filled(parallel__dp="2", **hog)
    page = member_client.post("/runs/new/check", typed).content.decode()
    assert "Ranks 0–1, most on 1" in page and "on rank 1" in page and "Needs 948 MiB" in page
    typed["inject__memory_hog__mib"] = "1024"
    assert "more than the device has" in member_client.post("/runs/new/check", typed).content.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_model_is_asked_for_its_own_fields_alone(kind: str) -> None:
    """Whatever stands in the fields of other kinds, which a browser hides."""
    form = RunForm(filled(model__kind=kind, model__heads="7", model__hidden="14"))
    own = {f"model__{name}" for name in ("kind", *KINDS[kind].fields)}
    for name, field in form.fields.items():
        if name.startswith("model__"):
            shown = field.widget.attrs.get("data-shown-for", " ".join(KINDS)).split()
            assert (kind in shown) == (name in own)
    assert form.is_valid(), form.errors
    assert form.assessment.spec is not None
    assert (form.assessment.spec.model.heads == 7) == ("heads" in KINDS[kind].fields)


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


def test_a_good_form_queues_one_run(member_client: Client, two_cpus: None) -> None:
    answer = member_client.post("/runs/new/", filled(name="mine", tags="a, b", parallel__dp="2", retries="2"))
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
    member_client: Client, two_cpus: None, field: str, value: str
) -> None:
    sent = {"name": "keep me", "model__layers": "7", field: value}
    answer = member_client.post("/runs/new/", filled(**sent))
    assert answer.status_code == 422
    form: RunForm = answer.context["form"]
    assert field in form.errors, form.errors
    kept = {"name": "keep me", "model__layers": "7"} | {field: value}
    assert {name: form[name].value() for name in kept} == kept
    assert not Run.objects.exists()


def test_the_panel_names_the_field_of_each_message(member_client: Client) -> None:
    sent = filled(model__layers="abc", train__lr="-1", model__heads="5")
    panel = member_client.post("/runs/new/check", sent).context["panel"]
    assert panel.errors == [
        "Layers: A whole number is needed; got 'abc'.",
        "Learning rate: Must be more than 0; got -1.",
    ]


@pytest.mark.parametrize("path", ["/runs/new/", "/studies/new/"])
def test_the_browser_is_not_told_to_cut_what_is_too_long(member_client: Client, path: str) -> None:
    assert b"maxlength" not in member_client.get(path).content


def test_html_in_what_was_typed_stays_text(member_client: Client) -> None:
    evil = '"><script>alert(1)</script>'
    page = member_client.post("/runs/new/", filled(name=evil, tags=evil, model__layers=evil)).content.decode()
    assert "<script>alert" not in page


def test_the_live_check_answers_with_messages_and_memory_and_queues_nothing(
    member_client: Client, two_cpus: None
) -> None:
    good = member_client.post("/runs/new/check", filled(parallel__pp="2", parallel__micro_batches="8")).content.decode()
    assert "PP-1F1B" in good and "Rank 1" in good and "activations" in good
    bad = member_client.post("/runs/new/check", filled(parallel__tp="3")).content.decode()
    assert "tensor=3 does not divide heads=4; try 1, 2, 4." in bad
    assert not Run.objects.exists()


def test_the_live_check_says_the_meshes_of_stages(member_client: Client, two_cpus: None) -> None:
    split = {"parallel__pp": "2", "parallel__micro_batches": "4", "parallel__widths": "1, 2"}
    said = member_client.post("/runs/new/check", filled(**split, parallel__replicas="2, 1")).content.decode()
    assert "PP-1F1B 2-1 x TP 1-2" in said
    assert "4 CPU devices asked for, 2 × 1 + 1 × 2 by stage (replicas × tensor ranks)" in said
    assert "2 × 1 + 1 × 2 needs 4 CPU devices; the fleet has 2." in said
    refused = member_client.post("/runs/new/", filled(**split, parallel__tp="2"))
    assert "leave widths empty" in str(refused.context["form"].errors["parallel__widths"])


def test_a_model_beyond_memory_is_queued_only_on_insistence(member_client: Client, two_cpus: None) -> None:
    big = filled(model__layers="100", model__hidden="1024")
    refused = member_client.post("/runs/new/", big)
    assert refused.status_code == 422 and "model__hidden" in refused.context["form"].errors
    assert 'name="anyway"' in refused.content.decode()
    assert member_client.post("/runs/new/", big | {"anyway": "on"}).status_code == 302


def test_cloning_fills_the_form(member_client: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec={"model": {"layers": 6}, "parallel": {"pp": 2}}, name="old", tags=["t"])
    form = member_client.get(f"/runs/{run.pk}/clone").context["form"]
    assert (form["model__layers"].value(), form["name"].value(), form["tags"].value()) == ("6", "old (copy)", "t")


def upload(member_client: Client, data: bytes, **changes: Any) -> Any:
    return member_client.post("/runs/new/", filled(**changes) | {"upload": SimpleUploadedFile("tale.txt", data)})


def test_an_upload_becomes_the_corpus_of_the_run(member_client: Client) -> None:
    assert upload(member_client, b"once upon a time " * 100).status_code == 302
    corpus = Corpus.objects.get()
    assert Run.objects.get().spec["train"]["corpus"] == f"blob:{corpus.sha256}"
    upload(member_client, b"once upon a time " * 100)
    assert Corpus.objects.count() == 1


@pytest.mark.parametrize("data", [b"", b"ab\x00cd" * 100, b"caf\xe9 " * 100])
def test_what_is_no_text_is_refused_at_the_field(member_client: Client, data: bytes) -> None:
    answer = upload(member_client, data)
    assert answer.status_code == 422 and "upload" in answer.context["form"].errors
    assert not Corpus.objects.exists() and not Run.objects.exists()


def test_a_corpus_shorter_than_a_sample_is_refused(member_client: Client) -> None:
    answer = upload(member_client, b"short")
    assert "too short" in answer.context["form"].errors["train__corpus"][0]


def test_an_upload_is_not_lost_with_a_mistake_elsewhere(member_client: Client) -> None:
    answer = upload(member_client, b"once upon a time " * 100, parallel__tp="3")
    assert answer.status_code == 422
    assert answer.context["form"]["train__corpus"].value() == f"blob:{Corpus.objects.get().sha256}"


PROGRAM = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
OWN = {"parallel__schedule": "custom", "parallel__pp": "2", "parallel__micro_batches": "2"}


def program(member_client: Client, data: bytes) -> Any:
    return member_client.post("/runs/new/", filled(**OWN) | {"program_file": SimpleUploadedFile("own.csv", data)})


def test_a_schedule_may_come_as_a_file(member_client: Client) -> None:
    assert program(member_client, PROGRAM.encode()).status_code == 302
    assert Run.objects.get().spec["parallel"]["program"] == PROGRAM.strip()


@pytest.mark.parametrize(
    ("data", "field", "told"),
    [
        (b"", "program_file", "A schedule has 1 byte to 512 KiB; this file has 0 bytes."),
        (b"0F0,\xff", "program_file", "byte 4 is not UTF-8"),
        (b"a" * (2**19 + 1), "program_file", "this file has 524289 bytes"),
        (b"0F0,nonsense", "parallel__program", "nonsense"),
    ],
)
def test_a_file_that_is_no_schedule(member_client: Client, data: bytes, field: str, told: str) -> None:
    """What can be read as text stands in the field, to be put right there."""
    answer = program(member_client, data)
    assert answer.status_code == 422
    assert told in answer.context["form"].errors[field][0]
    assert not Run.objects.exists()


def test_a_schedule_that_would_hang_shows_its_grid_at_the_field(member_client: Client) -> None:
    """The bad cell is marked there; the panel says the reason alone."""
    hangs = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1"
    answer = member_client.post("/runs/new/check", filled(**OWN, parallel__program=hangs))
    (said,) = answer.context["form"].errors["parallel__program"]
    assert "rank 1 | >1RECV_ACT1< 1F1 " in said
    (short,) = answer.context["panel"].errors
    assert short == f"Own schedule: {said.splitlines()[0]} Its field shows where."
    sentence, place = said.split("\n", 1)
    shown = html.unescape(answer.content.decode())
    assert f"<span>{sentence}</span>\n{place}</p>" in shown, "the sentence folds on a phone, the grid does not"


def test_token_files_of_workers_are_corpora(member_client: Client, two_cpus: None) -> None:
    files = [{"name": "wiki", "tokens": 120_000, "vocab": 50_257}]
    Worker.objects.update(token_files=files)
    page = member_client.get("/runs/new/").content.decode()
    assert "wiki (120 000 tokens of 50 257, on yard-a)" in page
    answer = member_client.post("/runs/new/", filled(train__corpus="tokens:wiki"))
    assert "use 50257 or more" in answer.context["form"].errors["model__vocab"][0]
    unknown = member_client.post("/runs/new/", filled(train__corpus="tokens:books", model__vocab="50257"))
    assert "they have wiki" in unknown.context["form"].errors["train__corpus"][0]
    small = {"model__vocab": "50257", "model__hidden": "32", "model__heads": "4", "train__global_batch": "2"}
    assert member_client.post("/runs/new/", filled(train__corpus="tokens:wiki", **small)).status_code == 302
    Worker.objects.create(name="yard-0", devices=[], heartbeat_at=timezone.now())
    (request,) = queue.requests(queue.queued_runs())
    assert request.needs == ("yard-a",), "no other worker has the file"
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert queue.waiting(Run.objects.get()).sentence.startswith("Waits for worker yard-a, which has its token file")


def test_cancel_asks_once_and_then_does(member_client: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec={})
    assert b"Cancel the run" in member_client.get(f"/runs/{run.pk}/cancel").content
    member_client.post(f"/runs/{run.pk}/cancel")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert b"already ended" in member_client.get(f"/runs/{run.pk}/cancel").content


def test_renaming(member_client: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec={})
    assert member_client.post(f"/runs/{run.pk}/edit", {"name": "", "tags": ""}).status_code == 422
    member_client.post(f"/runs/{run.pk}/edit", {"name": "new", "tags": "x, y"})
    run.refresh_from_db()
    assert (run.name, run.tags) == ("new", ["x", "y"])


def test_a_cloned_run_keeps_every_digit() -> None:
    spec = RunSpec.model_validate({"train": {"lr": 0.00012345678, "beta2": 0.95}, "trace": {"memory_cap": 1_000_001}})
    assert RunSpec.model_validate(spec_fields.to_spec(spec_fields.from_spec(spec.model_dump()))) == spec


def test_a_silent_worker_is_no_device(member_client: Client, two_cpus: None) -> None:
    host = factory.worker("far", 8)
    wanted = {"parallel": {"dp": 4}, "train": {"global_batch": 8}}
    assert "parallel.dp" not in submission.assess(wanted).errors
    Worker.objects.filter(pk=host.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert "the fleet has 2" in submission.assess(wanted).errors["parallel.dp"]


def test_a_list_with_long_choices_has_a_line_of_its_own_on_a_phone(member_client: Client) -> None:
    page = member_client.get("/runs/new/").content.decode()
    assert re.search(r'class="field long" id="field-train__corpus"', page)
    assert re.search(r'class="field" id="field-train__device"', page), "CPU and GPU need none"
    assert re.search(r'class="field" id="field-model__layers"', page)


def test_a_preset_that_cannot_run_here_is_marked_before_anything_is_typed(
    member_client: Client, two_cpus: None
) -> None:
    answer = member_client.get("/runs/new/?preset=dp2tp2")
    form: RunForm = answer.context["form"]
    assert answer.status_code == 200 and form.errors
    for name, (said,) in form.errors.items():
        assert re.search(rf'id="error-{name}">{re.escape(html.escape(said))}<', answer.content.decode())
    assert "Not queued." not in answer.content.decode(), "nothing was sent yet"
    assert not member_client.get("/runs/new/?preset=dp2").context["form"].errors
