"""The reported cause of an end is the true one: the rank that failed first by itself; out of memory only with
evidence.
"""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from parallel_core.exits import Exit, culprit
from parallel_core.launch import EXIT_FAULT, EXIT_FULL, EXIT_MEMORY, EXIT_PEER, EXIT_STOPPED
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from workers import ending
from workers.attempt import Attempt
from workers.contract import Node, StartMessage
from workers.folder import Folder, Meta, Stop
from workers.no_progress import report
from workers.recovery import end_of
from workers.run_commands import RunCommand

KILL, TERM = -signal.SIGKILL, -signal.SIGTERM


@pytest.mark.parametrize(
    ("exits", "rank"),
    [
        ([(0, 0), (1, 0)], None),
        ([(1, EXIT_FAULT), (0, TERM)], 1),
        ([(0, EXIT_PEER), (1, KILL)], 1),  # the survivor was reaped first
        ([(0, EXIT_PEER), (1, TERM)], 0),
        ([(1, KILL), (0, EXIT_PEER)], 1),
        ([(0, 0), (1, TERM)], 1),  # somebody sent it a SIGTERM
    ],
)
def test_the_culprit(exits: list[tuple[int, int]], rank: int | None) -> None:
    found = culprit([Exit(*one, at=0.01 * i) for i, one in enumerate(exits)])
    assert (found.rank if found else None) == rank


def test_a_kill_after_the_grace_is_our_own() -> None:
    found = culprit([Exit(0, EXIT_PEER, 0.0), Exit(1, KILL, 1.0)])
    assert found and found.rank == 0


def fault(folder: Path, rank: int, cause: str, message: str = "no such thing\nmore") -> None:
    page = Progress(folder, rank)
    page.at(12, "1F3")
    sink = FileSink(folder, rank)
    sink.emit("points", blob=b"TY" * 500)
    sink.emit("fault", type="ValueError", message=message, traceback="Traceback: deep", cause=cause)


def test_an_exception_carries_the_ranks_own_traceback(tmp_path: Path) -> None:
    fault(tmp_path, 1, "user_code")
    told = ending.of_exits(tmp_path, [0, 1], [Exit(1, EXIT_FAULT, 0.0), Exit(0, TERM, 0.1)], oom_kills=0)
    assert (told.outcome, told.cause, told.rank, told.traceback) == ("failed", "user_code", 1, "Traceback: deep")
    assert told.detail == "Rank 1 failed at step 12 in forward 3 of stage 1: ValueError: no such thing"
    assert told.exits == {"1": EXIT_FAULT, "0": TERM}


def test_a_loss_that_stayed_nan_is_the_cause_without_the_name_of_an_exception(tmp_path: Path) -> None:
    fault(tmp_path, 1, "not_finite", "The loss is not finite since step 12.")
    told = ending.of_exits(tmp_path, [0, 1], [Exit(1, EXIT_FAULT, 0.0), Exit(0, EXIT_FAULT, 0.1)], oom_kills=0)
    assert (told.outcome, told.cause, told.detail) == ("failed", "not_finite", "The loss is not finite since step 12.")
    assert not told.traceback


def test_ranks_that_left_at_their_time_limit_have_succeeded_early(tmp_path: Path) -> None:
    for rank in (0, 1):
        FileSink(tmp_path, rank).emit("early", done=3, steps=9, minutes=1.0, saved=True)
        left(tmp_path, rank, 0)
    told = ending.of_exits(tmp_path, [0, 1], [Exit(rank, 0, 0.0) for rank in (0, 1)], oom_kills=0)
    assert (told.outcome, told.cause) == ("succeeded", "time_limit")
    assert told.detail == "Ended after 3 of 9 steps: its limit of 1 minute (train.max_minutes)."
    assert ending.of_files(tmp_path, [0, 1]) == told


def test_a_full_disk_is_told_where_no_record_of_it_could_be_written(tmp_path: Path) -> None:
    told = ending.of_exits(tmp_path, [0], [Exit(0, EXIT_FULL, 0.0)], oom_kills=0)
    assert told.detail.startswith("Rank 0 ended with exit code 5 (No space left on device")


def left(folder: Path, rank: int, code: int) -> None:
    FileSink(folder, rank).emit("exit", code=code)


def test_ends_that_nobody_saw_are_read_from_the_files(tmp_path: Path) -> None:
    left(tmp_path, 0, 0)
    assert ending.of_files(tmp_path, [0, 1]) is None  # rank 1 left no exit code
    left(tmp_path, 1, 0)
    told = ending.of_files(tmp_path, [0, 1])
    assert told and (told.outcome, told.exits) == ("succeeded", {"0": 0, "1": 0})
    assert ending.of_files(tmp_path, []) is None  # no rank was ever started
    assert ending.of_server_loss(tmp_path, [0, 1], KILL).outcome == "succeeded"


def test_how_an_attempt_was_being_stopped_outlives_the_worker(tmp_path: Path) -> None:
    how = ending.Ending("failed", "no_progress", "No rank moved for 60 s.", 1, exits={"0": TERM}, traceback="the grid")
    folder = Folder.claim(tmp_path, 4)
    assert folder
    folder.save(Meta(ranks=[0, 1], stop="no_progress", stopped_as=asdict(how)))
    left(folder.path, 0, EXIT_PEER)
    assert end_of(folder, folder.load()) == how
    folder.save(Meta(ranks=[0, 1]))
    assert end_of(folder, folder.load()) == ending.WORKER_LOST


