"""Real forked processes: how ranks start, end, fail and are stopped, and that no process is ever left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from parallel_core import processes
from parallel_core.launch import (
    EXIT_FAULT,
    EXIT_MEMORY,
)
from parallel_core.observe.cores import core_of
from parallel_core.observe.record_files import events_path, log_path
from tests.parallel_core.frames import read_file
from tests.parallel_core.launch_yard import Yard, eventually, order, told, where_waiting

GONE_S = 15.0
"""The longest wait from the failure of one rank to the end of all: three times what the product promises."""
pytestmark = pytest.mark.skipif(not processes.LINUX, reason="reads /proc")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A server shared by the tests that leave it alive."""
    os.environ["TRAINYARD_SECRET_KEY"], os.environ["REDIS_URL"] = "hidden", "hidden"
    yard = Yard(tmp_path_factory.mktemp("yard"))
    del os.environ["TRAINYARD_SECRET_KEY"], os.environ["REDIS_URL"]
    yield yard
    yard.server.close()
    assert not processes.alive(yard.server.pid)


def test_ranks_that_finish_are_reported_gone(shared: Yard) -> None:
    folder = shared.start(1, "finish", "finish")
    shared.until("gone", attempt=1)
    assert sorted(shared.exits(1)) == [(0, 0), (1, 0)]
    assert told(folder, 1, "phase")["phase"] == "done"
    assert told(folder, 1, "exit")["code"] == 0


def test_a_rank_is_in_its_place(shared: Yard) -> None:
    folder = shared.start(2, "describe", "describe")
    shared.until("gone", attempt=2)
    hello = [read_file(events_path(folder, rank))[0].header for rank in (0, 1)]
    assert [h["cores"] for h in hello] == [[core_of(0)], [core_of(1)]]
    assert all(h["session"] and h["threads"] == 1 and h["os_threads"] == 1 and not h["secrets"] for h in hello)
    assert max(hello[1]["descriptors"]) < 8, "descriptors of the server leaked into the rank"
    assert log_path(folder, 0).read_text() == "to the log\n"


def test_ranks_meet_at_the_store_on_a_free_port(shared: Yard) -> None:
    folder = shared.start(3, "meet", "meet", "meet")
    shared.until("gone", attempt=3)
    assert [code for _, code in shared.exits(3)] == [0, 0, 0]
    assert [told(folder, rank, "phase")["step"] for rank in range(3)] == [6, 6, 6]


def test_two_attempts_run_at_once(shared: Yard) -> None:
    folders = [shared.start(attempt, "wait") for attempt in (4, 5)]
    eventually(lambda: all(where_waiting(folder, 1) for folder in folders))
    shared.server.stop(4)
    shared.until("gone", attempt=4)
    assert not shared.exits(5)
    shared.server.stop(5)
    shared.until("gone", attempt=5)


def test_the_first_failing_rank_ends_the_others_and_comes_first(shared: Yard) -> None:
    folder = shared.start(6, "wait", "raise_error", "ignore_term")
    shared.until("exit", attempt=6)
    shared.until("gone", GONE_S, attempt=6)
    assert shared.exits(6)[0] == (1, EXIT_FAULT)
    assert dict(shared.exits(6))[2] == -signal.SIGKILL
    fault = told(folder, 1, "fault")
    assert (fault["cause"], fault["step"], fault["op"]) == ("user_code", 4, "1F3")
    assert told(folder, 1, "exit")["code"] == EXIT_FAULT
    assert "a fault of the rank's own code" in fault["traceback"]
    assert "raise ValueError" in log_path(folder, 1).read_text()


def test_out_of_memory_is_told_from_other_faults(shared: Yard) -> None:
    folder = shared.start(7, "run_out", "ignore_term")
    shared.until("exit", attempt=7)
    shared.until("gone", GONE_S, attempt=7)
    assert shared.exits(7) == [(0, EXIT_MEMORY), (1, -signal.SIGKILL)]
    assert told(folder, 0, "fault")["cause"] == "out_of_memory"


def test_stop_kills_a_rank_that_ignores_term(shared: Yard) -> None:
    folder = shared.start(8, "ignore_term")
    eventually(lambda: where_waiting(folder, 1))
    shared.server.stop(8, grace=0.2)
    shared.until("gone", attempt=8)
    assert shared.exits(8) == [(0, -signal.SIGKILL)]


def test_a_stopped_process_is_stopped_for_good(shared: Yard) -> None:
    folder = shared.start(9, "wait")
    eventually(lambda: where_waiting(folder, 1))
    os.kill(shared.until("started", attempt=9)["pid"], signal.SIGSTOP)
    shared.server.stop(9)
    shared.until("gone", attempt=9)


def test_children_of_a_rank_go_with_it(shared: Yard) -> None:
    folder = shared.start(10, "leave_a_child")
    shared.until("gone", attempt=10)
    assert not processes.alive(int((folder / "child").read_text()))


def test_dump_writes_stacks_to_the_log(shared: Yard) -> None:
    folder = shared.start(11, "wait")
    eventually(lambda: where_waiting(folder, 1))
    shared.server.dump(11)
    shared.server.stop(11)  # immediately: the server finishes the dump first
    shared.until("gone", attempt=11)
    assert "in wait" in log_path(folder, 0).read_text()


def test_an_order_that_cannot_be_carried_out_is_refused(shared: Yard) -> None:
    shared.server.start(order(12, shared.folder / "12", 1, spec={"model": {"layers": -1}}))
    assert "layers" in shared.until("refused", attempt=12)["message"]
    shared.until("gone", attempt=12)


def test_a_later_host_must_be_told_where_the_store_is(shared: Yard) -> None:
    shared.server.start(order(13, shared.folder / "13", 1, first_rank=1))
    assert "store" in shared.until("refused", attempt=13)["message"]


@pytest.mark.parametrize("address", ["192.0.2.77", "no.such.name.invalid"])
def test_an_address_that_is_none_of_the_host_is_named(shared: Yard, address: str) -> None:
    number = 14 + (address == "192.0.2.77")
    first = order(number, shared.folder / str(number), 2) | {"address": address, "devices": [0]}
    shared.server.start(first)
    assert (
        f"AddressError: the host of rank 0 has no address {address}"
        in shared.until("refused", attempt=number)["message"]
    )


def test_stopping_what_is_not_there_reports_it_gone(shared: Yard) -> None:
    shared.server.stop(999)
    shared.until("gone", attempt=999)
