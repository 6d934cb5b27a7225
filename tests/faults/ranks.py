"""Runs that a fault is about to hit, and the processes of their ranks."""

from __future__ import annotations

from typing import Any

import httpx

from parallel_core import processes
from tests.yard_process import YardProcess, paced, wait_for

STARTED_S = 90.0
SAVED = 10


def stepping(yard: YardProcess, client: httpx.Client, spec: dict[str, Any], **fields: Any) -> int:
    """Submits a run and waits until it has done a few steps."""
    run = yard.submit(client, spec, **fields)

    def under_way() -> bool:
        found = yard.run_of(client, run)
        assert found["state"] not in {"failed", "lost", "cancelled"}, found
        return (found["step"] or 0) >= 3

    wait_for("some steps", under_way, STARTED_S)
    return run


def started(yard: YardProcess, client: httpx.Client, spec: dict[str, Any], **fields: Any) -> tuple[int, list[int]]:
    """`stepping`, and the pids of all ranks. To ask for them takes seconds, so the run has to last."""
    run = stepping(yard, client, spec, **fields)
    return run, wait_for("hello of every rank", lambda: all_pids_of(yard, run))


def saving(steps: int, **parallel: Any) -> dict[str, Any]:
    """`paced`, with a checkpoint every SAVED steps."""
    spec = paced(steps, **parallel)
    return {**spec, "train": {**spec["train"], "checkpoint_every": SAVED}}


def all_pids_of(yard: YardProcess, run: int) -> list[int]:
    """`pids_of`, or nothing until every rank has sent "hello". A rank that waits for another one says it late."""
    devices = yard.query(f"Attempt.objects.filter(run={run}).last().devices")
    pids = pids_of(yard, run)
    return pids if len(pids) == sum(len(host["devices"]) for host in devices) else []


def pids_of(yard: YardProcess, run: int) -> list[int]:
    """Process ids, by rank, of those ranks of the newest attempt that have sent "hello"."""
    attempt = f"Attempt.objects.filter(run={run}).last()"
    hellos = f'RankInfo.objects.filter(attempt={attempt}).order_by("rank").values_list("hello", flat=True)'
    return list(yard.query(f'[hello["pid"] for hello in {hellos} if hello]'))


def gone(pids: list[int]) -> bool:
    return not any(processes.alive(pid) for pid in pids)


def series(client: httpx.Client, run: int, name: str = "loss") -> list[int]:
    """Steps of all stored points of a run-level series."""
    answer = client.get(f"/api/v1/runs/{run}/series", params={"name": name})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"]["step"])
