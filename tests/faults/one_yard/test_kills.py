"""SIGKILL for each kind of process of a running yard: the run ends in one true state with its cause, or continues where
it should.

After each kill, no process of the attempt is left, and no point is missing or duplicated.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.faults.ranks import SAVED, gone, pids_of, saving, series, started, stepping
from tests.yard_process import YardProcess, paced, tiny, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
LONG = 100_000
"""Steps of a run that is not meant to end by itself."""


def test_a_killed_rank_fails_the_run_and_names_rank_and_signal(yard: YardProcess, client: httpx.Client) -> None:
    run, pids = started(yard, client, paced(LONG, dp=2))
    os.kill(pids[1], signal.SIGKILL)
    found = yard.wait_state(client, run, "failed", "lost", limit=45)
    assert (found["state"], found["cause"]) == ("failed", "killed_by_signal")
    assert "Rank 1" in found["detail"] and "signal 9" in found["detail"]
    wait_for("all ranks gone", lambda: gone(pids))
    steps = series(client, run)
    assert steps == list(range(len(steps)))


@pytest.mark.parametrize(
    "killed",
    ["rank", pytest.param("parallel_core.launch", marks=pytest.mark.full)],
    ids=["rank", "fork server"],
)
def test_a_killed_rank_with_a_retry_left_goes_on_from_the_checkpoint(
    yard: YardProcess, client: httpx.Client, killed: str
) -> None:
    run, pids = started(yard, client, saving(120, dp=2), retries=1)
    wait_for("a checkpoint", lambda: client.get(f"/api/v1/runs/{run}").json()["data"]["checkpoints"])
    if killed == "rank":
        os.kill(pids[1], signal.SIGKILL)
    else:
        yard.part(killed).kill()
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=150)
    assert found["state"] == "succeeded", found
    assert gone(pids)
    begins = yard.query(f"Attempt.objects.filter(run={run}).last().begins")
    assert begins["step"] >= SAVED and begins["step"] % SAVED == 0
    assert series(client, run) == list(range(120))
    (text,) = yard.query(f'list(Event.objects.filter(run={run}, kind="requeued").values_list("text", flat=True))')
    assert "killed by signal 9 (SIGKILL)" in text and "this is its last retry" in text


@pytest.mark.full
def test_a_killed_fork_server_fails_the_run_and_the_next_one_works(yard: YardProcess, client: httpx.Client) -> None:
    run, pids = started(yard, client, paced(LONG, tp=2))
    yard.part("parallel_core.launch").kill()
    found = yard.wait_state(client, run, "failed", "lost", limit=45)
    assert found["cause"] in {"killed_by_signal", "worker_lost"}
    wait_for("all ranks gone", lambda: gone(pids))
    yard.wait_state(client, yard.submit(client, tiny()), "succeeded")


def test_a_killed_worker_is_told_as_lost_and_comes_back(yard: YardProcess, client: httpx.Client) -> None:
    run, pids = started(yard, client, paced(LONG, pp=2, micro_batches=2))
    yard.part("-m workers").kill()
    found = yard.wait_state(client, run, "failed", "lost", limit=45)
    assert found["cause"] == "worker_lost"
    wait_for("all ranks gone", lambda: gone(pids))
    yard.wait_state(client, yard.submit(client, tiny()), "succeeded")


def test_a_killed_worker_with_a_retry_left_goes_on_from_the_checkpoint(yard: YardProcess, client: httpx.Client) -> None:
    run, pids = started(yard, client, saving(120, dp=2), retries=1)
    wait_for("a checkpoint", lambda: client.get(f"/api/v1/runs/{run}").json()["data"]["checkpoints"])
    yard.part("-m workers").kill()
    wait_for("all ranks gone", lambda: gone(pids))
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=150)
    assert found["state"] == "succeeded", found
    begins = yard.query(f"Attempt.objects.filter(run={run}).last().begins")
    assert begins["step"] >= SAVED and begins["step"] % SAVED == 0
    assert series(client, run) == list(range(120))


@pytest.mark.parametrize("part", ["manage.py controller", "unixsocket"], ids=["controller", "broker"])
def test_a_killed_part_loses_and_doubles_nothing(yard: YardProcess, client: httpx.Client, part: str) -> None:
    run = stepping(yard, client, paced(120, dp=2))
    yard.part(part).kill()
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=150)
    assert found["state"] == "succeeded", found
    assert series(client, run) == list(range(120))


@pytest.mark.full
def test_a_controller_that_stands_still_is_told_and_loses_and_doubles_nothing(
    yard: YardProcess, client: httpx.Client
) -> None:
    """It keeps its lock, so no other one works meanwhile; what the run did then waits in the broker."""
    run = stepping(yard, client, paced(60, dp=2))
    controller = yard.part("manage.py controller")
    controller.suspend()
    try:
        wait_for("the page to say so", lambda: 'id="controller-away"' in client.get("/fleet/").text)
        assert yard.run_of(client, run)["state"] == "running"
    finally:
        controller.resume()
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=150)
    assert found["state"] == "succeeded", found
    assert series(client, run) == list(range(60))


@pytest.mark.full
def test_a_killed_web_process_takes_its_own_with_it_and_comes_back(yard: YardProcess, client: httpx.Client) -> None:
    run = stepping(yard, client, paced(60, dp=2))
    arbiter = yard.part("gunicorn")
    serving = [process.pid for process in arbiter.children()]
    arbiter.kill()
    wait_for("its worker processes gone", lambda: serving and gone(serving))
    yard.wait_state(client, run, "succeeded")
    assert series(client, run) == list(range(60))


def test_a_killed_analyst_takes_its_search_with_it_and_the_next_one_answers(
    yard: YardProcess, client: httpx.Client
) -> None:
    def page() -> str:
        return client.get("/planner/accuracy/bubbles/28.3B", headers={"HX-Request": "true"}).text

    searches = '__import__("dashboard.analyst.models", fromlist=["x"]).Search.objects.filter(kind="bubbles")'
    assert "data-search=" in page()
    wait_for("a search under way", lambda: yard.query(f"{searches}.filter(state='running').exists()"))
    analyst = yard.part("manage.py", "analyst")
    searching = wait_for("its process", lambda: [process.pid for process in analyst.children()])
    # the second try gets a question that takes a second; the first already has its own
    yard.query(f'{searches}.update(question={{"model": "1.5B"}})')
    analyst.kill()
    wait_for("its process gone", lambda: gone(searching))
    wait_for("an answer", lambda: "data-search=" not in page())
    assert yard.query(f"list({searches}.values_list('state', 'tries'))") == [["succeeded", 2]]


TRACES = '__import__("dashboard.traces.models", fromlist=["x"]).Trace.objects'


def profiled(operations: int) -> bytes:
    """A torch.profiler trace of one step of so many operations."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 1, "tid": 1, "ts": 0, "dur": 1e6}
    one = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1}
    events = [step, *({**one, "ts": 2 * i} for i in range(operations))]
    return json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0}}).encode()


