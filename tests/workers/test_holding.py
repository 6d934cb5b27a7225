"""What an attempt waits for on its host: ranks that still have its devices, a calibration, ranks on other hosts."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_core.exits import Exit
from parallel_core.launch import EXIT_PEER, STOP_GRACE_S
from parallel_core.observe.progress import Progress
from tests.workers.test_small_parts import DEVICES, message, over_two
from workers.attempt import GONE_LIMIT_S, Attempt
from workers.calibration import Calibration
from workers.contract import STOP_LIMIT_S
from workers.ending import OTHERS_ENDED
from workers.folder import Folder
from workers.forking import Forking
from workers.relay import Relay
from workers.run_commands import read_command
from workers.settings import Settings
from workers.supervisor import LATE_S, Supervisor
from workers.wire import Publisher

GONE = (2**22 + 1, 0)
"""A process that is not there: its pid is above the kernel's largest."""


class Recording(Forking):
    """Notes which attempts were to be started instead of starting ranks."""

    def __init__(self) -> None:
        super().__init__(lambda event: None)
        self.started: list[int] = []

    @property
    def up(self) -> bool:
        return True

    def keep_up(self) -> None:
        """Starts no server."""

    def start(self, command: Any) -> bool:
        self.started.append(command["attempt"])
        return True


@pytest.fixture
def server() -> Recording:
    return Recording()


@pytest.fixture
def supervisor(tmp_path: Path, server: Recording) -> Supervisor:
    """One whose thread does not run: the test does its steps."""
    settings = Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)
    made = Supervisor(settings, Relay(Publisher(settings)), lambda: DEVICES, Calibration(tmp_path, "no-such-device"))
    made._server = server
    return made


def accept(supervisor: Supervisor, raw: dict[str, Any]) -> Attempt:
    command = read_command(raw, "a", DEVICES)
    folder = Folder.claim(supervisor._settings.attempts, command.attempt)
    assert folder is not None
    supervisor._accepted(folder, command)
    return supervisor._live[command.attempt]


def on(attempt: int, *devices: int) -> dict[str, Any]:
    node = {"worker": "a", "devices": list(devices), "first_rank": 0, "address": "127.0.0.1"}
    return message(run=attempt, attempt=attempt, nodes=[node])


def test_an_attempt_waits_for_the_ranks_that_still_have_one_of_its_devices(
    supervisor: Supervisor, server: Recording
) -> None:
    first = accept(supervisor, on(5, 0, 1))
    accept(supervisor, on(6, 1, 2))
    assert server.started == [5]
    supervisor._conclude(first)
    supervisor._tick()
    assert server.started == [5, 6]


def test_ranks_on_other_devices_keep_no_attempt_waiting(supervisor: Supervisor, server: Recording) -> None:
    one = {**on(5, 0), "spec": {**message()["spec"], "parallel": {}}}
    accept(supervisor, one)
    accept(supervisor, on(6, 1, 2))
    assert server.started == [5, 6]


def test_a_calibration_makes_way_for_an_attempt_and_comes_back(supervisor: Supervisor, server: Recording) -> None:
    """It may take longer than the limit of a start."""
    calibration = supervisor.between.calibration
    supervisor.between.begin()
    assert calibration.running
    attempt = accept(supervisor, on(5, 0, 1))
    assert server.started == [5] and not calibration.running and calibration.result is None
    supervisor._conclude(attempt)
    server.ready = True
    supervisor._tick()
    assert calibration.running
    supervisor.between.stop()


class Clock:
    """CLOCK_MONOTONIC that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        now, now_ns = time.monotonic, time.monotonic_ns
        monkeypatch.setattr(time, "monotonic", lambda: now() + self.passed)
        monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns() + int(self.passed * 1e9))


def test_ranks_that_wait_for_those_of_a_busy_host_go_on(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host may first have to finish a profile of ten minutes. While it does not report a standstill, too, the
    controller ends nothing."""
    clock = Clock(monkeypatch)
    attempt = accept(supervisor, over_two())
    attempt.meta.processes = dict.fromkeys(attempt.command.ranks, GONE)
    Progress(attempt.folder.path, 0).at(-1, "connecting")
    clock.passed = 500
    supervisor._watch_progress(attempt, watched=500)
    assert not attempt.meta.stop and supervisor.roll.still() == [attempt.number]


@pytest.mark.parametrize(("code", "stop"), [(-signal.SIGKILL, ""), (EXIT_PEER, "ended")])
def test_the_host_of_the_rank_that_failed_tells_why_although_the_others_have_ended(
    supervisor: Supervisor, code: int, stop: str
) -> None:
    """The order to end comes while the other ranks here still have their grace."""
    attempt = accept(supervisor, over_two())
    attempt.exits = [Exit(attempt.command.ranks[0], code, 0.0)]
    supervisor._stop_or_forestall(attempt.number, "ended", OTHERS_ENDED)
    assert attempt.meta.stop == stop


def test_ranks_on_one_host_that_do_not_move_are_ended(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    attempt = accept(supervisor, on(5, 0, 1))
    attempt.meta.processes = dict.fromkeys(attempt.command.ranks, GONE)
    clock.passed = 500
    supervisor._watch_progress(attempt, watched=500)
    assert attempt.meta.stop == "no_progress"


def test_the_controller_allows_for_the_time_that_ranks_take_to_be_gone() -> None:
    assert STOP_GRACE_S + LATE_S + GONE_LIMIT_S <= STOP_LIMIT_S
