"""Messages that are started and waited for later: only the wait counts as communication, also in a real trace of
gloo.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from parallel_core.analysis import waits
from parallel_core.analysis.breakdown import Account, accounts
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.traces.__main__ import read_all
from tests.parallel_core import ranks

PAUSE_S = 0.05
SPEC: dict[str, Any] = {"model": {"layers": 2}, "parallel": {"pp": 2, "schedule": "gpipe", "micro_batches": 2}}
LAYOUT = Layout.of(RunSpec.model_validate(SPEC))


def rows(*given: tuple[Kind, int, int]) -> np.ndarray:
    """A step of 100 ns, and a span of micro-batch 0 for each (kind, start, end)."""
    out = np.zeros(1 + len(given), SPAN)
    out[0] = (Kind.STEP, 3, 0, -1, 0, 0, 0, 100, 0)
    for i, (kind, start, end) in enumerate(given, 1):
        out[i] = (kind, 0, 0, 0, 0, 0, start, end, 0)
    return out


def account(*given: tuple[Kind, int, int]) -> Account:
    return accounts({0: rows(*given)}, LAYOUT)[0]


def test_a_send_that_work_goes_on_beside_is_waited_for_behind_it() -> None:
    found = account((Kind.F, 0, 10), (Kind.SEND_ACT, 10, 60), (Kind.F, 20, 40))
    assert (found.parts.exposed_p2p, found.parts.compute, found.parts.other) == (20, 30, 10 + 40)
    assert found.overlapped == 20


def test_a_message_of_an_imported_replica_is_that_of_its_own_stages() -> None:
    """Replicas of an imported job number their micro-batches alike: here two of two stages, one behind the other."""
    made = {}
    for rank, late in ((0, 0), (1, 0), (2, 500), (3, 500)):
        made[rank] = rows((Kind.RECV_ACT, 0, 42) if rank % 2 else (Kind.SEND_ACT, 40, 42))
        made[rank]["stage"] = rank % 2
        made[rank]["start"] += late
        made[rank]["end"] += late
    layout = Layout.unknown(4)
    sent = waits.sends(made, layout)
    found = {rank: waits.received(rank, made[rank], layout, sent) for rank in (1, 3)}
    assert {rank: (causes.at.tolist(), causes.ranks.tolist()) for rank, causes in found.items()} == {
        1: ([40], [0]),
        3: ([540], [2]),
    }


def test_a_send_that_nothing_goes_on_beside_is_waited_for_from_its_beginning() -> None:
    found = account((Kind.F, 0, 10), (Kind.SEND_ACT, 10, 60), (Kind.F, 60, 70))
    assert (found.parts.exposed_p2p, found.overlapped) == (50, 0)


def test_what_reaches_over_the_end_of_a_message_hides_it_and_its_pauses_are_other() -> None:
    found = account((Kind.SEND_ACT, 0, 60), (Kind.F, 20, 30), (Kind.F, 50, 70))
    assert (found.parts.exposed_p2p, found.parts.other, found.overlapped) == (0, 20 + 20 + 30, 20)


def test_a_receive_posted_ahead_is_waited_for_behind_what_was_begun_meanwhile() -> None:
    late = {0: rows((Kind.RECV_GRAD, 0, 60), (Kind.F, 20, 30)), 1: rows((Kind.SEND_GRAD, 45, 60))}
    late[1]["stage"][1] = 1
    found = accounts(late, LAYOUT)[0].parts
    assert (found.bubble, found.exposed_p2p, found.compute, found.other) == (15, 15, 10, 20 + 40)
    assert waits.waited(late, LAYOUT)[0].ns.tolist() == [0, 15, 0]


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    connect(meeting, rank, LAYOUT, "gloo")
    try:
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("ProfilerStep#1"):
            (_give if rank == 0 else _take)(torch.ones(1 << 20), folder / "computed")
        profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    finally:
        disconnect()


def _give(message: torch.Tensor, computed: Path) -> None:
    """Starts a send, pauses, computes, and waits only then; makes the file before it waits."""
    work = dist.isend(message, 1)
    time.sleep(PAUSE_S)
    _multiply()
    computed.touch()
    assert work is not None
    work.wait()


def _take(message: torch.Tensor, computed: Path) -> None:
    """Receives when the sender has been waiting for a while."""
    while not computed.exists():
        time.sleep(PAUSE_S / 10)
    time.sleep(PAUSE_S)
    dist.recv(message, 0)


def _multiply() -> None:
    x = torch.ones(512, 512)
    for _ in range(8):
        x = x @ x / 512


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[int, np.ndarray]:
    """Rank -> the spans of the recorded step."""
    folder = tmp_path_factory.mktemp("gloo")
    ranks.run(RunSpec.model_validate(SPEC), _work, folder)
    job = read_all([(f"rank{rank}.json", folder / f"rank{rank}.json") for rank in range(2)])
    return {rank: trace.steps[1] for rank, trace in job.ranks.items()}


def test_a_pause_under_a_real_send_of_gloo_is_no_communication(real: dict[int, np.ndarray]) -> None:
    own = real[0]
    (send,) = waits.of_kinds(own, Kind.SEND_ACT)
    work = waits.of_kinds(own, Kind.F)
    beside = work[(work["start"] > send["start"]) & (work["start"] < send["end"])]
    begun, done = int(beside["start"].min()), int(beside["end"].max())
    assert begun - send["start"] > PAUSE_S * 0.9e9, "the pause is inside the span of the send"
    found = accounts(real, LAYOUT)[0]
    assert found.parts.exposed_p2p == send["end"] - done, "only the wait after the work"
    assert found.parts.other >= begun - send["start"]
    assert found.overlapped == found.parts.compute - _outside(work, int(send["start"]), int(send["end"]))
    step = own[own["kind"] == Kind.STEP][0]
    assert found.parts.total == step["end"] - step["start"]


def _outside(work: np.ndarray, start: int, end: int) -> int:
    """Nanoseconds of work outside of [start, end)."""
    inside = np.minimum(work["end"], end) - np.maximum(work["start"], start)
    return int((work["end"] - work["start"] - np.maximum(inside, 0)).sum())
