"""A disk that takes nothing more, or that fails: every attempt still ends, and nothing else of the worker does."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from parallel_core.observe.event_tail import Piece
from tests.workers.harness import tiny
from workers import ending, folder, intake, preparation, recovery
from workers.calibration import Calibration
from workers.contract import AttemptBody
from workers.devices import Devices
from workers.ending import Ending
from workers.folder import Folder, Meta
from workers.intake import take
from workers.live_attempts import LiveAttempts
from workers.relay import FileKey, Followed, Relay
from workers.run_commands import Refused, RunCommand, read_command
from workers.settings import Settings
from workers.supervisor import Supervisor
from workers.tail import Tail
from workers.wire import Publisher

DEVICES = Devices(cpu_devices=2)._read_cpu()
END = AttemptBody(attempt=5, state="ended", outcome="succeeded")


def no_space(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def message(attempt: int = 5, **changes: Any) -> dict[str, Any]:
    node = {"worker": "a", "devices": [0, 1], "first_rank": 0, "address": "127.0.0.1"}
    return {"run": 1, "attempt": attempt, "number": 1, "spec": tiny(), "nodes": [node], **changes}


class Listed(Relay):
    """Lists the ends and the files that it is given, instead of publishing them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(Publisher(settings))
        self.ends: list[AttemptBody] = []

    def finish(self, attempt: int, end: AttemptBody) -> None:
        self.ends.append(end)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)


@pytest.fixture
def relay(settings: Settings) -> Listed:
    return Listed(settings)


@pytest.fixture
def supervisor(settings: Settings, relay: Listed) -> Supervisor:
    return Supervisor(settings, relay, lambda: DEVICES, Calibration(settings.home, "cpu"))


def live(supervisor: Supervisor, settings: Settings) -> None:
    taken = take(message(), settings, DEVICES)
    assert taken is not None and isinstance(taken[1], RunCommand)
    supervisor._accepted(taken[0], taken[1])


