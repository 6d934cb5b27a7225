"""Uploaded texts: checks them, keeps them in the default storage as corpora/<sha256 of their bytes>, deletes them."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.files.storage import default_storage
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.shortcuts import get_object_or_404

from dashboard import deletions
from dashboard.accounts.roles import may_change, may_submit
from dashboard.file_names import shown_name
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.form import relevance
from dashboard.runs.form.choice_labels import CORPUS_LABELS
from dashboard.runs.models import ENDED, Corpus, Run
from dashboard.runs.services import Invalid
from parallel_core import limits
from parallel_core.analysis.quantities import bytes_text
from parallel_core.outline import BUILT_IN_CORPORA, KINDS

MAX_MIB = limits.MAX_CORPUS_BYTES // 2**20
CHUNK = 1 << 20
FOLDER = "corpora"
PART = ".part-"
LEFT_S = 24 * 3600
"""Age in seconds after which a file without a row is deleted: the process that wrote it must have been killed."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def storage_name(sha256: str) -> str:
    return f"{FOLDER}/{sha256}"


def store(*, owner: Any, upload: UploadedFile) -> Corpus:
    """Stores the upload and returns its row; uploading the same bytes again returns the existing one.

    Raises Invalid({"upload": why}) for an empty file, one over the limit, and one that is not UTF-8 text.
    """
    size = upload.size or 0
    if not size:
        raise Invalid({"upload": "This file is empty: there is nothing to train on."})
    if size > limits.MAX_CORPUS_BYTES:
        more = bytes_text(size - limits.MAX_CORPUS_BYTES)
        raise Invalid({"upload": f"A corpus has at most {MAX_MIB} MiB; this file has {more} more."})
    sha256 = checked_sha256(upload)
    _keep(upload, sha256, size)
    title = shown_name(upload.name, limits.MAX_NAME) or sha256[:12]
    corpus = Corpus.objects.get_or_create(sha256=sha256, defaults={"name": title, "size": size, "owner": owner})[0]
    _keep(upload, sha256, size)  # if the same text was just being deleted, its file may have gone in between
    _sweep()
    return corpus


def users_of(corpora: Iterable[Corpus]) -> dict[int, list[Run]]:
    """Corpus -> the runs that have not ended and name it."""
    by_name = {f"blob:{corpus.sha256}": corpus.pk for corpus in corpora}
    out: dict[int, list[Run]] = {}
    for run in Run.objects.exclude(state__in=ENDED).filter(spec__train__corpus__in=list(by_name)).defer("summary"):
        out.setdefault(by_name[run.spec["train"]["corpus"]], []).append(run)
    return out


def why_stays(corpus: Corpus, user: Any, users: Sequence[Run]) -> str:
    """Why `user` cannot delete the text now, as a sentence; '' if they can. `users`: as in `users_of`."""
    if corpus.owner_id == user.pk and not may_submit(user):
        return "It is yours, but your account is a viewer by now: admins may delete it."
    if not may_change(user, corpus):
        return f"Only its owner, {corpus.owner.get_username()}, and admins may delete it."
    return f"“{users[0].name}” trains on it and has not ended." if users else ""


def delete(*, corpus: Corpus, user: Any) -> None:
    """Deletes the text and its file. Runs that ended keep its sha256.

    Each worker is told to delete its copy when it next names the text in a heartbeat (`control.heartbeats`).

    Raises PermissionDenied unless the user owns it or is an admin, Invalid({"corpus": why}) while a run needs it, and
    Http404 if it has been deleted since it was read.
    """
    with transaction.atomic():
        locked = Corpus.objects.select_for_update(of=("self",)).select_related("owner")
        corpus = get_object_or_404(locked, pk=corpus.pk)
        if why := why_stays(corpus, user, users_of([corpus]).get(corpus.pk, [])):
            if not may_change(user, corpus):
                raise PermissionDenied(why)
            raise Invalid({"corpus": why})
        deletions.note(user, corpus)
        corpus.delete()
    _drop_file(corpus.sha256)  # only then: a text that stays because the commit fails has its file


