"""Uploaded texts on disk: each file is complete or absent, and an incomplete one is replaced."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile, TemporaryUploadedFile

from dashboard.runs import corpora, relevance
from dashboard.runs.choice_labels import CORPUS_LABELS
from parallel_core.outline import BUILT_IN_CORPORA, KINDS

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


def test_every_built_in_corpus_has_a_label() -> None:
    assert set(BUILT_IN_CORPORA) <= set(CORPUS_LABELS), "give it a label in dashboard/runs/choice_labels.py"


def test_a_second_data_set_of_a_kind_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert relevance.kinds_of("train.corpus") == ["gpt"]
    assert [value for value, _ in corpora.choices()] == ["stdlib"]
    monkeypatch.setattr(KINDS["mlp"], "corpora", ("digits", "django"))
    assert relevance.kinds_of("train.corpus") == ["gpt", "mlp"]
    assert [value for value, _ in corpora.choices()] == ["stdlib", "digits", "django"]
