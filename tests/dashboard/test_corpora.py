"""Uploaded texts on disk: each file is complete or absent, an incomplete one is replaced; who deletes them, when."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import SimpleUploadedFile, TemporaryUploadedFile
from django.db import OperationalError, transaction
from django.test import Client
from pydantic import ValidationError

from dashboard.api.models import Scope
from dashboard.control.controller import Controller
from dashboard.runs import submission
from dashboard.runs.form import relevance, spec_fields
from dashboard.runs.form.choice_labels import CORPUS_LABELS
from dashboard.runs.models import Corpus, Run, State
from dashboard.runs.services import Invalid
from dashboard.runs.texts import corpora
from dashboard.runs.texts.corpus_select import CorpusSelect
from dashboard.studies.models import Study
from parallel_core import limits
from parallel_core.outline import BUILT_IN_CORPORA, KINDS
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from tests.dashboard.test_permissions import token

pytestmark = pytest.mark.django_db
MIB = 1 << 20
TEXT = b"once upon a time" * (8 * MIB // 16)


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.MEDIA_ROOT = tmp_path
    return tmp_path / "corpora"


@contextmanager
def short_disk(room: int) -> Iterator[None]:
    """Limits the files of this process to `room` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_in_mid_copy_leaves_nothing(folder: Path, alice: Any) -> None:
    with short_disk(4 * MIB), pytest.raises(OSError, match="too large"):
        corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", TEXT))
    assert list(folder.iterdir()) == []
    kept = corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", TEXT))
    assert [path.name for path in folder.iterdir()] == [kept.sha256]
    assert (folder / kept.sha256).read_bytes() == TEXT


def test_a_file_that_is_not_whole_is_replaced_and_a_whole_one_left_alone(folder: Path, alice: Any) -> None:
    kept = corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", TEXT))
    path = folder / kept.sha256
    path.write_bytes(TEXT[: 3 * MIB])
    assert corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", TEXT)) == kept
    assert path.read_bytes() == TEXT
    same = path.stat().st_ino
    corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", TEXT))
    assert path.stat().st_ino == same


def test_a_large_upload_is_moved_and_can_be_read_by_workers(folder: Path, alice: Any) -> None:
    """A temporary file, readable only by its owner, becomes a file that all can read."""
    with TemporaryUploadedFile("tale.txt", "text/plain", len(TEXT), None) as upload:
        upload.write(TEXT)
        upload.flush()
        kept = corpora.store(owner=alice, upload=upload)
    path = folder / kept.sha256
    assert path.read_bytes() == TEXT and path.stat().st_mode & 0o777 == 0o644


def test_what_a_killed_process_left_goes_in_time(folder: Path, alice: Any) -> None:
    folder.mkdir()
    old, new = folder / ".part-old", folder / ".part-new"
    for path in (old, new):
        path.write_bytes(b"half a ta")
    os.utime(old, (time.time() - corpora.LEFT_S - 60,) * 2)
    corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", TEXT))
    assert not old.exists() and new.exists()


def test_a_file_whose_text_got_no_row_before_a_kill_goes_in_time(folder: Path, tale: Corpus, alice: Any) -> None:
    """Or lost it to a deletion that was killed. Not the file of a text that is there, nor one that may get its row."""
    day_old = time.time() - corpora.LEFT_S - 60
    for number, age in enumerate((day_old, time.time()), 10):
        (folder / (f"{number}" * 32)).write_bytes(b"a tale of nobody")
        os.utime(folder / (f"{number}" * 32), (age,) * 2)
    (folder / "notes").touch()
    for name in (tale.sha256, "notes"):
        os.utime(folder / name, (day_old,) * 2)
    corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", b"once upon a time " * 100))
    assert {path.name for path in folder.iterdir()} == {tale.sha256, "11" * 32, "notes"}


def test_every_built_in_corpus_has_a_label() -> None:
    assert set(BUILT_IN_CORPORA) <= set(CORPUS_LABELS), "give it a label in dashboard/runs/form/choice_labels.py"


def test_a_second_data_set_of_a_kind_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    having = set(relevance.kinds_of("train.corpus"))
    assert {"gpt", "mlp", "vgg16", "resnet50"} <= having and "gnmt" not in having
    assert [value for value, _ in corpora.choices()] == ["stdlib", "digits"]
    monkeypatch.setattr(KINDS["gnmt"], "corpora", ("django", "blob"))
    assert relevance.kinds_of("train.corpus") == list(KINDS)
    assert [value for value, _ in corpora.choices()] == ["stdlib", "digits", "django"]


def test_a_built_in_corpus_of_another_kind_gives_way_and_a_users_own_is_refused() -> None:
    """A form that was filled in for text keeps its corpus when a model of images is chosen, without JavaScript."""

    def sent(kind: str, corpus: str) -> RunSpec:
        values = {**spec_fields.from_spec({"model": {"kind": kind}}), "train__corpus": corpus}
        return RunSpec.model_validate(spec_fields.to_spec(values))

    assert sent("mlp", "stdlib").train.corpus == "digits"
    assert sent("gpt", "digits").train.corpus == "stdlib"
    assert sent("vgg16", "images:pets").train.corpus == "images:pets"
    with pytest.raises(ValidationError, match="trains on 'digits' or an image file"):
        sent("mlp", "tokens:web")


