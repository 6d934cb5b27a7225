"""Measurements of a running yard, each with its goal. Nothing is asserted: the numbers are reported whatever they are.

Times are taken from outside, by an HTTP client that sends the requests of a browser to a yard started like `./run`
does.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import httpx
import numpy as np
import psutil

from tests.bench.pages import PAGES, SEED
from tests.yard_process import YardProcess, tiny, wait_for

STEPS = 60
REAL: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 128, "heads": 4, "seq": 128},
    "train": {"steps": STEPS, "global_batch": 16},
    "parallel": {"dp": 2},
}
"""A run with steps of some 100 ms on two ranks."""
LONG = 100_000
VISITS = 30
RUNS_SEEN = 1000


@dataclass(frozen=True)
class Number:
    """Measured seconds and their goal. `judged` says which statistic (median or 95th percentile) the goal applies to; a
    goal of None means none.
    """

    name: str
    goal: float | None
    seconds: list[float] = field(repr=False)
    judged: str = "p50"

    @property
    def text(self) -> str:
        p50, p95 = (float(np.percentile(self.seconds, q)) for q in (50, 95))
        met, goal = "", ""
        if self.goal is not None:
            met = "met" if {"p50": p50, "p95": p95}[self.judged] <= self.goal else "MISSED"
            goal = f"goal {_time(self.goal):>7}"
        head = f"{self.name:<54} {goal:<12}  {met:<6}"
        return f"{head} p50 {_time(p50):>7}  p95 {_time(p95):>7}  n={len(self.seconds)}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def measure(rounds: int, say: Callable[[Number], None]) -> list[dict[str, Any]]:
    """All numbers of a yard; each is also passed to `say` as soon as it is measured."""
    out: list[Number] = []

    def told(number: Number) -> None:
        out.append(number)
        say(number)

    yard = YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="2")
    try:
        told(Number("first start of a data folder to the first page", 10.0, [start(yard)]))
        for number in chain(of_runs(yard, rounds), of_pages(yard), of_starts(yard, rounds)):
            told(number)
    finally:
        yard.close()
    return [asdict(number) | {"text": number.text} for number in out]


def start(yard: YardProcess) -> float:
    """Seconds from the start of the command until the first page has been served."""
    begun = time.perf_counter()
    yard.up()
    httpx.get(f"{yard.url}/accounts/login/").raise_for_status()
    return time.perf_counter() - begun


def _has_steps(yard: YardProcess, client: httpx.Client, run: int) -> bool:
    return (yard.run_of(client, run)["step"] or 0) >= 3


def of_starts(yard: YardProcess, rounds: int) -> Iterator[Number]:
    """Repeatedly stops the yard with a run under way and three pages open, and starts it again."""
    stops, starts = [], []
    for _ in range(rounds):
        with signed_in(yard) as client:
            run = yard.submit(client, tiny(LONG, dp=2))
            wait_for("some steps", partial(_has_steps, yard, client, run))
            with listening(client, "runs"), listening(client, f"run:{run}"), listening(client, "fleet"):
                stops.append(_stop(yard))
        starts.append(start(yard))
        with yard.client() as client:
            client.post(f"/api/v1/runs/{run}/cancel").raise_for_status()
            yard.wait_state(client, run, "cancelled", "lost")
    yield Number("Ctrl-C (a run and 3 pages open) to no process left", 5.0, stops)
    yield Number("restart to the first page", 5.0, starts)


def _stop(yard: YardProcess) -> float:
    assert yard.process is not None
    family = [psutil.Process(yard.process.pid), *yard.family()]
    begun = time.perf_counter()
    yard.process.send_signal(signal.SIGINT)
    while any(_lives(process) for process in family):
        yard.process.poll()
        time.sleep(0.01)
    return time.perf_counter() - begun


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def signed_in(yard: YardProcess) -> Iterator[httpx.Client]:
    """A signed-in client of a yard whose worker is online and calibrated."""
    with yard.client() as client:
        wait_for("an online worker", lambda: any(not w["silent"] for w in client.get("/api/v1/workers").json()["data"]))
        yard.wait_state(client, yard.submit(client, tiny()), "succeeded")
        yield client


@contextmanager
def listening(client: httpx.Client, topics: str) -> Iterator[Iterator[str]]:
    """Lines of an event stream on its own connection, like the one a browser tab holds."""
    with (
        httpx.Client(base_url=client.base_url, cookies=client.cookies, timeout=60) as own,
        own.stream("GET", "/live/stream", params={"topics": topics}) as answer,
    ):
        lines = answer.iter_lines()
        assert any(line == "event: hello" for line in lines)
        yield lines


def of_runs(yard: YardProcess, rounds: int) -> Iterator[Number]:
    """Times from submitting to the first step, from a step to the page, and from Cancel to the end of the last
    process.
    """
    starts, hellos, seen, cancels, told = [], [], [], [], []
    with signed_in(yard) as client:
        for _ in range(rounds):
            begun, clock = time.time(), time.perf_counter()
            run = yard.submit(client, REAL)
            posted = time.perf_counter() - clock
            seen += screen(client, run)
            times = client.get(f"/api/v1/runs/{run}/series", params={"name": "loss"}).json()["data"]["time"]
            hello = f'[r.hello["t"] for r in RankInfo.objects.filter(attempt__run={run})]'
            starts.append(times[0] - begun)
            hellos.append(max(yard.query(hello)) - begun)
            told.append(posted)
            cancels.append(cancel(yard, client))
    yield Number("submit: the answer to the POST", 0.1, told)
    yield Number("submit to 'hello' of both ranks (model is built)", 2.0, hellos)
    yield Number("submit to the start of step 1 on 2 warm ranks", 2.0, starts)
    yield Number("a point on screen after its step", 1.0, seen, "p95")
    yield Number("cancel to no process left", 5.0, cancels)


def screen(client: httpx.Client, run: int) -> list[float]:
    """For every step of the run: seconds from its end until a listening page has received its points."""
    since, out = -1, []
    with listening(client, f"run:{run}") as lines:
        for line in lines:
            if not line.startswith("data: {"):
                continue
            what = set(json.loads(line[6:]).get("what", ()))  # `hello` and `beat` say none
            if what & {"points", "*"}:
                found = client.get(f"/runs/{run}/data/points.json", params={"since": since}).json()["series"]
                now = time.time()
                if "loss" in found:
                    since = found["loss"]["step"][-1]
                    out += [now - at for at in found["loss"]["time"]]
            if since >= STEPS - 1:
                return out
    return out


def cancel(yard: YardProcess, client: httpx.Client) -> float:
    run = yard.submit(client, tiny(LONG, dp=2))
    wait_for("some steps", lambda: (yard.run_of(client, run)["step"] or 0) >= 3)
    pids = yard.query(f'[r.hello["pid"] for r in RankInfo.objects.filter(attempt__run={run})]')
    ranks = [psutil.Process(pid) for pid in pids]
    begun = time.perf_counter()
    client.post(f"/api/v1/runs/{run}/cancel").raise_for_status()
    while any(_lives(rank) for rank in ranks):
        time.sleep(0.01)
    took = time.perf_counter() - begun
    yard.wait_state(client, run, "cancelled")
    return took


def of_pages(yard: YardProcess) -> Iterator[Number]:
    """Repeatedly loads each page of a server that holds RUNS_SEEN runs with their records."""
    done = yard.shell(SEED.format(count=RUNS_SEEN))
    assert done.returncode == 0, done.stderr
    ids = json.loads(done.stdout.splitlines()[-1])
    with yard.client() as client:
        for name, path in PAGES.items():
            seconds = []
            for _ in range(VISITS + 1):
                begun = time.perf_counter()
                client.get(path.format(**ids)).raise_for_status()
                seconds.append(time.perf_counter() - begun)
            yield Number(f"page with {RUNS_SEEN} runs: {name}", 0.1, seconds[1:], "p95")


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "load_1min": os.getloadavg()[0]}