@pytest.mark.full
def test_a_trace_whose_analyst_is_killed_is_read_by_the_next_one(yard: YardProcess, client: httpx.Client) -> None:
    analyst = yard.part("manage.py", "analyst")
    sent = client.post("/traces/new/", data={"name": "long"}, files={"files": ("rank0.json", profiled(400_000))})
    pk = int(sent.url.path.strip("/").split("/")[-1])
    wait_for("it being read", lambda: yard.query(f"list({TRACES}.filter(pk={pk}).values_list('state', 'read'))"))
    reading = wait_for("its process", lambda: [process.pid for process in analyst.children()])
    analyst.kill()
    wait_for("its process gone", lambda: gone(reading))
    found = f"list({TRACES}.filter(pk={pk}).values_list('state', 'tries'))"
    wait_for("the trace", lambda: yard.query(found)[0][0] == "succeeded")
    assert yard.query(found) == [["succeeded", 2]]
    assert yard.query(f"{TRACES}.get(pk={pk}).files.count()") == 0
    assert "1 rank, 1 step" in client.get(f"/traces/{pk}/").text


@pytest.mark.full
def test_an_upload_whose_web_process_is_killed_leaves_nothing_and_can_be_sent_again(
    yard: YardProcess, client: httpx.Client
) -> None:
    data = profiled(20_000)
    serving = yard.part("gunicorn").children()
    before = yard.query(f"{TRACES}.count()")

    def halves() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n' + data[: len(data) // 2]
        for process in serving:
            process.kill()
        yield data[len(data) // 2 :] + b"\r\n--b--\r\n"

    with pytest.raises(httpx.TransportError):
        client.post("/traces/new/", content=halves(), headers={"Content-Type": "multipart/form-data; boundary=b"})

    def again() -> bool:
        with suppress(httpx.TransportError):
            return client.post("/traces/new/", files={"files": ("a.json", data)}).status_code == 200
        return False

    wait_for("the web again", again)
    assert yard.query(f"{TRACES}.count()") == before + 1


def test_what_a_failed_test_leaves_under_way_holds_no_later_one(yard: YardProcess, client: httpx.Client) -> None:
    runs = [yard.submit(client, paced(LONG, dp=2)) for _ in range(2)]
    yard.restore()
    assert [yard.run_of(client, run)["state"] for run in runs] == ["cancelled"] * 2


def test_cancel_ends_every_process_and_says_so(yard: YardProcess, client: httpx.Client) -> None:
    run, pids = started(yard, client, paced(LONG, dp=2))
    assert client.post(f"/api/v1/runs/{run}/cancel").status_code in {200, 202}
    found = yard.wait_state(client, run, "cancelled", limit=45)
    assert found["cause"] == "cancelled"
    assert gone(pids)


FIT: dict[str, Any] = {
    "kind": "fit",
    "name": "Fits",
    "strategies": ["single", "1f1b"],
    "recompute": "none",
    "precisions": "fp32",
    "micro_batches": "2",
    "devices": "2",
    "cap": "3",
    "model__kind": "gpt",
    "model__hidden": "32",
    "model__heads": "2",
    "model__seq": "32",
    "model__vocab": "256",
    "model__positions": "learned",
    "model__activation": "gelu",
    "model__norm": "layernorm",
    "model__attention": "fused",
    "model__rope_base": "10000",
    "model__dropout": "0",
    "model__bias": "on",
    "train__global_batch": "8",
    "train__lr": "0.001",
    "train__seed": "7",
    "train__device": "cpu",
    "train__corpus": "stdlib",
}
"""Form of a small fit study: the largest number of layers that two strategies fit under a memory cap."""


@pytest.mark.full
def test_a_search_for_the_largest_model_goes_on_where_it_was(yard: YardProcess, client: httpx.Client) -> None:
    """A fit study keeps no state but its ended runs, so killing controller and worker must neither repeat nor lose a
    probe.
    """
    answer = client.post("/studies/new/", data=FIT)
    assert answer.status_code == 200 and "Every search" in answer.text, answer.text
    study = int(answer.url.path.strip("/").split("/")[-1])
    runs = f"Run.objects.filter(study={study})"
    wait_for("a first answer", lambda: yard.query(f"{runs}.filter(state__in=['succeeded', 'failed']).count()"))
    yard.part("manage.py controller").kill()
    yard.part("-m workers").kill()
    wait_for("both answers", lambda: "still" not in client.get(f"/studies/{study}/").text, limit=150)
    ends = yard.query(f"list({runs}.order_by('pk').values_list('label', 'spec__model__layers', 'state', 'cause'))")
    assert {(state, cause) for _, _, state, cause in ends} == {("succeeded", ""), ("failed", "out_of_memory")}
    assert len({(label, layers) for label, layers, *_ in ends}) == len(ends)
    for name in ("Single", "PP-1F1B"):
        fits = max(layers for label, layers, state, _ in ends if label == name and state == "succeeded")
        assert [name, fits + 1, "failed", "out_of_memory"] in ends


@pytest.mark.full
def test_a_message_delivered_twice_trains_once(yard: YardProcess, client: httpx.Client) -> None:
    """The start message of a live attempt, sent again through the real broker, changes nothing."""
    run, pids = started(yard, client, paced(120, dp=2))
    code = (
        "import django; django.setup()\n"
        "from dashboard.runs.models import Attempt\n"
        "from dashboard.control import dispatch\n"
        f"dispatch.send_start(Attempt.objects.get(run={run}))\n"
    )
    again = yard.shell(code)
    assert again.returncode == 0, again.stderr
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=150)
    assert found["state"] == "succeeded", found
    assert pids_of(yard, run) == pids
    assert series(client, run) == list(range(120))