def test_ranks_that_ended_well_in_spite_of_a_stop_have_succeeded(tmp_path: Path) -> None:
    """The worker was stopped in the last step of the run. Of a cancel that stays what was asked for."""
    folder = Folder.claim(tmp_path, 4)
    assert folder
    stops: list[tuple[Stop, ending.Ending]] = [("interrupted", ending.INTERRUPTED), ("cancelled", ending.CANCELLED)]
    for stop, how in stops:
        meta = Meta(ranks=[0], stop=stop, stopped_as=asdict(how))
        attempt = Attempt(folder, meta, one_rank(), exits=[Exit(0, 0, 0.0)], ended_by=how)
        expected = "succeeded" if stop == "interrupted" else "cancelled"
        assert (attempt.how_it_ended().outcome, attempt.how_it_ended().exits) == (expected, {"0": 0})
        attempt.exits = [Exit(0, EXIT_STOPPED, 0.0)]
        assert attempt.how_it_ended().outcome == how.outcome
        folder.save(meta)
        (folder.path / "events-0.bin").unlink(missing_ok=True)
        assert end_of(folder, folder.load()).outcome == how.outcome
        left(folder.path, 0, 0)
        assert end_of(folder, folder.load()).outcome == expected


def one_rank() -> RunCommand:
    node = Node(worker="a", devices=[0], first_rank=0, address="127.0.0.1")
    spec = RunSpec()
    message = StartMessage(run=1, attempt=4, number=1, spec=spec.model_dump(mode="json"), nodes=[node])
    return RunCommand(message, spec, node)


def test_a_rank_that_failed_before_all_was_cut_off_is_the_cause(tmp_path: Path) -> None:
    left(tmp_path, 0, EXIT_PEER)
    assert ending.of_files(tmp_path, [0, 1, 2]) is None  # the lost peer may be the rank that left no exit code
    fault(tmp_path, 1, "out_of_memory")
    left(tmp_path, 1, EXIT_MEMORY)
    told = ending.of_files(tmp_path, [0, 1, 2])
    assert told and (told.cause, told.rank, told.traceback) == ("out_of_memory", 1, "Traceback: deep")


@pytest.mark.parametrize(
    ("last", "said"),
    [("Duplicate GPU detected : rank 0\n", "Duplicate GPU detected : rank 0"), ("", "NCCL error in: x.cpp:268")],
)
def test_a_fault_of_nccl_says_what_did_not_work(last: str, said: str, tmp_path: Path) -> None:
    message = f"NCCL error in: x.cpp:268\nncclInvalidUsage: This usually reflects invalid usage.\nLast error:\n{last}"
    fault(tmp_path, 0, "user_code", message)
    told = ending.of_exits(tmp_path, [0], [Exit(0, EXIT_FAULT, 0.0)], oom_kills=0)
    assert f": ValueError: {said}" in told.detail and "\n" not in told.detail


def test_a_fault_frame_is_evidence_of_memory(tmp_path: Path) -> None:
    fault(tmp_path, 0, "out_of_memory")
    told = ending.of_exits(tmp_path, [0], [Exit(0, EXIT_MEMORY, 0.0)], oom_kills=0)
    assert told.cause == "out_of_memory"
    assert told.detail.startswith("Rank 0 ran out of memory at step 12 in forward 3 of stage 1")


@pytest.mark.parametrize(("kills", "cause"), [(0, "killed_by_signal"), (1, "out_of_memory")])
def test_a_kill_is_memory_only_with_the_kernels_word(tmp_path: Path, kills: int, cause: str) -> None:
    assert ending.of_exits(tmp_path, [0], [Exit(0, KILL, 0.0)], oom_kills=kills).cause == cause


def test_ranks_whose_end_nobody_saw_did_not_succeed(tmp_path: Path) -> None:
    assert ending.of_exits(tmp_path, [0, 1], [Exit(0, 0, 0.0)], oom_kills=0).outcome == "failed"


def test_a_cancel_says_whether_anything_is_left() -> None:
    assert ending.CANCELLED.body(1, none_left=True)["detail"] == "Cancelled. No process of it is left."
    assert ending.CANCELLED.body(1, none_left=False)["detail"] == "Cancelled. Some of its processes did not end."


def test_a_standstill_is_marked_in_the_schedule_of_unequal_replicas(tmp_path: Path) -> None:
    """Replica 0 of the first stage waits for replica 1, which waits for the gradient of its own micro-batch. The report
    marks the current operation of each rank in the schedule.
    """
    split = {"pp": 2, "replicas": [2, 1], "micro_batches": 4, "schedule": "1f1b-stash"}
    spec = RunSpec.model_validate({"parallel": split, "train": {"clip": "stage"}})
    for rank, op in enumerate(("0ALLREDUCE0", "0RECV_GRAD1", "1RECV_ACT1")):
        Progress(tmp_path, rank).at(0, op)
    end = report(tmp_path, range(3), 5.0, spec)
    assert end.cause == "no_progress"
    lines = end.traceback.splitlines()
    for line, mark in zip(lines[2:], (">0ALLREDUCE0<", ">0RECV_GRAD1<", ">1RECV_ACT1<"), strict=True):
        assert mark in line
