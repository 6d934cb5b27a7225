"""Files that a run uses: an uploaded text to train on, a custom schedule, token files that lie on the workers."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs.models import Corpus, Run
from dashboard.runs.waiting import asking, queue, turns
from parallel_core.schedule import compute_only, plain
from parallel_core.spec import RunSpec
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.django_db


def upload(member: Client, data: bytes, **changes: Any) -> Any:
    return member.post("/runs/new/", filled(**changes) | {"upload": SimpleUploadedFile("tale.txt", data)})


def test_an_upload_becomes_the_corpus_of_the_run(member: Client) -> None:
    assert upload(member, b"once upon a time " * 100).status_code == 302
    corpus = Corpus.objects.get()
    assert Run.objects.get().spec["train"]["corpus"] == f"blob:{corpus.sha256}"
    upload(member, b"once upon a time " * 100)
    assert Corpus.objects.count() == 1


@pytest.mark.parametrize("data", [b"", b"ab\x00cd" * 100, b"caf\xe9 " * 100])
def test_what_is_no_text_is_refused_at_the_field(member: Client, data: bytes) -> None:
    answer = upload(member, data)
    assert answer.status_code == 422 and "upload" in answer.context["form"].errors
    assert not Corpus.objects.exists() and not Run.objects.exists()


def test_a_corpus_shorter_than_a_sample_is_refused(member: Client) -> None:
    answer = upload(member, b"short")
    assert "too short" in answer.context["form"].errors["train__corpus"][0]


def test_an_upload_is_not_lost_with_a_mistake_elsewhere(member: Client) -> None:
    answer = upload(member, b"once upon a time " * 100, parallel__tp="3")
    assert answer.status_code == 422
    assert answer.context["form"]["train__corpus"].value() == f"blob:{Corpus.objects.get().sha256}"


PROGRAM = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
OWN = {"parallel__schedule": "custom", "parallel__pp": "2", "parallel__micro_batches": "2"}


def program(member: Client, data: bytes, name: str = "own.csv") -> Any:
    return member.post("/runs/new/", filled(**OWN) | {"program_file": SimpleUploadedFile(name, data)})


def test_a_schedule_may_come_as_a_file(member: Client) -> None:
    assert program(member, PROGRAM.encode()).status_code == 302
    assert Run.objects.get().spec["parallel"]["program"] == PROGRAM.strip()


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_schedule_that_the_schedules_page_exports_may_come_back(member: Client, kind: str) -> None:
    order = member.get(f"/schedules/order-a.{kind}?a=1f1b&p=2&m=2").content
    assert program(member, order, f"order.{kind}").status_code == 302
    parallel = RunSpec.model_validate(Run.objects.get().spec).parallel
    assert plain(parallel).programs == compute_only("1f1b", 2, 2).programs


@pytest.mark.parametrize(
    ("data", "field", "told"),
    [
        (b"", "program_file", "A schedule has 1 byte to 512 KiB; this file has 0 bytes."),
        (b"0F0,\xff", "program_file", "byte 4 is not UTF-8"),
        (b"a" * (2**19 + 1), "program_file", "this file has 524289 bytes"),
        (b"0F0,nonsense", "parallel__program", "nonsense"),
        (b'[[["F", 0, 0], "nonsense"]]', "parallel__program", "Cell 2 of rank 0's row"),
    ],
)
def test_a_file_that_is_no_schedule(member: Client, data: bytes, field: str, told: str) -> None:
    """A file that is at least text is put into the field, so that it can be corrected there."""
    answer = program(member, data)
    assert answer.status_code == 422
    assert told in answer.context["form"].errors[field][0]
    assert not Run.objects.exists()


def test_a_schedule_that_would_hang_shows_its_grid_at_the_field(member: Client) -> None:
    """The wrong cell is marked at the field; the panel gives only the reason."""
    hangs = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1"
    answer = member.post("/runs/new/check", filled(**OWN, parallel__program=hangs))
    (said,) = answer.context["form"].errors["parallel__program"]
    assert "rank 1 | >1RECV_ACT1< 1F1 " in said
    (short,) = answer.context["panel"].errors
    assert short == f"Own schedule: {said.splitlines()[0]} Its field shows where."
    sentence, place = said.split("\n", 1)
    shown = html.unescape(answer.content.decode())
    assert f"<span>{sentence}</span>\n{place}</p>" in shown, "the sentence wraps on a phone, the grid does not"


PETS = {"name": "pets", "images": 6000, "height": 32, "width": 32, "channels": 3, "classes": 7}


def test_image_files_of_workers_are_corpora(member: Client, worker: Worker) -> None:
    Worker.objects.update(image_files=[PETS])
    page = member.get("/runs/new/").content.decode()
    assert "pets (6 000 images of 32 × 32 × 3, 7 classes, on yard-a)" in page
    model = {"model__kind": "vgg16", "model__width": "2", "train__corpus": "images:pets"}

    def errors(**changes: str) -> dict[str, list[str]]:
        form = member.post("/runs/new/", filled(**model | changes)).context["form"]
        return {name: list(said) for name, said in form.errors.items()}

    said = errors(model__classes="5")
    assert said["model__channels"] == [
        "Image file pets has images of 3 channels, and the model 1; use Image channels = 3."
    ]
    assert said["model__classes"] == ["Image file pets has 7 classes, and the model 5; use Classes = 7 or more."]
    model |= {"model__channels": "3"}
    assert "they have pets." in errors(train__corpus="images:cats")["train__corpus"][0]
    held = errors(train__eval_every="5", train__eval_samples="6000")["train__eval_samples"]
    assert held == ["Image file pets has 6000 images; use at most 5999."]
    Worker.objects.update(image_files=[{**PETS, "height": 64, "width": 64}])
    assert "and the model takes 32" in errors()["model__image"][0]
    Worker.objects.update(image_files=[PETS])
    assert member.post("/runs/new/", filled(**model)).status_code == 302
    shown = member.get(f"/runs/{Run.objects.get().pk}/").content.decode()
    assert "VGG-16 width 2, 32 px, 3 channels, batch 16, fp32, image file pets" in shown
    Worker.objects.create(name="yard-0", devices=[], heartbeat_at=timezone.now())
    (request,) = asking.requests(asking.queued_runs(turns.queue_order()))
    assert request.needs == ("yard-a",), "no other worker has the file"
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert queue.waiting(Run.objects.get()).sentence.startswith("Waits for worker yard-a, which has its image file")


def test_token_files_of_workers_are_corpora(member: Client, worker: Worker) -> None:
    files = [{"name": "wiki", "tokens": 120_000, "vocab": 50_257}]
    Worker.objects.update(token_files=files)
    page = member.get("/runs/new/").content.decode()
    assert "wiki (120 000 tokens of 50 257, on yard-a)" in page
    answer = member.post("/runs/new/", filled(train__corpus="tokens:wiki"))
    assert "use 50257 or more" in answer.context["form"].errors["model__vocab"][0]
    unknown = member.post("/runs/new/", filled(train__corpus="tokens:books", model__vocab="50257"))
    assert "they have wiki" in unknown.context["form"].errors["train__corpus"][0]
    small = {"model__vocab": "50257", "model__hidden": "32", "model__heads": "4", "train__global_batch": "2"}
    assert member.post("/runs/new/", filled(train__corpus="tokens:wiki", **small)).status_code == 302
    Worker.objects.create(name="yard-0", devices=[], heartbeat_at=timezone.now())
    (request,) = asking.requests(asking.queued_runs(turns.queue_order()))
    assert request.needs == ("yard-a",), "no other worker has the file"
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert queue.waiting(Run.objects.get()).sentence.startswith("Waits for worker yard-a, which has its token file")