def test_an_option_names_the_kinds_that_take_it() -> None:
    choices = [(name, name) for name in ("stdlib", "images:pets", "tokens:web")]
    shown = CorpusSelect(choices=choices).render("corpus", "stdlib")
    kinds = dict(re.findall(r'<option value="([^"]+)"[^>]* data-only-for="model__kind ([^"]+)"', shown))
    of_images = [kind for kind, outline in KINDS.items() if "images" in outline.corpora]
    assert kinds == {"stdlib": "gpt", "images:pets": " ".join(of_images), "tokens:web": "gpt"}
    assert {"mlp", "vgg16", "resnet50"} <= {*of_images} <= {*KINDS} - {"gpt", "gnmt"}


@pytest.fixture
def tale(folder: Path, alice: Any, redis_url: str) -> Corpus:
    """A text that alice has uploaded, and a broker for announcements."""
    return corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", b"once upon a time " * 100))


def training(owner: Any, corpus: Corpus) -> Run:
    return factory.queued(owner, train={"corpus": f"blob:{corpus.sha256}"})


def test_a_text_goes_with_its_file_and_may_come_back(folder: Path, tale: Corpus, alice: Any) -> None:
    corpora.delete(corpus=tale, user=alice)
    assert not Corpus.objects.exists() and list(folder.iterdir()) == []
    corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", b"once upon a time " * 100))
    assert [path.name for path in folder.iterdir()] == [tale.sha256]


