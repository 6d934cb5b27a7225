"""Files that are written whole, and locks that end with their process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel_core.atomic_file import write_text
from parallel_core.file_lock import FileLock

HOLDER = """
import sys, time
from pathlib import Path
from parallel_core.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.hold()
lock.write_note("held\\n")
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("sync", [False, True])
def test_a_text_replaces_an_older_one(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "note.json"
    path.write_text("old, and longer")
    write_text(path, "nëw", sync=sync)
    assert path.read_bytes() == "nëw".encode() and list(tmp_path.iterdir()) == [path]


def test_a_text_that_cannot_be_flushed_leaves_the_older_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, os.strerror(28))

    path = tmp_path / "note.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new", sync=True)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new", "without `sync` it is not flushed"


def test_a_text_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bool]] = []

    def note(file: int) -> None:
        seen.append((path.with_name("note.json.part").read_bytes(), path.exists()))

    path = tmp_path / "note.json"
    monkeypatch.setattr(os, "fsync", note)
    write_text(path, "new", sync=True)
    assert seen == [(b"new", False)]


def test_a_lock_ends_with_its_process_and_its_note_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "yard.lock"
    lock = FileLock(path)
    assert lock.read_note() == ""
    command: list[Any] = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            assert not lock.hold() and lock.read_note() == "held\n", "a refused attempt leaves the note"
        finally:
            holder.kill()
    assert lock.hold() and lock.read_note() == "held\n"
    lock.write_note("up")
    assert lock.read_note() == "up"
    lock.release()
    again = FileLock(path)
    assert again.hold()
    again.release()
