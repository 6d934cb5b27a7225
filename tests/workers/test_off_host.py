"""A worker on another host, set up as docs/deploy.md describes: over TLS, as a Redis user that can access only its own
keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from tests.workers.harness import NAME, ROOT, Bench, tiny
from workers.contract import EVENTS, control_stream, queue_of
from workers.preflight import barred_by, refused_token
from workers.settings import Settings

GUIDE = (ROOT / "docs" / "deploy.md").read_text()
PASSWORD = "of-this-worker"
NOBODY = "http://127.0.0.1:9"
"""A web address where nothing listens."""


class TlsDoor:
    """Terminates TLS in front of a broker that listens on a unix socket, as `--tls-port` does in the container."""

    def __init__(self, folder: Path, broker: Path) -> None:
        self.certificate, self._broker = folder / "server.crt", broker
        command = re.search(r"^openssl req .*$", GUIDE, re.MULTILINE)
        assert command, "the guide contains no command for the certificate"
        words = command[0].replace("yard.example.org", "localhost").replace("fleet/", f"{folder}/").split()
        subprocess.run(words, check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, folder / "server.key")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)

    async def _open(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, inner = await asyncio.open_unix_connection(str(self._broker))
        await asyncio.gather(_pump(reader, inner), _pump(answers, writer))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


def allow(bench: Bench) -> None:
    """Creates the Redis user that the guide puts in users.conf, for this bench's worker."""
    line = re.search(r"^user gpu1 .*$", GUIDE, re.MULTILINE)
    assert line, "the guide contains no line for the user"
    words = line[0].replace("gpu1", NAME).replace(">PASSWORD", f">{PASSWORD}").split()
    bench.redis.execute_command("ACL", "SETUSER", *words[1:])


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, str]]:
    """A worker that was started with the guide's form of the broker address, and that address."""
    home = tmp_path_factory.mktemp("w")
    bench = Bench(home)
    bench.folder.mkdir(parents=True)
    (bench.folder / "calibration.json").write_text('{"device": "cpu", "step_time": 0.1}')
    door = TlsDoor(home, Path(bench.url.removeprefix("unix://").split("?")[0]))
    allow(bench)
    query = f"ssl_cert_reqs=required&ssl_ca_certs={door.certificate}"
    url = f"rediss://{NAME}:{PASSWORD}@localhost:{door.port}/0?{query}"
    bench.start_worker(REDIS_URL=url, TRAINYARD_ADDRESS="10.9.8.7", TRAINYARD_URL=NOBODY)
    yield bench, url
    bench.close()
    door.close()


def test_it_takes_a_run_and_reports_its_end(door: tuple[Bench, str]) -> None:
    bench, _ = door
    end = bench.wait_end(bench.send(tiny()))
    assert end["outcome"] == "succeeded", f"{end}\n{bench.log()}"
    heartbeat = next(entry.body for entry in bench.heard if entry.kind == "heartbeat")
    assert heartbeat["host"] == "10.9.8.7", "the address where the other hosts of a run find it"


def test_its_heartbeat_says_that_the_web_gives_it_no_texts(door: tuple[Bench, str]) -> None:
    bench, _ = door

    def said() -> str:
        return next((e.body["refused"] for e in reversed(bench.heard) if e.kind == "heartbeat"), "")

    bench.wait("a heartbeat that says so", said)
    assert said().startswith(f"TRAINYARD_URL={NOBODY} does not answer as a yard does")


