"""What a run on this host says of its end: which rank is at fault, and that one that was stopped has saved."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from parallel_core.exits import Exit
from parallel_core.launch import EXIT_FAULT, EXIT_PEER, EXIT_STOPPED
from parallel_core.local import Outcome
from parallel_core.observe.records import Frame


def outcome(*exits: tuple[int, int], **faults: str) -> Outcome:
    """`faults`: rank -> message of its fault record."""

    def frame(message: str) -> Frame:
        told: dict[str, Any] = {"kind": "fault", "type": "ValueError", "message": message}
        return Frame({**told, "traceback": f"Traceback: {message}"}, b"", 0)

    frames = {int(rank.removeprefix("r")): [frame(message)] for rank, message in faults.items()}
    ended = [Exit(*one, at=0.01 * i) for i, one in enumerate(exits)]
    return Outcome(Path("folder"), 0.0, exits=ended, frames=frames)


def test_a_rank_that_only_lost_its_peer_is_not_named_though_it_was_reaped_first() -> None:
    made = outcome((1, EXIT_PEER), (0, EXIT_FAULT), r0="wrong", r1="Connection closed by peer")
    assert made.failure() == "Rank 0 failed: ValueError: wrong" and made.traceback() == "Traceback: wrong"
    assert not made.ok


def test_of_a_killed_rank_the_traceback_is_that_of_whoever_left_one() -> None:
    made = outcome((1, -signal.SIGKILL), (0, EXIT_PEER), r0="Connection closed by peer")
    assert "Rank 1 failed" in made.failure() and "SIGKILL" in made.failure()
    assert made.traceback() == "Traceback: Connection closed by peer"


@pytest.mark.parametrize("exits", [[(0, EXIT_STOPPED), (1, EXIT_STOPPED)], [(0, 0), (1, EXIT_STOPPED)]])
def test_an_orderly_stop_is_no_failure_of_a_rank(exits: list[tuple[int, int]]) -> None:
    made = outcome(*exits)
    assert made.failure() == "Its ranks were stopped by SIGTERM, and saved first: --resume folder goes on."
    assert not made.ok and made.traceback() == ""


def test_a_run_that_ended_well_says_nothing() -> None:
    made = outcome((0, 0), (1, 0))
    assert made.ok and made.failure() == made.traceback() == ""
