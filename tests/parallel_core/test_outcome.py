"""What a run on this host says of its end: which rank is at fault, and that one that was stopped has saved."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from parallel_core.exits import Exit
from parallel_core.launch import EXIT_FAULT, EXIT_PEER, EXIT_STOPPED
from parallel_core.local import LocalRunner
from parallel_core.observe.record_files import LAST_WINDOW, Frame
from parallel_core.outcome import Outcome
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import outcome_of


def outcome(folder: Path, *exits: tuple[int, int], **faults: str) -> Outcome:
    """`faults`: rank -> message of its fault record."""

    def frame(message: str) -> Frame:
        told: dict[str, Any] = {"kind": "fault", "type": "ValueError", "message": message}
        return Frame({**told, "traceback": f"Traceback: {message}"}, b"", 0)

    frames = {int(rank.removeprefix("r")): [frame(message)] for rank, message in faults.items()}
    return outcome_of(folder, frames, [Exit(*one, at=0.01 * i) for i, one in enumerate(exits)])


def test_a_rank_that_only_lost_its_peer_is_not_named_though_it_was_reaped_first(tmp_path: Path) -> None:
    made = outcome(tmp_path, (1, EXIT_PEER), (0, EXIT_FAULT), r0="wrong", r1="Connection closed by peer")
    assert made.failure() == "Rank 0 failed: ValueError: wrong" and made.traceback() == "Traceback: wrong"
    assert not made.ok


def test_of_a_killed_rank_the_traceback_is_that_of_whoever_left_one(tmp_path: Path) -> None:
    made = outcome(tmp_path, (1, -signal.SIGKILL), (0, EXIT_PEER), r0="Connection closed by peer")
    assert "Rank 1 failed" in made.failure() and "SIGKILL" in made.failure()
    assert made.traceback() == "Traceback: Connection closed by peer"


@pytest.mark.parametrize("exits", [[(0, EXIT_STOPPED), (1, EXIT_STOPPED)], [(0, 0), (1, EXIT_STOPPED)]])
def test_an_orderly_stop_is_no_failure_of_a_rank(exits: list[tuple[int, int]], tmp_path: Path) -> None:
    made = outcome(tmp_path, *exits)
    assert made.failure() == f"Its ranks were stopped by SIGTERM, and saved first: --resume {tmp_path} goes on."
    assert not made.ok and made.traceback() == ""


def test_a_run_that_ended_well_says_nothing(tmp_path: Path) -> None:
    made = outcome(tmp_path, (0, 0), (1, 0))
    assert made.ok and made.failure() == made.traceback() == ""


def test_the_last_record_of_a_kind_may_be_far_from_the_end(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = [{"kind": "memory", "step": 1}, {"kind": "memory", "step": 2}, {"kind": "spans"}]
    frames = [Frame(header, bytes(LAST_WINDOW if header["kind"] == "spans" else 0), 0) for header in told]
    made = outcome_of(tmp_path, {0: frames})
    assert made.last(0, "memory") == {**told[1], "rank": 0} and made.last(0, "summary") is None
    assert [header["step"] for header in made.headers(0, "memory")] == [1, 2]


def test_records_that_are_gone_are_not_taken_for_none(tmp_path: Path) -> None:
    made = outcome_of(tmp_path / "run", {0: [Frame({"kind": "phase"}, b"", 0)]}, [Exit(0, EXIT_FAULT, 0.0)])
    assert len([*made.frames[0]]) == 1
    shutil.rmtree(tmp_path / "run")
    for read in (made.failure, lambda: made.series("loss"), lambda: made.headers(0, "phase"), made.traced):
        with pytest.raises(FileNotFoundError, match="are gone"):
            read()


def test_what_a_run_left_is_read_without_it(tmp_path: Path) -> None:
    made = outcome(tmp_path, (1, EXIT_FAULT), r1="wrong")
    again = Outcome.read(tmp_path)
    assert again.world == made.world == 2 and again.last(1, "fault") == made.last(1, "fault")
    assert again.exits == [] and again.failure() == ""
    with pytest.raises(FileNotFoundError, match="nowhere holds no records of a run"):
        Outcome.read(tmp_path / "nowhere")


def test_the_records_of_another_run_are_not_taken_for_those_of_this_one(runner: LocalRunner, tmp_path: Path) -> None:
    outcome(tmp_path, (0, EXIT_FAULT), r0="wrong")
    with pytest.raises(FileExistsError, match="holds the records of a run already"):
        runner.run(RunSpec(), tmp_path)