def test_a_cancel_stops_the_ranks_and_its_end_is_published(
    supervisor: Supervisor, settings: Settings, relay: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(supervisor, settings)
    stopped: list[int] = []

    def stop(attempt: int, grace: float) -> bool:
        stopped.append(attempt)
        return True

    supervisor._live[5].launched = time.monotonic()
    monkeypatch.setattr(supervisor._server, "stop", stop)
    monkeypatch.setattr(folder, "write_json", no_space)
    supervisor._control({"kind": "cancel", "attempt": 5})
    assert stopped == [5]
    supervisor._conclude(supervisor._live[5])
    assert [end["outcome"] for end in relay.ends] == ["cancelled"]


def test_a_process_that_cannot_be_recorded_is_told_all_the_same(
    supervisor: Supervisor, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(supervisor, settings)
    monkeypatch.setattr(folder, "write_json", no_space)
    for rank in (0, 1):
        supervisor._on_event({"event": "started", "attempt": 5, "rank": rank, "pid": 2**22 + 1, "start_ticks": 1})
    assert supervisor._live[5].started


def test_a_restart_ends_the_other_attempts_if_one_cannot_be(
    settings: Settings, relay: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [Folder.claim(settings.attempts, attempt) for attempt in (5, 6)]
    assert folders[0] and folders[1]
    folders[0].save(Meta(message=None, stop="fenced"))
    monkeypatch.setattr(Path, "touch", no_space)
    monkeypatch.setattr(folder, "write_json", no_space)
    recovery.recover([one for one in folders if one], relay, LiveAttempts())
    assert [(end["attempt"], end["cause"]) for end in relay.ends] == [(6, "worker_lost")]


def test_an_attempt_that_a_restart_cannot_end_is_not_listed_as_alive(settings: Settings, relay: Listed) -> None:
    """As with the record of another version of the worker."""
    claimed, roll = Folder.claim(settings.attempts, 5), LiveAttempts()
    assert claimed
    claimed.save(Meta(message=None, stop="cancelled", stopped_as={"outcome": "cancelled", "unknown": 1}))
    recovery.recover([claimed], relay, roll)
    assert not relay.ends and not roll.progress()


def test_a_settled_folder_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark that everything has arrived finds room only once the files are gone."""
    claimed, touch = Folder.claim(tmp_path, 4), Path.touch
    assert claimed
    (claimed.path / "log-0.txt").write_text("x" * 100)
    monkeypatch.setattr(Path, "touch", lambda path: no_space() if any(path.parent.iterdir()) else touch(path))
    claimed.settle()
    assert claimed.settled and [path.name for path in claimed.path.iterdir()] == ["settled"]


def test_offsets_that_cannot_be_saved_hold_up_no_other_attempt(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, published = Relay(Publisher(settings)), list[int]()
    monkeypatch.setattr(relay._publisher, "add", lambda kind, body: published.append(body["attempt"]))
    for attempt in (5, 6):
        claimed = Folder.claim(settings.attempts, attempt)
        assert claimed
        relay._followed[attempt] = Followed(claimed, {}, {}, end=AttemptBody(**{**END, "attempt": attempt}), dirty=True)
    monkeypatch.setattr(folder, "write_json", no_space)
    relay._publish()
    assert published == [5, 6]


def test_files_that_cannot_be_read_hold_up_no_other_attempt(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreadable:
        def read(self, start: int, final: bool) -> Piece:
            no_space()

    relay, published = Relay(Publisher(settings)), list[int]()
    monkeypatch.setattr(relay._publisher, "add", lambda kind, body: published.append(body["attempt"]))
    of_attempts: dict[int, dict[FileKey, Tail]] = {5: {("log", 0): Unreadable()}, 6: {}}
    for attempt, tails in of_attempts.items():
        claimed = Folder.claim(settings.attempts, attempt)
        assert claimed
        end = AttemptBody(**{**END, "attempt": attempt})
        relay._followed[attempt] = Followed(claimed, tails, dict.fromkeys(tails, 0), end=end)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        relay._publish()
    assert published == [6]


def test_an_order_that_fails_ends_neither_the_relay_nor_the_orders_behind_it(settings: Settings) -> None:
    relay, done = Relay(Publisher(settings)), list[int]()
    relay.forget(5, no_space)
    relay.forget(6, lambda: done.append(6))
    relay._obey(0)
    assert done == [6]


def test_what_a_full_disk_does_not_take_is_a_line_of_the_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = Folder.claim(settings.attempts, 5)
    assert claimed
    monkeypatch.setattr(folder, "write_json", no_space)
    claimed.try_save(Meta())
    Followed(claimed, {}, {}, dirty=True).save(force=True)
    full = "[Errno 28] No space left on device"
    assert [(line.getMessage(), line.exc_info) for line in caplog.records] == [
        (f"attempt 5: its state cannot be stored: {full}", None),
        (f"attempt 5: how far it was published cannot be stored: {full}", None),
    ]


def test_an_order_that_cannot_be_taken_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "checkpoints")

    monkeypatch.setattr(intake, "with_beginning", denied)
    taken = take(message(), settings, DEVICES)
    assert taken is not None
    assert taken[1] == ending.refused("Worker a cannot take the run: [Errno 13] Permission denied: 'checkpoints'")
    monkeypatch.setattr(folder, "write_json", no_space)
    full = take(message(attempt=6), settings, DEVICES)
    assert full is not None and isinstance(full[1], Ending) and "No space left" in full[1].detail


def test_an_order_that_cannot_be_prepared_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "prepare", no_space)
    monkeypatch.setattr(preparation.threading, "Thread", AtOnce)
    found: list[RunCommand | Refused] = []
    preparation.prepare_aside(settings, read_command(message(), "a", DEVICES), found.append)
    assert str(found[0]) == "Worker a cannot prepare the run: [Errno 28] No space left on device"


class AtOnce:
    """A thread whose work is done when it has been started."""

    def __init__(self, target: Any, **_: Any) -> None:
        self.start = target
