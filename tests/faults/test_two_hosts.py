"""A run over two workers of one yard: it trains, can be inspected like any other, and the loss of a host is handled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.faults.ranks import gone, started
from tests.yard_process import ROOT, YardProcess, calibrate, paced, tiny, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
LONG = 100_000
SECOND = "second"


class SecondHost:
    """A second worker of the yard, with its own device."""

    def __init__(self, yard: YardProcess) -> None:
        self._yard = yard
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Starts it if it is not running, and waits until both workers are online."""
        if self.process is None or self.process.poll() is not None:
            own = {"TRAINYARD_WORKER_NAME": SECOND, "TRAINYARD_CPU_DEVICES": "1", "TRAINYARD_ADDRESS": "127.0.0.1"}
            calibrate(self._yard.home, SECOND)
            with (self._yard.home / "second.log").open("ab") as log:
                command = [sys.executable, "-m", "workers"]
                self.process = subprocess.Popen(
                    command, cwd=ROOT, env={**self._yard.own_env(), **own}, stdout=log, stderr=subprocess.STDOUT
                )
        with self._yard.client() as client:
            wait_for("both workers", lambda: online(client) == 2)

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)


def online(client: httpx.Client) -> int:
    return sum(not worker["silent"] for worker in client.get("/api/v1/workers").json()["data"])


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YardProcess]:
    """A yard whose workers keep their checkpoints in one shared folder."""
    host = {"TRAINYARD_CPU_DEVICES": "1", "TRAINYARD_ADDRESS": "127.0.0.1"}
    shared = str(tmp_path_factory.mktemp("checkpoints"))
    with closing(YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CHECKPOINTS=shared, **host)) as subject:
        yield subject.calibrated().up()


@pytest.fixture(scope="module")
def running(yard: YardProcess) -> Iterator[SecondHost]:
    with closing(SecondHost(yard)) as host:
        yield host


@pytest.fixture
def second(running: SecondHost) -> SecondHost:
    running.up()
    return running


@pytest.fixture
def client(yard: YardProcess) -> Iterator[httpx.Client]:
    with yard.client() as client:
        yield client


def test_a_run_that_no_host_can_hold_alone_goes_over_both(
    yard: YardProcess, client: httpx.Client, second: SecondHost
) -> None:
    run = yard.submit(client, tiny(pp=2, micro_batches=2))
    found = yard.wait_state(client, run, "succeeded", "failed", "lost")
    assert found["state"] == "succeeded", found["detail"]
    assert yard.query(f"len(Attempt.objects.get(run={run}).devices)") == 2
    wait_for("all of it has arrived", lambda: yard.query(f"Attempt.objects.get(run={run}).settled"))
    ties = yard.query(
        f'list(SpanChunk.objects.filter(attempt__run={run}).order_by("rank").values_list("clock_within", flat=True))'
    )
    assert ties[0] is None and 0 < ties[-1] < 1_000_000_000
    page = client.get(f"/runs/{run}/")
    assert page.status_code == 200 and SECOND in page.text


@pytest.mark.full
def test_the_links_between_them_are_timed(yard: YardProcess, client: httpx.Client, second: SecondHost) -> None:
    names = [worker["name"] for worker in client.get("/api/v1/workers").json()["data"]]
    answer = client.post("/runs/links", data={"first": names[0], "second": names[1]})
    run = int(answer.url.path.split("/")[2])
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=180)
    assert found["state"] == "succeeded", found["detail"]
    wait_for("all of it has arrived", lambda: yard.query(f"Attempt.objects.get(run={run}).settled"))
    kinds = yard.query(f'[link["what"] for link in Run.objects.get(pk={run}).links.table["links"]]')
    # no other operation can be timed with one device on each host
    assert sorted(kinds) == ["all_gather", "all_reduce", "reduce_scatter", "send"]
    assert f"run {run}</a>" in client.get("/fleet/").text
    later = yard.submit(client, tiny(dp=2))
    assert yard.wait_state(client, later, "succeeded", "failed", "lost")["state"] == "succeeded"
    said = f"Run.objects.get(pk={later}).prediction"
    wait_for("it is settled", lambda: yard.query(f"str({said}.settled_at)") != "None")
    # complete, although the model has no profile yet
    assert yard.query(f"[{said}.left_out, len({said}.hosts)]") == ["", 2]


@pytest.mark.full
def test_text_is_generated_by_both_from_what_one_saved(
    yard: YardProcess, client: httpx.Client, second: SecondHost
) -> None:
    spec = tiny()
    run = yard.submit(client, {**spec, "train": {**spec["train"], "checkpoint_every": 12}})
    yard.wait_state(client, run, "succeeded")
    wanted = {"prompt": "", "ids": [1, 2, 3], "new": 6}
    texts = []
    for tp in (1, 2):
        made = client.post(f"/api/v1/runs/{run}/generate", json={**wanted, "tp": tp}).json()["data"]["id"]
        found = yard.wait_state(client, made, "succeeded", "failed", "lost")
        assert found["state"] == "succeeded", found["detail"]
        assert yard.query(f"len(Attempt.objects.get(run={made}).devices)") == tp
        told = yard.query(f"[rank.generated for rank in RankInfo.objects.filter(attempt__run={made}, rank=0)]")
        texts.append(told[0]["tokens"])
    assert texts[0] == texts[1] and len(texts[0][0]) == 6


def test_a_rank_killed_on_the_other_host_is_named(yard: YardProcess, client: httpx.Client, second: SecondHost) -> None:
    run, pids = started(yard, client, paced(LONG, dp=2))
    os.kill(pids[1], signal.SIGKILL)
    found = yard.wait_state(client, run, "failed", "lost", limit=45)
    assert (found["state"], found["cause"]) == ("failed", "killed_by_signal"), found["detail"]
    assert "Rank 1" in found["detail"] and "signal 9" in found["detail"]
    wait_for("all ranks gone", lambda: gone(pids))


def test_a_killed_host_is_told_as_lost_and_its_peers_end(
    yard: YardProcess, client: httpx.Client, second: SecondHost
) -> None:
    run, pids = started(yard, client, paced(LONG, pp=2, micro_batches=2))
    assert second.process is not None
    second.process.kill()
    found = yard.wait_state(client, run, "failed", "lost", limit=45)
    assert (found["state"], found["cause"]) == ("lost", "worker_lost"), found["detail"]
    assert SECOND in found["detail"]
    wait_for("all ranks gone", lambda: gone(pids))


@pytest.mark.full
def test_a_host_that_leaves_in_good_order_has_the_run_queued_again(
    yard: YardProcess, client: httpx.Client, second: SecondHost
) -> None:
    run, pids = started(yard, client, paced(LONG, dp=2))
    assert second.process is not None
    second.process.terminate()
    yard.wait_state(client, run, "queued", limit=45)
    wait_for("all ranks gone", lambda: gone(pids))
    second.process.wait(30)
    second.up()
    yard.wait_state(client, run, "running", limit=60)
    begins = yard.query(f"Attempt.objects.filter(run={run}).last().begins")
    assert begins["step"] >= 3, begins  # both hosts saved their state, and both resume from it
    client.post(f"/api/v1/runs/{run}/cancel")
    found = yard.wait_state(client, run, "cancelled", limit=45)
    assert "No process of it is left." in found["detail"]