def _drop_file(sha256: str) -> None:
    """Deletes the file of a text without a row. It gets another name first, so that an upload of the same text, which
    looks for the file once more when it has its row, either finds none, or is seen here, and the file is put back."""
    path = Path(default_storage.path(storage_name(sha256)))
    aside = path.with_name(f"{PART}{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        path.replace(aside)
        if Corpus.objects.filter(sha256=sha256).exists() and not path.exists():
            aside.replace(path)
        else:
            aside.unlink()


def _keep(upload: UploadedFile, sha256: str, size: int) -> None:
    """Writes the upload to a partial file and renames it when it is complete and on disk.

    So a file under its own name is complete, even if this process is killed or the disk fills up during the copy. A
    file of another size is replaced.
    """
    path = Path(default_storage.path(storage_name(sha256)))
    if path.exists() and path.stat().st_size == size:
        return
    part = path.with_name(f"{PART}{secrets.token_hex(8)}")
    try:
        upload.seek(0)
        default_storage.save(f"{FOLDER}/{part.name}", upload)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _sweep() -> None:
    """Deletes what uploads and deletions that were killed left more than LEFT_S ago: partial files, and those of texts
    without a row."""
    with os.scandir(default_storage.path(FOLDER)) as entries:
        old = [entry.name for entry in entries if _is_old(entry)]
    for name in old:
        if name.startswith(PART):
            Path(default_storage.path(f"{FOLDER}/{name}")).unlink(missing_ok=True)
    whole = set(filter(_SHA256.fullmatch, old))
    for sha256 in whole and whole.difference(Corpus.objects.values_list("sha256", flat=True)):
        _drop_file(sha256)


def _is_old(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat().st_mtime < time.time() - LEFT_S
    except FileNotFoundError:  # part of another upload, renamed in the meantime
        return False


def checked_sha256(upload: UploadedFile) -> str:
    """SHA-256 of the upload. Raises Invalid if it is not UTF-8 text, with the position of the first wrong byte."""
    digest, decoder, at = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")(), 0
    for chunk in upload.chunks(CHUNK):
        nul = chunk.find(b"\x00")
        if nul >= 0:
            raise Invalid({"upload": f"This is not text: byte {at + nul} is zero. Upload UTF-8 text."})
        _decode(decoder, chunk, at)
        digest.update(chunk)
        at += len(chunk)
    _decode(decoder, b"", at, final=True)
    return digest.hexdigest()


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, at: int, final: bool = False) -> None:
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        place = max(0, at - (len(error.object) - len(chunk)) + error.start)
        raise Invalid({"upload": f"This is not UTF-8 text: it stops making sense at byte {place}."}) from None


def choices(fleet: FleetSnapshot | None = None) -> list[tuple[str, str]]:
    """Corpora as (value, label): those built in, then uploads by name, then files of workers that report.

    Built-in corpora of kinds of models that train on nothing else are not offered. `fleet`: a recent snapshot if the
    caller has one.
    """
    able = {name for kind in relevance.kinds_of("train.corpus") for name in KINDS[kind].corpora}
    built_in = [(name, CORPUS_LABELS.get(name, name)) for name in BUILT_IN_CORPORA if name in able]
    rows = Corpus.objects.order_by("name", "id").values_list("sha256", "name", "size")
    uploads = [(f"blob:{sha256}", f"{name} ({bytes_text(size)})") for sha256, name, size in rows]
    return [*built_in, *uploads, *_files(fleet or FleetSnapshot.now())]


def _files(fleet: FleetSnapshot) -> list[tuple[str, str]]:
    """One choice for each name of a file of tokens, then of images, with the workers that have it."""
    return [choice for kind, size_of in SIZES.items() for choice in _files_of(kind, size_of, fleet)]


def _files_of(kind: str, size_of: Callable[[dict[str, Any]], str], fleet: FleetSnapshot) -> list[tuple[str, str]]:
    hosts: dict[str, list[str]] = {}
    sizes: dict[str, str] = {}
    for worker in fleet.reporting:
        for file in worker.data_files[kind]:
            hosts.setdefault(file["name"], []).append(worker.name)
            sizes[file["name"]] = size_of(file)
    return [(f"{kind}:{name}", f"{name} ({sizes[name]}, on {', '.join(hosts[name])})") for name in sorted(hosts)]


def _tokens_size(file: dict[str, Any]) -> str:
    return f"{_grouped(file['tokens'])} tokens of {_grouped(file['vocab'])}"


def _images_size(file: dict[str, Any]) -> str:
    """`60 000 images of 28 × 28, 10 classes`; with the channels where there are several."""
    channels = f" × {file['channels']}" if file["channels"] > 1 else ""
    size = f"{file['height']} × {file['width']}{channels}"
    return f"{_grouped(file['images'])} images of {size}, {_grouped(file['classes'])} classes"


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", " ")


SIZES = {"tokens": _tokens_size, "images": _images_size}
"""Kind of file -> the sizes of an entry of a worker's list, in words."""
