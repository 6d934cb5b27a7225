"""The relay pauses while nobody consumes, and repeats an end that was not settled. With a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from parallel_core.observe.record_files import FileSink
from workers import relay as relay_module
from workers.contract import EVENTS, AttemptBody
from workers.folder import Folder
from workers.relay import Relay
from workers.settings import Settings
from workers.wire import Publisher

END = AttemptBody(attempt=3, state="ended", outcome="succeeded")


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


@pytest.fixture
def stream(broker_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def relay(broker_url: str, stream: redis.Redis, tmp_path: Path) -> Iterator[Relay]:
    relay = Relay(Publisher(Settings("a", broker_url, tmp_path, tmp_path)))
    relay.start()
    yield relay
    relay.leave(10)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder.claim(tmp_path, 3)
    assert folder
    return folder


def kinds(stream: redis.Redis) -> list[bytes]:
    entries: Any = stream.xrange(EVENTS)
    return [fields[b"kind"] for _, fields in entries]


def test_the_end_waits_for_the_last_byte_and_tells_the_sizes(relay: Relay, folder: Folder, stream: Any) -> None:
    FileSink(folder.path, 0).emit("phase", phase="done", step=1)
    (folder.path / "log-0.txt").write_text("hello")
    relay.follow(folder, [0])
    relay.finish(3, END)
    until(lambda: len(kinds(stream)) == 3)
    assert kinds(stream) == [b"batch", b"batch", b"attempt"]
    sizes = json.loads(stream.xrange(EVENTS)[-1][1][b"body"])["sizes"]
    assert sizes == {"events:0": (folder.path / "events-0.bin").stat().st_size, "log:0": 5}
    until(folder.load_published)
    assert folder.load_published() == sizes


def test_files_wait_while_the_controller_is_behind(
    relay: Relay, folder: Folder, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MAX_BACKLOG", 5)
    for _ in range(5):
        stream.xadd(EVENTS, {"kind": "old"})
    (folder.path / "log-0.txt").write_text("hello")
    relay.follow(folder, [0])
    relay.tell("attempt", AttemptBody(attempt=3, state="running"))
    until(lambda: len(kinds(stream)) == 6)  # an attempt's state events are few and are never held back
    assert b"batch" not in kinds(stream)
    stream.xtrim(EVENTS, maxlen=0)
    until(lambda: b"batch" in kinds(stream))


def test_an_end_that_nobody_settles_is_repeated(
    relay: Relay, folder: Folder, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "REPEAT_S", (0.1, 0.2))
    monkeypatch.setattr(relay_module, "IDLE_S", 0.1)
    relay.follow(folder, [])
    relay.finish(3, END)
    until(lambda: kinds(stream))
    stream.xtrim(EVENTS, maxlen=0)  # the message is lost
    until(lambda: kinds(stream) == [b"attempt"])
    relay.forget(3, folder.settle)
    until(lambda: folder.settled)


def test_a_restarted_relay_goes_on_where_it_was(relay: Relay, folder: Folder, stream: Any) -> None:
    (folder.path / "log-0.txt").write_text("hello")
    folder.save_published({"log:0": 3})
    relay.follow(folder, [0])
    relay.finish(3, END)
    until(lambda: len(kinds(stream)) == 2)
    fields = stream.xrange(EVENTS)[0][1]
    assert (json.loads(fields[b"body"])["start"], fields[b"data"]) == (3, b"lo")


@pytest.mark.parametrize(("answered", "times"), [(False, 1), (True, 2)], ids=["request", "answer"])
def test_what_was_lost_with_a_broker_that_died_is_sent_again(
    relay: Relay, folder: Folder, stream: Any, monkeypatch: pytest.MonkeyPatch, answered: bool, times: int
) -> None:
    """Before it took an entry, or between that and its answer: then it comes twice, and its offsets say so."""
    dying = {"add", "add_all"}
    for name in tuple(dying):
        send = getattr(relay._publisher, name)

        def once(*args: Any, name: str = name, send: Any = send) -> None:
            if name in dying and answered:
                send(*args)
            if name in dying:
                dying.remove(name)
                raise redis.ConnectionError("Connection closed by server.")
            send(*args)

        monkeypatch.setattr(relay._publisher, name, once)
    (folder.path / "log-0.txt").write_text("hello")
    relay.follow(folder, [0])
    relay.finish(3, END)
    until(lambda: len(kinds(stream)) == 2 * times)
    assert kinds(stream) == [b"batch"] * times + [b"attempt"] * times
    told = [(json.loads(fields[b"body"]), fields.get(b"data")) for _, fields in stream.xrange(EVENTS)]
    assert [(body["start"], body["end"], data) for body, data in told[:times]] == [(0, 5, b"hello")] * times
    assert [body["sizes"] for body, _ in told[times:]] == [{"events:0": 0, "log:0": 5}] * times


def test_what_several_ranks_wrote_goes_out_together_and_not_at_every_poll(
    relay: Relay, folder: Folder, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that blocks on the stream is woken once for the batches of all ranks; later bytes follow when the
    gathering time is over, or when the attempt ends.
    """
    monkeypatch.setattr(relay_module, "GATHER_S", 1e6)
    monkeypatch.setattr(relay_module, "POLL_S", 0.01)
    stream.xgroup_create(EVENTS, "readers", id="0", mkstream=True)
    for rank in range(3):
        (folder.path / f"log-{rank}.txt").write_text("one ")
    relay.follow(folder, [0, 1, 2])
    found: Any = stream.xreadgroup("readers", "reader", {EVENTS: ">"}, block=30_000)
    entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
    assert len(entries) == 3
    relay.tell("attempt", AttemptBody(attempt=3, state="starting"))
    until(lambda: len(kinds(stream)) == 4)  # the pass that reads each file to its end is over
    (folder.path / "log-1.txt").write_text("one two")
    relay.tell("attempt", AttemptBody(attempt=3, state="running"))
    until(lambda: len(kinds(stream)) == 5)
    assert kinds(stream)[-1] == b"attempt", "a state event does not wait"
    relay.finish(3, END)
    until(lambda: len(kinds(stream)) == 7)
    assert kinds(stream)[-2:] == [b"batch", b"attempt"]
