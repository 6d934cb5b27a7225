"""A network between worker and broker that drops packets without closing connections: a link that was down for a
while, a firewall that forgot them, a container that was taken off its network and put back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.control.sweeps import MOST_RESENDS, RESEND_S
from tests.workers.harness import Bench, tiny

pytestmark = [pytest.mark.full, pytest.mark.faults]


class Wire:
    """A TCP port before a broker that listens on a Unix socket."""

    def __init__(self, broker: Path) -> None:
        self._broker = broker
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.Event] = set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, inner = await asyncio.open_unix_connection(str(self._broker))
        silent = asyncio.Event()
        self._open.add(silent)
        await asyncio.gather(_pump(reader, inner, silent), _pump(answers, writer, silent))

    def go_silent(self) -> int:
        """Carries nothing any more over the connections that are open, and closes none; later ones work. Returns how
        many there were."""

        async def set_all() -> int:
            for silent in self._open:
                silent.set()
            return len(self._open)

        return asyncio.run_coroutine_threadsafe(set_all(), self._loop).result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, silent: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            if silent.is_set():
                continue
            sink.write(data)
            await sink.drain()
    if not silent.is_set():
        sink.close()


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[tuple[Bench, Wire]]:
    bench = Bench(tmp_path)
    wire = Wire(Path(bench.url.removeprefix("unix://").split("?")[0]))
    bench.start_worker(REDIS_URL=f"redis://127.0.0.1:{wire.port}/0")
    yield bench, wire
    bench.close()
    wire.close()


def test_a_worker_hears_of_runs_again_when_its_connections_have_died_unseen(wired: tuple[Bench, Wire]) -> None:
    bench, wire = wired
    assert bench.wait_end(bench.send(tiny()))["outcome"] == "succeeded"
    assert wire.go_silent() >= 3
    attempt = bench.send(tiny())
    for _ in range(MOST_RESENDS):  # what the broker hands to a dead connection is lost, and sent again
        with contextlib.suppress(AssertionError):
            bench.wait("word of it", lambda: bench.states(attempt, "ended"), RESEND_S)
            break
        bench.send(tiny(), attempt)
    assert bench.wait_end(attempt)["outcome"] == "succeeded", bench.log()
