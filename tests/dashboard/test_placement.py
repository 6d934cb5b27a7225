"""Who gets which devices."""

from __future__ import annotations

from typing import Any

from dashboard.control.placement import Host, Plan, Request, Share, Wait, plan


def host(name: str = "a", devices: int = 2, free: int | None = None, **more: Any) -> Host:
    every = tuple(range(devices))
    return Host(name, {"cpu": every}, {"cpu": every if free is None else every[:free]}, **more)


def ask(run: int, devices: int = 1, **more: Any) -> Request:
    return Request(run, devices, "cpu", **more)


def placed(result: Plan) -> dict[int, list[Share]]:
    return {request.run: shares for request, shares in result.placed}


def test_oldest_first_and_each_device_once() -> None:
    result = plan([ask(1), ask(2), ask(3)], [host()])
    assert placed(result) == {1: [Share("a", (0,), 0)], 2: [Share("a", (1,), 0)]}
    assert result.waits == {3: (Wait.BUSY, "a")}


def test_all_devices_or_none() -> None:
    result = plan([ask(1, 2)], [host(free=1)])
    assert result.placed == []
    assert result.waits == {1: (Wait.BUSY, "a")}


def test_devices_of_one_host_only() -> None:
    assert plan([ask(1, 3)], [host("a"), host("b")]).waits == {1: (Wait.TOO_LARGE, "")}


def test_a_waiting_run_is_not_starved_by_smaller_later_ones() -> None:
    result = plan([ask(1, 2), ask(2, 1)], [host(free=1)])
    assert result.waits == {1: (Wait.BUSY, "a"), 2: (Wait.RESERVED, "a")}


def test_a_later_run_may_use_another_host() -> None:
    result = plan([ask(1, 4), ask(2, 1)], [host("big", 4, free=3), host("small")])
    assert placed(result) == {2: [Share("small", (0,), 0)]}


def test_a_run_that_fits_nowhere_holds_up_nobody() -> None:
    assert set(placed(plan([ask(1, 8), ask(2)], [host()]))) == {2}


def test_exclusive_needs_an_idle_host_and_blocks_it() -> None:
    assert plan([ask(1, exclusive=True)], [host(free=1)]).waits == {1: (Wait.WHOLE_HOST, "a")}
    result = plan([ask(1, exclusive=True), ask(2)], [host()])
    assert set(placed(result)) == {1}
    assert result.waits == {2: (Wait.WHOLE_HOST, "a")}


def test_a_waiting_exclusive_run_reserves_its_host() -> None:
    result = plan([ask(1, exclusive=True), ask(2)], [host(free=1)])
    assert result.placed == []


def test_runs_beside_an_exclusive_one_wait() -> None:
    assert plan([ask(1)], [host(free=1, exclusive=True)]).waits == {1: (Wait.WHOLE_HOST, "a")}


def test_exclusive_runs_of_a_study_go_one_after_another_over_all_hosts() -> None:
    queue = [ask(1, exclusive=True, study=7), ask(2, exclusive=True, study=7)]
    result = plan(queue, [host("a"), host("b")])
    assert set(placed(result)) == {1}
    assert result.waits == {2: (Wait.SIBLING, "")}
    assert plan(queue, [host("a"), host("b")], studies_active=[7]).placed == []


def test_a_study_stays_on_its_host_while_it_is_open() -> None:
    request = ask(1, exclusive=True, study=7, prefer="b")
    assert placed(plan([request], [host("a"), host("b")]))[1][0].host == "b"
    assert plan([request], [host("a"), host("b", free=1)]).waits == {1: (Wait.WHOLE_HOST, "b")}
    assert placed(plan([request], [host("a"), host("b", open=False)]))[1][0].host == "a"


def test_closed_hosts_get_nothing() -> None:
    assert plan([ask(1)], [host(open=False)]).waits == {1: (Wait.NO_HOST, "")}


def test_a_run_that_needs_a_host_waits_for_it() -> None:
    request = ask(1, needs="b")
    assert placed(plan([request], [host("a"), host("b")]))[1][0].host == "b"
    assert plan([request], [host("a"), host("b", free=0)]).waits == {1: (Wait.BUSY, "b")}
    assert plan([request], [host("a"), host("b", open=False)]).waits == {1: (Wait.CHECKPOINT, "b")}
    assert plan([ask(1, 3, needs="b")], [host("a", 4), host("b")]).waits == {1: (Wait.TOO_LARGE, "")}


def test_kinds_of_devices_are_apart() -> None:
    both = Host("a", {"cpu": (0, 1), "cuda": (0,)}, {"cpu": (), "cuda": (0,)})
    assert plan([Request(1, 1, "cuda")], [both]).placed == [(Request(1, 1, "cuda"), [Share("a", (0,), 0)])]
