"""Runs that begin from Llama weights which workers offer: the form, the placement, text, and what is said of others."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
import torch
from django.test import Client

from dashboard.control.placing import place_queued
from dashboard.fleet.models import Worker
from dashboard.runs import services, submission
from dashboard.runs.models import Run, State
from dashboard.runs.waiting import asking, queue, turns
from dashboard.studies import reruns
from dashboard.studies.models import Study
from parallel_core.checkpoint import llama_weights
from parallel_core.known_fields import later
from tests.dashboard import factory
from tests.dashboard.test_forms import filled
from tests.dashboard.test_generating import FORM
from tests.parallel_core.test_llama import put, tensors

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]
WEB = {"corpus": "tokens:web"}
TINY_TEXT = (
    "tiny (31\xa0904 parameters in F32, 125 KiB: 2 layers of 32, 4 heads, 2 of keys and values, vocabulary 256; on "
)


@pytest.fixture
def tiny(tmp_path: Any) -> dict[str, Any]:
    """What a worker tells of weights with 256 tokens, which are bytes."""
    folder = put(tmp_path / "tiny", tensors(torch.float32, 256), vocab_size=256)
    return {"name": "tiny", **llama_weights.described(folder)}


@pytest.fixture
def two(tiny: dict[str, Any], worker: Worker) -> Worker:
    """Workers yard-a, which has no weights, and yard-b, which has `tiny` and some that cannot be used."""
    other = factory.worker("yard-b", devices=2)
    other.weights = [tiny, {"name": "old", "why": "It has pytorch_model.bin, and pickled weights are never loaded."}]
    other.save()
    return other


def spec_of(tiny: dict[str, Any], train: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    small = {"steps": 4, "warmup_steps": 1, "global_batch": 2, "weights": "tiny"}
    return {"model": {**tiny["model"], "seq": 16, **model}, "train": {**small, **(train or {})}}


def test_the_form_offers_weights_and_fills_in_their_model(member: Client, two: Worker) -> None:
    page = html.unescape(member.get("/runs/new/").content.decode())
    assert f'<option value="tiny">{TINY_TEXT}yard-b)</option>' in page
    assert "old on yard-b: It has pytorch_model.bin, and pickled weights are never loaded." in page
    form = member.get("/runs/new/?weights=tiny").context["form"]
    shown = {name: form[f"model__{name}"].value() for name in ("layers", "hidden", "kv_heads", "norm", "bias")}
    assert shown == {"layers": "2", "hidden": "32", "kv_heads": "2", "norm": "rmsnorm", "bias": False}
    assert form["train__weights"].value() == "tiny" and not form.errors
    # What choosing in the select fills in.
    found = re.search(r'<script id="weights-models" type="application/json">(.*?)</script>', page)
    assert found is not None
    filled_in = json.loads(found[1])["tiny"]
    assert {name: filled_in[f"model__{name}"] for name in shown} == shown and "model__seq" not in filled_in
    assert set(filled_in) < set(form.fields)


def test_a_posted_form_begins_from_weights(member: Client, two: Worker) -> None:
    form = member.get("/runs/new/?weights=tiny").context["form"]
    values = {name: form[name].value() for name in form.fields if name.startswith("model__")}
    sent = {name: "on" if value is True else str(value or "") for name, value in values.items()}
    others = {name: value for name, value in filled().items() if not name.startswith("model__")}
    ticked = {name: value for name, value in sent.items() if value or not isinstance(values[name], bool)}
    answer = member.post("/runs/new/", {**others, **ticked, "model__seq": "16", "train__weights": "tiny"})
    assert answer.status_code == 302, answer.context["form"].errors
    run = Run.objects.get()
    assert run.spec["train"]["weights"] == "tiny"
    assert "begins from the weights tiny" in member.get(f"/runs/{run.pk}/").content.decode()
    clone = member.get(f"/runs/{run.pk}/clone").context["form"]
    assert clone["train__weights"].value() == "tiny" and not clone.errors


def test_each_field_that_differs_is_named_with_both_values(tiny: dict[str, Any], two: Worker) -> None:
    found = submission.assess(spec_of(tiny, layers=3, vocab=300))
    assert found.errors == {
        "model.layers": "The weights tiny have layers=2; this run has layers=3.",
        "model.vocab": "The weights tiny have vocab=256; this run has vocab=300.",
    }
    assert not submission.assess(spec_of(tiny)).errors


def test_the_run_is_placed_where_the_weights_are(tiny: dict[str, Any], two: Worker, alice: Any) -> None:
    services.submit(owner=alice, spec=spec_of(tiny))
    (request,) = asking.requests(asking.queued_runs(turns.queue_order()))
    assert request.needs == ("yard-b",)
    wide = spec_of(tiny, {"global_batch": 4}) | {"parallel": {"dp": 4}}
    assert "the weights it begins from lie on one" in submission.assess(wide).errors["parallel.dp"]
    Worker.objects.filter(name="yard-b").update(draining=True)
    said = queue.waiting(Run.objects.get()).sentence
    assert said.startswith("Waits for worker yard-b, which has the weights it begins from")
    Worker.objects.filter(name="yard-a").update(weights=[tiny])
    assert not submission.assess(wide).errors, "both have them"
    Worker.objects.filter(name="yard-a").update(weights=[{**tiny, "dtype": "BF16"}])
    assert submission.assess(wide).errors, "other weights of the same name"
    Worker.objects.filter(name="yard-a").update(weights=[{**tiny, "values": "0" * 16}])
    assert submission.assess(wide).errors, "those after another training, say"


def test_other_weights_of_the_same_name_are_said_to_be_left_out(
    member: Client, tiny: dict[str, Any], two: Worker
) -> None:
    Worker.objects.filter(name="yard-a").update(weights=[tiny])
    factory.worker("yard-c", devices=2)
    Worker.objects.filter(name="yard-c").update(weights=[{**tiny, "values": "0" * 16}])
    page = html.unescape(member.get("/runs/new/").content.decode())
    assert "tiny on yard-c: These are others than those of this name on yard-a and yard-b; rename the folder." in page
    assert "yard-a and yard-b)</option>" in page


def test_a_chosen_worker_without_the_weights_is_refused(tiny: dict[str, Any], two: Worker) -> None:
    found = submission.assess(spec_of(tiny), where="worker:yard-a").errors
    assert found == {"run_on": "What the run reads is not there; it is on yard-b."}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("huge", "No worker that reports has the weights huge; they have tiny."),
        ("old", "The weights old cannot be used on yard-b: It has pytorch_model.bin, and pickled weights are never"),
    ],
)
def test_weights_that_nobody_can_use_are_refused(tiny: dict[str, Any], two: Worker, name: str, said: str) -> None:
    assert submission.assess(spec_of(tiny, {"weights": name})).errors["train.weights"].startswith(said)


def test_a_token_file_and_weights_on_different_workers_are_refused(tiny: dict[str, Any], two: Worker) -> None:
    file = {"name": "web", "tokens": 10_000, "vocab": 64}
    Worker.objects.filter(name="yard-a").update(token_files=[file])
    asked = spec_of(tiny, {"corpus": "tokens:web"})
    assert submission.assess(asked).errors["train.weights"] == (
        "No worker that reports has both the weights tiny and the token file tokens:web."
    )
    Worker.objects.filter(name="yard-b").update(token_files=[file])
    assert not submission.assess(asked).errors


def test_weights_with_tokens_of_their_own_get_a_token_file_that_fits(
    member: Client, tiny: dict[str, Any], two: Worker
) -> None:
    """Bytes of a text mean other tokens to them; a file with more tokens than they know is no better."""
    own = {**tiny, "model": {**tiny["model"], "vocab": 300}}
    Worker.objects.filter(name="yard-b").update(weights=[own])
    page = member.get("/runs/new/?weights=tiny")
    form, said = page.context["form"], "The weights tiny know 300 tokens of their own tokenizer, and this text is read"
    assert form["train__corpus"].value() == "stdlib" and not form.errors
    assert f"{said} as bytes. yard-b has no token file that fits; pack-tokens makes one." in page.content.decode()

    file = {"name": "a-wide", "tokens": 10_000, "vocab": 301}
    others = [{**file, "name": "bytes", "vocab": 256}, {**file, "name": "own", "vocab": 300}]
    Worker.objects.filter(name="yard-a").update(token_files=[{**file, "name": "away", "vocab": 300}])
    Worker.objects.filter(name="yard-b").update(token_files=[file, *others])
    page = member.get("/runs/new/?weights=tiny")
    assert page.context["form"]["train__corpus"].value() == "tokens:own" and not page.context["form"].errors
    assert "panel-tokens" not in page.content.decode()
    assert page.context["form"].models_of_weights["tiny"]["train__corpus"] == "tokens:own"
    asked = {"model": {**own["model"], "seq": 16}, "train": spec_of(tiny)["train"]}
    found = submission.assess(asked)
    assert not found.errors and found.tokens == (
        f"{said} as bytes. Choose as corpus a token file: yard-b has own and bytes."
    )
    wide = submission.assess({**asked, "train": {**asked["train"], "corpus": "tokens:a-wide"}}).errors
    assert wide == {
        "train.corpus": "Token file a-wide has tokens up to 300, and the weights tiny know 300; choose one that was "
        "made with their tokenizer."
    }


def test_a_run_that_resumes_needs_no_weights(tiny: dict[str, Any], two: Worker, alice: Any) -> None:
    Worker.objects.filter(name="yard-b").update(weights=[])
    assert "train.weights" in submission.assess(spec_of(tiny)).errors
    run = factory.finished(alice, {})
    assert "train.weights" not in submission.assess(spec_of(tiny), {"run": run.pk, "step": 4}).errors


def test_what_no_worker_has_is_waited_for(tiny: dict[str, Any], two: Worker, alice: Any) -> None:
    """Else it would be sent to any worker, to fail there: the folder of the only one that had it is gone or empty."""
    file, both = {"name": "web", "tokens": 10_000, "vocab": 64}, {"yard-a", "yard-b"}
    Worker.objects.update(token_files=[file], fields=later())
    runs = {
        "the weights tiny": services.submit(owner=alice, spec=spec_of(tiny)),
        "the token file web": factory.queued(alice, train={"corpus": "tokens:web"}),
        "the weights tiny and the token file web": services.submit(owner=alice, spec=spec_of(tiny, WEB)),
    }
    run = runs["the weights tiny and the token file web"]
    Worker.objects.filter(name="yard-b").update(token_files=[])
    said = "Waits for a worker that has both the weights tiny and the token file web: none has."
    assert queue.waiting(run).sentence.startswith(said)
    Worker.objects.update(token_files=[], weights=[])
    assert not list(place_queued(both, both))
    for what, run in runs.items():
        assert queue.waiting(run).sentence.startswith(f"Waits for a worker that has {what}: none has.")
    Run.objects.update(run_on="worker:yard-a")
    run.refresh_from_db()
    assert queue.waiting(run).sentence.startswith("Waits for a worker that has the weights tiny and the token file web")
    Run.objects.update(run_on="")
    Worker.objects.filter(name="yard-b").update(token_files=[file], weights=[tiny])
    placed = list(place_queued(both, both))
    assert {attempt.devices[0]["worker"] for attempt in placed} == {"yard-b"} and len(placed) == 2


def test_runs_of_weights_that_are_gone_are_not_run_again(tiny: dict[str, Any], two: Worker, alice: Any) -> None:
    study, refused = Study.objects.create(name="s", owner=alice), dict[int, str]()
    run = services.submit(owner=alice, spec=spec_of(tiny), study=study, exclusive=True)
    factory.start(run)
    factory.end(run, State.LOST, cause="worker_lost")
    Worker.objects.filter(name="yard-b").update(weights=[])
    assert reruns.run_again(study=study, user=alice, refused=refused) == []
    assert refused[run.pk].startswith("No worker that reports has the weights tiny")
    Worker.objects.filter(name="yard-b").update(weights=[tiny])
    assert len(reruns.run_again(study=study, user=alice)) == 1


def test_a_clone_keeps_weights_that_are_gone_and_says_so(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    run = services.submit(owner=alice, spec=spec_of(tiny))
    Worker.objects.filter(name="yard-b").update(weights=[])
    page = member.get(f"/runs/{run.pk}/clone")
    assert '<option value="tiny" selected>tiny (on no worker that reports)</option>' in page.content.decode()
    assert "No worker that reports has the weights tiny" in page.context["form"].errors["train__weights"][0]


def test_text_is_generated_from_weights_without_a_run(member: Client, two: Worker) -> None:
    assert "/runs/weights/tiny/generate" in member.get("/runs/new/").content.decode()
    page = member.get("/runs/weights/tiny/generate")
    assert page.status_code == 200 and not page.context["panel"].errors
    assert "/runs/weights/tiny/generate/check" in page.content.decode()
    assert member.post("/runs/weights/tiny/generate/check", FORM | {"step": "0"}).status_code == 200
    assert member.post("/runs/weights/tiny/generate", FORM | {"step": "0", "tp": "2"}).status_code == 302
    run = Run.objects.get()
    assert (run.spec["train"]["weights"], run.resume_run_id) == ("tiny", None)
    assert (run.devices, run.label) == (2, "Generate, TP 2")
    (request,) = asking.requests(asking.queued_runs(turns.queue_order()))
    assert request.needs == ("yard-b",)
    assert "begins from the weights tiny" in member.get(f"/runs/{run.pk}/").content.decode()

    again = member.get(f"/runs/{run.pk}/clone")
    assert again.status_code == 302
    form = member.get(again["Location"]).context["form"]
    assert (form["prompt"].value(), form["tp"].value(), form["step"].value()) == ("def ", "2", "0")
    assert f'href="{again["Location"]}"' in member.get(f"/runs/{run.pk}/").content.decode()

    Worker.objects.filter(name="yard-b").update(weights=[])
    assert member.get("/runs/weights/tiny/generate").status_code == 404
    refused = member.post(f"/runs/{run.pk}/generate", FORM | {"step": "0"})
    assert "No worker that reports has the weights tiny" in refused.context["form"].errors["step"][0]


def test_weights_in_words_of_another_version_are_said_to_be_so(
    member: Client, tiny: dict[str, Any], two: Worker
) -> None:
    told = {**tiny, "model": {**tiny["model"], "experts": 4}}
    Worker.objects.filter(name="yard-b").update(weights=[told])
    assert member.get("/runs/weights/tiny/generate").status_code == 404
    form = member.get("/runs/new/?weights=tiny").context["form"]
    assert any("experts" in said for errors in form.errors.values() for said in errors)
    assert submission.assess(spec_of(tiny)).errors["train.weights"].endswith("in words of another version; update it.")


def test_text_is_generated_from_the_beginning_of_a_run(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    run = services.submit(owner=alice, spec=spec_of(tiny))
    head = member.get(f"/runs/{run.pk}/").content.decode()
    assert f"/runs/{run.pk}/generate" in head and "Compare splits" not in head
    form = member.get(f"/runs/{run.pk}/generate").context["form"]
    assert form.fields["step"].choices == [("0", "the weights tiny, before the first step")]
    assert member.post(f"/runs/{run.pk}/generate", FORM | {"step": "0"}).status_code == 302
    assert Run.objects.latest("pk").spec["train"]["weights"] == "tiny"


def test_weights_of_a_gpu_host_are_tried_there(member: Client, tiny: dict[str, Any], two: Worker) -> None:
    gpu = {"index": 0, "kind": "cuda", "name": "H100", "memory_total": 80 << 30, "memory_used": 0, "load": 0.0}
    Worker.objects.filter(name="yard-b").update(devices=[gpu], weights=[{**tiny, "dtype": "BF16"}])
    form = member.get("/runs/new/?weights=tiny").context["form"]
    assert (form["train__device"].value(), form["train__precision"].value()) == ("cuda", "bf16")


def test_text_from_weights_is_asked_for_by_api_as_step_0(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    run = services.submit(owner=alice, spec=spec_of(tiny))
    other = services.submit(owner=alice, spec=spec_of(tiny, {"weights": ""}))
    sent = {"step": 0, "prompt": "def ", "new": 4}
    answers = [member.post(f"/api/v1/runs/{one.pk}/generate", sent, "application/json") for one in (run, other)]
    assert [answer.status_code for answer in answers] == [201, 422]
    assert Run.objects.get(pk=answers[0].json()["data"]["id"]).spec["train"]["weights"] == "tiny"
    assert answers[1].json()["error"]["fields"]["step"] == f"Run {other.pk} has no checkpoint at step 0; it has none."
