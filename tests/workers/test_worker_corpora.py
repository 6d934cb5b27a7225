"""Uploaded texts in a worker's cache: fetched from a web that may fail meanwhile, removed when they are too many."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from parallel_core.spec import RunSpec
from workers import cached_texts, corpora
from workers.attempt import Attempt
from workers.contract import Node, StartMessage
from workers.folder import Folder, Meta
from workers.run_commands import RunCommand
from workers.settings import Settings
from workers.worker import Worker

TEXT = bytes(range(256)) * 4096  # 1 MiB
SHA = hashlib.sha256(TEXT).hexdigest()
NAME = f"blob:{SHA}"


@dataclass
class Web:
    """A web server that serves `blobs` as the yard does. `faults` happen to one request each, in order: a status, or
    the number of bytes after which the connection ends.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: list[int] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Authorization and Range of each request."""

    def serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        span = request.headers.get("Range", "")
        self.asked.append((request.headers.get("Authorization", ""), span))
        fault = self.faults.pop(0) if self.faults else None
        body = self.blobs.get(request.path.removeprefix("/api/v1/blobs/"))
        if body is None or (fault is not None and 400 <= fault < 600):
            request.send_error(404 if body is None or fault is None else fault)
            return
        begin = int(span.removeprefix("bytes=").removesuffix("-") or 0)
        request.send_response(206 if begin else 200)
        request.send_header("Content-Length", str(len(body) - begin))
        request.end_headers()
        request.wfile.write(body[begin : None if fault is None else begin + fault])


@pytest.fixture
def web() -> Iterator[tuple[Web, str]]:
    """The server and its address."""
    serving = Web({SHA: TEXT})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            serving.serve(self)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield serving, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def settings(web: tuple[Web, str], tmp_path: Path) -> Settings:
    return Settings("a", "", tmp_path / "home", tmp_path, url=web[1], token="secret")


def test_a_corpus_comes_from_the_web_and_is_kept(web: tuple[Web, str], settings: Settings) -> None:
    assert not corpora.have(settings, NAME)
    corpora.fetch(settings, NAME)
    assert corpora.have(settings, NAME)
    assert (settings.corpora / SHA).read_bytes() == TEXT
    assert web[0].asked == [("Bearer secret", "")]


def test_a_corpus_on_this_host_needs_no_web(tmp_path: Path) -> None:
    settings = Settings("a", "", tmp_path / "home", tmp_path)
    with pytest.raises(corpora.CorpusMissing, match="TRAINYARD_URL names no web"):
        corpora.fetch(settings, NAME)
    (tmp_path / "files" / "corpora").mkdir(parents=True)
    (tmp_path / "files" / "corpora" / SHA).write_bytes(TEXT)
    corpora.fetch(settings, NAME)
    assert (settings.corpora / SHA).read_bytes() == TEXT


def test_a_corpus_that_is_another_is_not_kept(web: tuple[Web, str], settings: Settings) -> None:
    web[0].blobs["0" * 64] = b"some text"
    for sha256, reason in (("0" * 64, "another sha256"), ("1" * 64, "could not be fetched: HTTP Error 404")):
        with pytest.raises(corpora.CorpusMissing, match=reason):
            corpora.fetch(settings, f"blob:{sha256}")
    assert list(settings.corpora.iterdir()) == []
    assert len(web[0].asked) == 2, "what is not there is not asked for again"


def test_a_web_that_restarts_costs_no_run_and_no_byte_twice(web: tuple[Web, str], settings: Settings) -> None:
    web[0].faults += [503, 300_000, 502, 0, 400_000]
    corpora.fetch(settings, NAME)
    assert (settings.corpora / SHA).read_bytes() == TEXT
    assert [span for _, span in web[0].asked] == ["", "", *["bytes=300000-"] * 3, "bytes=700000-"]


def test_a_token_that_is_refused_is_not_sent_again(web: tuple[Web, str], settings: Settings) -> None:
    web[0].faults += [401]
    with pytest.raises(corpora.CorpusMissing, match="TRAINYARD_TOKEN is unknown there, expired or revoked"):
        corpora.fetch(settings, NAME)
    assert len(web[0].asked) == 1


def test_a_web_that_stays_away_is_given_up(
    web: tuple[Web, str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "GIVE_UP_S", 1.0)
    web[0].faults += [1000] + [500] * 99
    with pytest.raises(corpora.CorpusMissing, match="could not be fetched: HTTP Error 500"):
        corpora.fetch(settings, NAME)
    assert {span for _, span in web[0].asked[1:]} == {"bytes=1000-"}
    assert list(settings.corpora.iterdir()) == []


def kept(settings: Settings, name: str, hours: float, size: int = 1000) -> Path:
    """A file in the cache that was used that long ago."""
    settings.corpora.mkdir(parents=True, exist_ok=True)
    path = settings.corpora / name
    path.write_bytes(bytes(size))
    used = time.time() - 3600 * hours
    os.utime(path, (used, used))
    return path


def test_the_corpora_used_longest_ago_go_when_there_are_too_many(settings: Settings) -> None:
    small = replace(settings, corpora_bytes=len(TEXT) + 2500)
    oldest, old, used = (kept(small, letter * 64, hours) for letter, hours in (("a", 5), ("b", 4), ("c", 6)))
    others = [kept(small, "tale.tokens", 99, 10_000), kept(small, ".part-x", 99), kept(small, "stdlib-3.11.bin", 99)]
    assert corpora.have(small, f"blob:{'c' * 64}"), "which counts as a use"
    corpora.fetch(small, NAME)
    assert not oldest.exists()
    assert all(path.exists() for path in (old, used, *others, small.corpora / SHA))


def test_a_corpus_in_use_stays_whatever_the_limit(settings: Settings) -> None:
    tiny = replace(settings, corpora_bytes=1)
    used, old = kept(tiny, "a" * 64, 0.5), kept(tiny, "b" * 64, 2)
    corpora.evict(tiny)
    assert used.exists() and not old.exists()


def test_a_text_that_was_deleted_goes_unless_ranks_read_it(settings: Settings) -> None:
    """Ranks may: the same text was uploaded again while the order was on its way."""
    worker = Worker(replace(settings, redis_url="redis://yard.invalid:6379"))
    gone, read = (kept(settings, letter * 64, 0.0) for letter in "ab")
    spec = RunSpec.model_validate({"train": {"corpus": f"blob:{read.name}"}})
    node = Node(worker="yard-a", devices=[0], first_rank=0, address="127.0.0.1")
    message = StartMessage(run=1, attempt=7, number=1, spec=spec.model_dump(mode="json"), nodes=[node])
    order = RunCommand(message, spec, node)
    worker.supervisor._live[7] = Attempt(Folder(settings.attempts / "7"), Meta(message=message, ranks=[0]), order)
    for sha256 in (gone.name, read.name, "c" * 64, "../corpora/" + read.name):
        worker.supervisor._control({"kind": "drop_text", "attempt": 0, "sha256": sha256})
    assert not gone.exists() and read.exists()
    del worker.supervisor._live[7]
    worker.supervisor._control({"kind": "drop_text", "attempt": 0, "sha256": read.name})
    assert not read.exists()


def test_heartbeats_name_every_cached_text_in_turn(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_texts, "MOST_TEXTS", 2)
    worker = Worker(replace(settings, redis_url="redis://yard.invalid:6379"))
    every = [kept(settings, letter * 64, 0.0).name for letter in "abc"]
    kept(settings, "tale.tokens", 0.0), kept(settings, ".part-x", 0.0)
    named = [worker.heartbeat.body()["texts"]]
    for _ in range(3):
        worker.host.texts.look()
        named.append(worker.heartbeat.body()["texts"])
    assert named == [[], every[:2], every[2:], every[:2]]
    (settings.corpora / every[0]).unlink()
    worker.host.texts.look()
    assert worker.heartbeat.body()["texts"] == every[1:]