def test_its_user_reaches_no_other_key_and_no_administration(door: tuple[Bench, str]) -> None:
    _, url = door
    client = redis.Redis.from_url(url)
    assert client.xlen(EVENTS) >= 0 and client.xlen(control_stream(NAME)) >= 0
    for refused in (
        lambda: client.lpush(queue_of("another"), "x"),
        lambda: client.xlen(control_stream("another")),
        lambda: client.set("anything", 1),
        lambda: client.flushall(),
        lambda: client.config_get("*"),
        lambda: client.acl_list(),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            refused()


def test_its_user_can_add_to_the_events_of_all_workers_but_not_read_answer_or_delete_them(
    door: tuple[Bench, str],
) -> None:
    bench, url = door
    client = redis.Redis.from_url(url)
    with contextlib.suppress(redis.ResponseError):  # it is there, from the first time
        bench.redis.xgroup_create(EVENTS, "of-a-controller", mkstream=True)
    entry = bench.redis.xadd(EVENTS, {"worker": "another", "boot": "b", "kind": "k", "body": "{}"})
    for refused in (
        lambda: client.xread({EVENTS: "0"}),
        lambda: client.xrange(EVENTS),
        lambda: client.xreadgroup("of-a-controller", "c", {EVENTS: ">"}),
        lambda: client.xack(EVENTS, "of-a-controller", entry),
        lambda: client.xdel(EVENTS, entry),
        lambda: client.xtrim(EVENTS, maxlen=0),
        lambda: client.delete(EVENTS),
        lambda: client.eval("return redis.call('del', KEYS[1])", 1, EVENTS),
    ):
        with pytest.raises(redis.exceptions.RedisError, match=r"(?i)no permission|NOPERM|ACL"):
            refused()
    assert bench.redis.xrange(EVENTS, entry, entry)


def test_what_the_guide_says_that_a_stolen_password_still_allows_is_so(door: tuple[Bench, str]) -> None:
    """Redis cannot forbid it. If this fails, the guide says too much."""
    bench, url = door
    entry = bench.redis.xadd(EVENTS, {"worker": "another", "boot": "b", "kind": "k", "body": "{}"})
    client = redis.Redis.from_url(url)
    client.xadd(EVENTS, {"worker": "another", "boot": "b", "kind": "k", "body": "{}"}, maxlen=1, approximate=False)
    assert not bench.redis.xrange(EVENTS, entry, entry)
    bench.redis.hset("unacked", "of-another", "its order")
    assert client.hget("unacked", "of-another") == b"its order" and client.hdel("unacked", "of-another") == 1


def test_a_certificate_that_is_not_there_is_named(door: tuple[Bench, str], tmp_path: Path) -> None:
    bench, url = door
    missing = tmp_path / "server.crt"
    settings = Settings(NAME, f"{url.split('&ssl_ca_certs')[0]}&ssl_ca_certs={missing}", bench.folder, bench.home)
    assert (
        barred_by(settings)
        == f"The file {missing} (ssl_ca_certs in REDIS_URL) cannot be read: No such file or directory."
    )


def test_a_certificate_that_was_not_handed_out_is_not_trusted(door: tuple[Bench, str]) -> None:
    _, url = door
    with pytest.raises(redis.exceptions.ConnectionError, match="certificate verify failed"):
        redis.Redis.from_url(url.split("&ssl_ca_certs")[0]).ping()
    bench, _ = door
    settings = Settings(NAME, url.split("&ssl_ca_certs")[0], bench.folder, bench.home)
    assert barred_by(settings).startswith("The certificate of Redis at localhost:")
    assert "ssl_ca_certs in REDIS_URL" in barred_by(settings)


@pytest.mark.full
def test_a_web_whose_certificate_is_of_an_own_authority(
    door: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, url = door
    web = f"https://localhost:{urlsplit(url).port}"
    settings = Settings(NAME, url, bench.folder, bench.home, url=web)
    said = refused_token(settings)
    assert said.startswith(f"TRAINYARD_URL={web}: its certificate is not trusted (self-signed certificate).")
    assert "SSL_CERT_FILE" in said
    monkeypatch.setenv("SSL_CERT_FILE", parse_qs(urlsplit(url).query)["ssl_ca_certs"][0])
    assert "does not answer as a yard does" in refused_token(settings), "it is trusted now, and speaks no HTTP"
