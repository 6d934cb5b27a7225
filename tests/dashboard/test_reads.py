"""What the first attempt of a run read is expected of its later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard.control.dispatch import start_message
from dashboard.runs.models import Attempt, State
from dashboard.runs.reads import read_sentence
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from workers.attempt import Attempt as Started
from workers.folder import Folder, Meta
from workers.run_commands import read_command
from workers.settings import Settings

pytestmark = pytest.mark.django_db


def says(attempt: Attempt, rank: int, **reads: str) -> None:
    told = {"reads": reads} if reads else {}
    factory.feed(attempt, rank, encode({"kind": "hello", "rank": rank, "t": 1.0, **told}))


def test_a_later_attempt_is_told_what_the_first_one_read(alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2})
    first = factory.start(run)
    assert "read" not in start_message(first)
    says(first, 0, corpus="aa", weights="bb")
    says(first, 1)
    second = factory.start(run)
    assert start_message(second).get("read") == {"corpus": "aa", "weights": "bb"}
    says(second, 0, corpus="cc")  # refused by its ranks
    assert start_message(factory.start(run)).get("read") == {"corpus": "aa", "weights": "bb"}
    assert "read" not in start_message(first)
    factory.end(run, State.FAILED)
    assert run.summary["reads"] == {"corpus": "aa", "weights": "bb"}
    assert read_sentence(run) == "Read: stdlib (hash of its content aa).", "it begins from no weights"


def test_the_ranks_are_told_what_they_have_to_read(alice: Any, tmp_path: Path) -> None:
    run = factory.queued(alice, {"dp": 2})
    says(factory.start(run), 0, corpus="aa")
    command = read_command(start_message(factory.start(run)), "yard-a", factory.worker().devices)
    settings = Settings("yard-a", "redis://yard.invalid:6379", tmp_path, tmp_path)
    folder = Folder.claim(tmp_path, 7)
    assert folder is not None
    assert Started(folder, Meta(), command).start_command(settings).get("expects") == {"corpus": "aa"}
