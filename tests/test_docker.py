"""A real deployment on a Docker engine: `./run test -m docker tests/test_docker.py`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dashboard.settings import SILENT_SERVER
from tests.docker_engine import IMAGE, Compose, engine
from tests.yard_process import paced, tiny, wait_for

pytestmark = [
    pytest.mark.docker,
    pytest.mark.faults,
    pytest.mark.timeout(1800),  # the first build installs all dependencies
    pytest.mark.skipif(not engine(), reason="needs a Docker engine"),
]
LOOK = """
import json, os, pathlib
app = pathlib.Path("/app")
print(json.dumps({"uid": os.getuid(), "names": sorted(path.name for path in app.iterdir()),
                  "writable": [str(path) for path in app.rglob("*") if os.access(path, os.W_OK)]}))
"""


@pytest.fixture(scope="module")
def yard() -> Iterator[Compose]:
    subject = Compose(CPU_DEVICES="1", TRAINYARD_STARTER="0")
    try:
        yield subject.up()
    finally:
        subject.close()


@pytest.fixture
def client(yard: Compose) -> Iterator[httpx.Client]:
    with yard.client() as client:
        yield client


def saving(steps: int) -> dict[str, Any]:
    spec = paced(steps)
    return {**spec, "train": {**spec["train"], "checkpoint_every": 10}}


def wait_saved(yard: Compose, client: httpx.Client, run: int) -> None:
    wait_for("a checkpoint", lambda: yard.run_of(client, run)["checkpoints"])


def test_the_image_holds_no_secret_and_runs_unprivileged(yard: Compose) -> None:
    found = json.loads(yard.docker("run", "--rm", IMAGE, "python", "-c", LOOK))
    assert found["uid"] == 10001
    assert not found["writable"]
    assert not {".git", ".env", ".venv", ".trainyard", "fleet", "tests", "docs"} & set(found["names"])
    assert {"dashboard", "parallel_core", "workers", "templates", "manage.py"} <= set(found["names"])


def test_a_run_through_the_published_port(yard: Compose, client: httpx.Client) -> None:
    run = yard.submit(client, tiny(12))
    assert yard.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"


def test_a_killed_worker_comes_back_and_its_run_goes_on(yard: Compose, client: httpx.Client) -> None:
    run = yard.submit(client, saving(150), retries=1)
    wait_saved(yard, client, run)
    before = yard.inspect("worker")["RestartCount"]
    yard.kill_main("worker")
    wait_for("a restart by the engine", lambda: yard.inspect("worker")["RestartCount"] > before)
    ended = yard.wait_state(client, run, "succeeded", "failed", "lost")
    assert (ended["state"], ended["retries_left"]) == ("succeeded", 0)


def test_taken_down_and_brought_up_again_nothing_is_lost(yard: Compose, client: httpx.Client) -> None:
    run = yard.submit(client, saving(300))
    wait_saved(yard, client, run)
    yard.compose("down")
    yard.up()
    with yard.client() as again:
        assert yard.wait_state(again, run, "succeeded", "failed", "lost")["state"] == "succeeded"


def test_made_anew_with_redis_the_run_under_way_goes_on(yard: Compose, client: httpx.Client) -> None:
    """An upgrade or a changed setting of Redis recreates all containers: the worker is stopped while the broker is
    down, so it can report to nobody. The run continues all the same.
    """
    run = yard.submit(client, saving(300))
    wait_saved(yard, client, run)
    yard.compose("up", "-d", "--force-recreate")
    with yard.client() as again:
        assert yard.wait_state(again, run, "succeeded", "failed", "lost")["state"] == "succeeded"


def test_a_worker_that_was_off_the_network_goes_on_and_takes_runs_again(yard: Compose, client: httpx.Client) -> None:
    """Packets are lost meanwhile, and no connection is closed."""
    run = yard.submit(client, saving(300), retries=1)
    wait_saved(yard, client, run)
    with yard.off_the_network("worker"):
        wait_for("a silent worker", lambda: client.get("/api/v1/workers").json()["data"][0]["silent"])
    assert yard.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"
    run = yard.submit(client, tiny(12))
    assert yard.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"


def test_a_controller_that_was_off_the_network_works_again_soon(yard: Compose, client: httpx.Client) -> None:
    """The database must not keep the lock for the session of the address that the controller had before."""
    with yard.off_the_network("controller"):
        time.sleep(2 * SILENT_SERVER["tcp_user_timeout"] / 1000)  # both sides have given up the connection
    run = yard.submit(client, tiny(12))
    assert yard.wait_state(client, run, "succeeded", "failed", "lost", limit=180)["state"] == "succeeded"


def test_a_backup_is_restored_by_the_commands_of_the_guide(yard: Compose, client: httpx.Client) -> None:
    kept = yard.submit(client, tiny(12))
    assert yard.wait_state(client, kept, "succeeded", "failed", "lost")["state"] == "succeeded"
    before = client.get(f"/api/v1/runs/{kept}/series", params={"name": "loss"}).json()["data"]
    yard.by_the_guide("Backup")
    later = yard.submit(client, tiny(12))
    yard.by_the_guide("Restore")
    yard.up()
    with yard.client() as again:
        assert again.get(f"/api/v1/runs/{later}").status_code == 404
        assert again.get(f"/api/v1/runs/{kept}/series", params={"name": "loss"}).json()["data"] == before
        next_one = yard.submit(again, tiny(12))
        assert yard.wait_state(again, next_one, "succeeded", "failed", "lost")["state"] == "succeeded"


@pytest.mark.parametrize("service", ["postgres", "redis"])
def test_the_database_or_the_broker_is_killed_under_a_run(service: str, yard: Compose, client: httpx.Client) -> None:
    run = yard.submit(client, saving(200))
    wait_saved(yard, client, run)
    yard.compose("kill", "--signal", "KILL", service)
    yard.up()
    assert yard.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"


def test_what_the_services_log_holds_no_traceback_and_no_secret(yard: Compose, client: httpx.Client) -> None:
    said = yard.compose("logs", "--no-color")
    assert "Booting worker" in said
    assert "Traceback" not in said
    assert not [name for name, value in yard.secrets.items() if value in said]