def test_a_text_that_could_not_be_deleted_keeps_its_file(
    folder: Path, tale: Corpus, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the database goes away, or its disk is full, before the deletion is committed."""

    @contextmanager
    def uncommitted() -> Iterator[None]:
        with atomic():
            yield
            raise OperationalError("disk I/O error")

    atomic = transaction.atomic
    monkeypatch.setattr(corpora, "transaction", SimpleNamespace(atomic=uncommitted))
    with pytest.raises(OperationalError):
        corpora.delete(corpus=tale, user=alice)
    assert Corpus.objects.get() == tale
    assert [path.name for path in folder.iterdir()] == [tale.sha256]


def test_a_text_that_is_uploaded_while_it_is_deleted_has_its_file(
    folder: Path, tale: Corpus, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever moment of the deletion after its commit: its row is there again, so the file stays."""

    def uploaded(path: Path, to: Path) -> Path:
        monkeypatch.undo()
        Corpus.objects.create(sha256=tale.sha256, name=tale.name, size=tale.size, owner=alice)
        return path.replace(to)

    monkeypatch.setattr(corpora.Path, "replace", uploaded)
    corpora.delete(corpus=tale, user=alice)
    assert Corpus.objects.count() == 1 and [path.name for path in folder.iterdir()] == [tale.sha256]


def test_workers_are_told_to_drop_their_copies_until_it_is_uploaded_again(
    tale: Corpus, alice: Any, peer: Peer, controller: Controller
) -> None:
    def dropped() -> list[str]:
        peer.beat(texts=[tale.sha256])
        controller.turn()
        return [order["sha256"] for order in peer.orders() if order["kind"] == "drop_text"]

    assert dropped() == []
    corpora.delete(corpus=tale, user=alice)
    assert dropped() == dropped() == [tale.sha256], "the first order may be lost"
    corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", b"once upon a time " * 100))
    assert dropped() == []


def test_a_text_stays_while_a_run_needs_it(folder: Path, tale: Corpus, alice: Any) -> None:
    run = training(alice, tale)
    for state in (State.QUEUED, State.RUNNING):
        Run.objects.filter(pk=run.pk).update(state=state)
        with pytest.raises(Invalid) as refused:
            corpora.delete(corpus=tale, user=alice)
        assert refused.value.field_errors == {"corpus": f"“{run.name}” trains on it and has not ended."}
    assert (folder / tale.sha256).exists()
    Run.objects.filter(pk=run.pk).update(state=State.FAILED)
    corpora.delete(corpus=tale, user=alice)


def test_only_its_owner_and_admins_delete_a_text(
    tale: Corpus, member: Client, reader: Client, client: Client, admin: Any, bob: Any
) -> None:
    address = f"/runs/texts/{tale.pk}/delete"
    with pytest.raises(PermissionDenied):
        corpora.delete(corpus=tale, user=bob)
    assert reader.post(address).status_code == 403
    assert address in member.get("/runs/texts/").content.decode()
    seen = reader.get("/runs/texts/").content.decode()
    assert "tale.txt" in seen and address not in seen and "Only its owner, alice, and admins may delete it." in seen
    client.force_login(admin)
    assert "Delete “tale.txt”?" in client.get(address).content.decode()
    assert client.post(address).status_code == 302 and not Corpus.objects.exists()
    assert "No text yet" in client.get("/runs/texts/").content.decode()


def test_a_viewer_is_led_to_no_form_and_not_told_to_be_somebody_else(
    tale: Corpus, member: Client, reader: Client, alice: Any
) -> None:
    """The link led viewers to a refusal, and who is no member any more was sent to the owner, that is to themselves."""
    form = 'href="/runs/new/"'
    assert form in member.get("/runs/texts/").content.decode()
    assert form not in reader.get("/runs/texts/").content.decode()
    alice.groups.clear()
    said = member.get("/runs/texts/").content.decode()
    assert "Only its owner" not in said and "It is yours, but your account is a viewer by now" in said


def test_the_page_says_which_run_keeps_a_text(tale: Corpus, member: Client, alice: Any) -> None:
    run = training(alice, tale)
    address = f"/runs/texts/{tale.pk}/delete"
    said = member.get("/runs/texts/").content.decode()
    assert address not in said and f"“{run.name}” trains on it" in said
    refused = member.post(address)
    assert refused.status_code == 409 and f"“{run.name}” trains on it" in refused.content.decode()
    assert "/runs/texts/" in member.get("/runs/new/").content.decode()


def test_a_text_is_deleted_by_the_api(tale: Corpus, client: Client, alice: Any) -> None:
    headers = {"Authorization": f"Bearer {token(alice, Scope.SUBMIT)[1]}"}
    address = f"/api/v1/corpora/{tale.sha256}"
    run = training(alice, tale)
    assert client.delete(address, headers=headers).status_code == 422
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    assert client.delete(address, headers=headers).status_code == 204
    assert client.delete(address, headers=headers).status_code == 404


def test_a_short_text_is_offered_with_its_size_in_bytes(folder: Path, alice: Any) -> None:
    corpora.store(owner=alice, upload=SimpleUploadedFile("short.txt", b"short"))
    assert "short.txt (5 B)" in [label for _, label in corpora.choices()]


def test_samples_to_hold_out_that_a_corpus_does_not_have_are_refused(folder: Path, alice: Any) -> None:
    short = corpora.store(owner=alice, upload=SimpleUploadedFile("short.txt", b"a" * 1000))
    text = {"corpus": f"blob:{short.sha256}", "eval_every": 5}
    digits = {"kind": "mlp", "layers": 2, "hidden": 32}
    for model, train, field, said in (
        ({"seq": 16}, {**text, "eval_samples": 62}, "eval_samples", "1000 tokens, too few to hold out 62 sequences of"),
        ({"seq": 16}, {**text, "eval_samples": 62}, "eval_samples", "use at most 61."),
        ({"seq": 600}, text, "eval_every", "use 0."),
        (
            {"seq": 1024},
            {"eval_every": 5, "eval_samples": 60_000},
            "eval_samples",
            "too few to hold out 60000 sequences",
        ),
        (digits, {"eval_every": 5, "eval_samples": 2000}, "eval_samples", "use at most train.eval_samples=1796."),
    ):
        spec = {"model": model, "train": {"global_batch": 8, **train}}
        with pytest.raises(Invalid) as refused:
            submission.submit(owner=alice, spec=spec)
        assert said in refused.value.field_errors[f"train.{field}"]


def test_pages_call_an_uploaded_text_by_its_file(folder: Path, tale: Corpus, alice: Any, reader: Client) -> None:
    other = corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", b"another time " * 100))
    study = Study.objects.create(name="Texts", owner=alice, kind="listed", base=factory.BASE)
    runs = [factory.finished(alice, study=study, train={"corpus": f"blob:{tale.sha256}"}), factory.queued(alice)]
    runs.append(training(alice, other))
    named = [f"tale.txt (sha256 {text.sha256[:8]})" for text in (tale, other)]
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}")
    assert page.context["unlike"] == f"Not like for like: data {named[0]} against stdlib against {named[1]}."
    assert [list(one.values) for one in page.context["differing"]] == [[named[0], "stdlib", named[1]]]
    assert named[0] in reader.get(f"/runs/{runs[0].pk}/?tab=spec").text
    assert f", fp32, text {named[0]}</span>" in reader.get(f"/runs/{runs[0].pk}/").text
    report = reader.get(f"/studies/{study.pk}/report/").text
    assert named[0] in report and f"blob:{tale.sha256}" not in report
    Corpus.objects.filter(pk=tale.pk).delete()
    assert f"a deleted text (sha256 {tale.sha256[:8]})" in reader.get(f"/runs/{runs[0].pk}/?tab=spec").text


def test_a_text_that_is_a_little_too_large_is_told_by_how_much(
    folder: Path, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger requests are cut off before, so in whole MiB it had as many as it may have."""
    monkeypatch.setattr(limits, "MAX_CORPUS_BYTES", 5)
    with pytest.raises(Invalid, match=f"at most {corpora.MAX_MIB} MiB; this file has 4 B more"):
        corpora.store(owner=alice, upload=SimpleUploadedFile("tale.txt", b"once upon"))
