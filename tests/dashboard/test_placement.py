"""Which run gets which devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.fleet.run_on import RunOn
from dashboard.placement import assignments
from dashboard.placement.assignments import Plan, Share, plan
from dashboard.placement.finding import Found, Wait
from dashboard.placement.hosts import Host, Request


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
    assert result.waits == {3: (Wait.BUSY, ("a",))}


def test_all_devices_or_none() -> None:
    result = plan([ask(1, 2)], [host(free=1)])
    assert result.placed == []
    assert result.waits == {1: (Wait.BUSY, ("a",))}


def test_a_host_that_profiles_is_taken_last() -> None:
    """A run on a host that is about to make a profile would wait for its end."""
    hosts = [host("a", profiles=True), host("b", devices=1), host("c", devices=1)]
    assert placed(plan([ask(1), ask(2), ask(3)], hosts)) == {
        1: [Share("b", (0,), 0)],
        2: [Share("c", (0,), 0)],
        3: [Share("a", (0,), 0)],
    }
    assert {share.host for share in placed(plan([ask(1, 2, hosts=2)], hosts))[1]} == {"b", "c"}
    assert placed(plan([ask(1, 2)], hosts))[1] == [Share("a", (0, 1), 0)]


def test_a_run_that_must_be_alone_never_goes_over_several_hosts() -> None:
    assert plan([ask(1, 3, alone=True)], [host("a"), host("b")]).waits == {1: (Wait.TOO_LARGE, ())}


def test_ranks_of_a_run_are_on_devices_of_one_type_where_there_are_ever_enough() -> None:
    """The slowest sets the pace of all. If one type is enough but busy, the run waits for it."""
    a, b, c, d = (
        host(name, types={"cpu": kind}) for name, kind in zip("abcd", ("old", "new", "old", "new"), strict=True)
    )
    assert hosts_of(plan([ask(1, 4)], [a, b, d])) == {"b", "d"}, "though a comes first"
    assert hosts_of(plan([ask(1, 4)], [a, b])) == {"a", "b"}, "there is no other way"
    busy = host("d", types={"cpu": "new"}, free=0)
    waits = plan([ask(1, 4)], [a, b, busy]).waits
    assert waits == {1: (Wait.BUSY, ("b", "d"))}
    assert hosts_of(plan([ask(1, 4)], [a, b, c, busy])) == {"a", "c"}, "free ones of another type will do"
    newer = host("e", types={"cpu": "new"}, version="2")
    assert hosts_of(plan([ask(1, 4)], [a, b, newer])) == {"a", "b"}, "types are mixed sooner than versions"


def test_only_the_chosen_devices_are_given() -> None:
    """Those of one type, also on a host that has others; or those of one worker, which it waits for."""
    old, new = {"cpu": {0: "old", 1: "old"}}, {"cpu": {0: "old", 1: "new"}}
    a, b, c = host("a", type_of=old), host("b", type_of=new), host("c", type_of=new)
    newer = RunOn(device_type="new")
    assert placed(plan([ask(1, on=newer)], [a, b])) == {1: [Share("b", (1,), 0)]}
    assert placed(plan([ask(1, 2, on=newer)], [a, b, c])) == {1: [Share("b", (1,), 0), Share("c", (1,), 1)]}
    assert plan([ask(1, 3, on=newer)], [a, b, c]).waits == {1: (Wait.TOO_LARGE, ())}
    busy = host("c", free=0, type_of=new)
    assert plan([ask(1, 2, on=newer)], [a, b, busy]).waits == {1: (Wait.BUSY, ("b", "c"))}
    assert placed(plan([ask(1, 2, on=RunOn(worker="c"))], [a, b, c])) == {1: [Share("c", (0, 1), 0)]}
    assert plan([ask(1, on=RunOn(worker="c"))], [a, b, busy]).waits == {1: (Wait.BUSY, ("c",))}


def test_a_run_whose_chosen_devices_are_not_there_holds_nothing_up() -> None:
    a, closed = host("a", devices=1), host("c", open=False, known=False)
    result = plan([ask(1, on=RunOn(worker="c")), ask(2, on=RunOn(worker="d")), ask(3)], [a, closed])
    assert result.waits == {1: (Wait.CHOICE, ("c",)), 2: (Wait.CHOICE, ())} and 3 in placed(result)
    elsewhere = plan([ask(1, on=RunOn(worker="a"), needs=("c",)), ask(2)], [a, closed])
    assert elsewhere.waits == {1: (Wait.CHOICE, ())} and 2 in placed(elsewhere)
    siblings = [ask(1, study=7, exclusive=True, on=RunOn(worker="c")), ask(2, study=7, exclusive=True)]
    assert set(placed(plan(siblings, [a, closed]))) == {2}, "one that no host can take does not keep its study"


def hosts_of(found: Plan) -> set[str]:
    ((_, shares),) = found.placed
    return {share.host for share in shares}


def test_a_long_queue_of_one_shape_is_looked_at_as_often_as_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs reserve the three hosts, the next one finds all reserved: the others wait like that one."""
    looked: list[int] = []
    find = assignments.find

    def counted(request: Request, *rest: Any) -> Found:
        looked.append(request.run)
        return find(request, *rest)

    monkeypatch.setattr(assignments, "find", counted)
    hosts = [host(name, free=1) for name in "abc"]
    result = plan([ask(run, 2) for run in range(5000)], hosts)
    assert looked == [0, 1, 2, 3]
    assert [result.waits[run] for run in range(3)] == [(Wait.BUSY, (name,)) for name in "abc"]
    assert {result.waits[run][0] for run in range(3, 5000)} == {Wait.RESERVED}


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.booleans(),
            st.integers(0, 2),
            st.sampled_from(("", "h0")),
            st.sampled_from(("", "even", "odd")),
        ),
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_a_shape_waits_for_the_same_whether_or_not_it_was_looked_at_before(
    queue: list[tuple[int, bool, int, str, str]], fleet: list[tuple[int, int]]
) -> None:
    """That some run took or reserved a host may change what a shape waits for, or let it start."""
    types = {"cpu": {0: "even", 1: "odd", 2: "even", 3: "odd"}}
    hosts = [host(f"h{i}", every, free=min(free, every), type_of=types) for i, (every, free) in enumerate(fleet)]
    asked = [
        ask(
            run,
            devices,
            exclusive=exclusive,
            study=study if exclusive and study else None,
            prefer=prefer,
            on=RunOn(device_type=on),
        )
        for run, (devices, exclusive, study, prefer, on) in enumerate(queue)
    ]
    found = plan(asked, hosts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignments, "_SHAPE", lambda request: request.run)
        assert plan(asked, hosts) == found
    assert plan(asked, hosts, told=False).placed == found.placed


def test_who_only_places_reads_the_queue_until_nothing_is_left_to_give() -> None:
    read: list[int] = []

    def queue() -> Iterator[Request]:
        for run, devices in enumerate((1, 3, 2, 1, 1)):
            read.append(run)
            yield ask(run, devices)

    hosts = [host("a", 3), host("b", 2, free=1)]
    assert set(placed(plan(queue(), hosts, told=False))) == {0} and read == [0, 1, 2, 3], "a is reserved by 1, b by 2"
    assert set(placed(plan(queue(), hosts))) == {0} and read[4:] == [0, 1, 2, 3, 4]


def test_ranks_of_a_run_are_on_hosts_of_one_version() -> None:
    old, new = (host(f"{name}-{version}", version=version) for name, version in (("a", "1"), ("b", "2")))
    assert plan([ask(1, 4)], [old, new]).waits == {1: (Wait.VERSIONS, ("a-1", "b-2"))}
    assert placed(plan([ask(1, 2)], [old, new])) == {1: [Share("a-1", (0, 1), 0)]}, "one host is of one version"
    more = host("c-2", version="2")
    assert {share.host for share in placed(plan([ask(1, 4)], [old, new, more]))[1]} == {"b-2", "c-2"}
    assert plan([ask(1, 6)], [old, new]).waits == {1: (Wait.TOO_LARGE, ())}, "no version is what is missing"
    busy = host("c-2", version="2", free=0)
    assert plan([ask(1, 4)], [old, new, busy]).waits == {1: (Wait.BUSY, ("b-2", "c-2"))}, "an update would not help"
    timing = ask(1, 2, hosts=2, task="links", among=("a-1", "b-2"))
    able = [replace(one, tasks=("links",)) for one in (old, new)]
    assert len(placed(plan([timing], able))[1]) == 2, "what is not trained may be on both"


def test_what_no_host_has_alone_goes_over_as_few_as_it_takes() -> None:
    result = plan([ask(1, 5)], [host("small"), host("big", 4), host("mid", 3)])
    assert placed(result) == {1: [Share("big", (0, 1, 2, 3), 0), Share("mid", (0,), 4)]}


def test_one_host_is_waited_for_rather_than_several_taken() -> None:
    result = plan([ask(1, 4)], [host("big", 4, free=3), host("b"), host("c")])
    assert result.waits == {1: (Wait.BUSY, ("big",))}


def test_tensor_groups_stay_whole_where_they_can() -> None:
    hosts = [host("a", 3), host("b", 3)]
    assert plan([ask(1, 4, unit=2)], hosts).placed[0][1] == [Share("a", (0, 1), 0), Share("b", (0, 1), 2)]
    assert plan([ask(1, 6, unit=2)], hosts).placed[0][1] == [Share("a", (0, 1, 2), 0), Share("b", (0, 1, 2), 3)]


def test_a_run_is_spread_evenly_over_as_many_hosts_as_it_asks_for() -> None:
    hosts = [host("a", 8), host("b", 2), host("c", 1)]
    result = plan([ask(1, 4, hosts=2)], hosts)
    assert placed(result) == {1: [Share("a", (0, 1), 0), Share("b", (0, 1), 2)]}
    assert plan([ask(1, 6, hosts=2)], hosts).waits == {1: (Wait.TOO_LARGE, ())}
    assert plan([ask(1, 3, hosts=2)], hosts).waits == {1: (Wait.TOO_LARGE, ())}


def test_a_run_over_several_hosts_reserves_them_all() -> None:
    hosts = [host("a", 2, free=1), host("b", 2)]
    result = plan([ask(1, 4), ask(2, 1)], hosts)
    assert result.waits == {1: (Wait.BUSY, ("a", "b")), 2: (Wait.RESERVED, ("b",))}


def test_an_exclusive_run_over_several_hosts_has_them_all_to_itself() -> None:
    asked = ask(1, 4, exclusive=True)
    assert plan([asked], [host("a"), host("b", free=1)]).waits == {1: (Wait.WHOLE_HOST, ("a", "b"))}
    result = plan([asked, ask(2)], [host("a"), host("b"), host("c", 1)])
    assert {run: [share.host for share in shares] for run, shares in placed(result).items()} == {
        1: ["a", "b"],
        2: ["c"],
    }


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=4),
    st.integers(1, 16),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_shares_cover_the_ranks_once_and_take_free_devices(
    fleet: list[tuple[int, int]], devices: int, unit: int, over: int
) -> None:
    hosts = [host(f"h{i}", every, free=min(free, every)) for i, (every, free) in enumerate(fleet)]
    result = plan([ask(1, devices, unit=unit, hosts=over)], hosts)
    ranks: list[int] = []
    for share in placed(result).get(1, []):
        free = next(one for one in hosts if one.name == share.host).free["cpu"]
        assert set(share.devices) <= set(free)
        ranks += range(share.first_rank, share.first_rank + len(share.devices))
    assert ranks in ([], list(range(devices)))
    assert bool(ranks) != (1 in result.waits)


def test_a_waiting_run_is_not_starved_by_smaller_later_ones() -> None:
    result = plan([ask(1, 2), ask(2, 1)], [host(free=1)])
    assert result.waits == {1: (Wait.BUSY, ("a",)), 2: (Wait.RESERVED, ("a",))}


def mixed(free: int = 4, name: str = "a") -> Host:
    """Two old devices, then two new ones; the last `free` ones are free."""
    every = (0, 1, 2, 3)
    types = {"cpu": {0: "old", 1: "old", 2: "new", 3: "new"}}
    return Host(name, {"cpu": every}, {"cpu": every[4 - free :]}, type_of=types)


OLD, NEW = RunOn(device_type="old"), RunOn(device_type="new")


def test_a_run_that_waits_for_a_type_of_device_reserves_that_type_alone() -> None:
    result = plan([ask(1, 2, on=OLD), ask(2, 1, on=OLD), ask(3, 1), ask(4, 1, on=NEW), ask(5, 1)], [mixed(3)])
    assert placed(result) == {3: [Share("a", (2,), 0)], 4: [Share("a", (3,), 0)]}
    assert result.waits == {1: (Wait.BUSY, ("a",)), 2: (Wait.RESERVED, ("a",)), 5: (Wait.RESERVED, ("a",))}


def test_who_waits_for_devices_that_are_reserved_is_not_starved_by_later_runs_either() -> None:
    result = plan([ask(1, 2, on=OLD), ask(2, 3), ask(3, 1, on=NEW)], [mixed(3)])
    assert not result.placed and result.waits[2] == (Wait.RESERVED, ("a",)) and result.waits[3][0] is Wait.RESERVED


def test_an_exclusive_run_of_a_type_reserves_its_host_as_a_whole_and_takes_none_that_is_reserved_in_part() -> None:
    waits = plan([ask(1, 2, on=OLD, exclusive=True), ask(2, 1, on=NEW)], [mixed(3)]).waits
    assert waits == {1: (Wait.WHOLE_HOST, ("a",)), 2: (Wait.RESERVED, ("a",))}
    waits = plan([ask(1, 3, on=OLD), ask(2, 1, on=NEW, exclusive=True)], [mixed(), mixed(2, "b")]).waits
    assert waits[1] == (Wait.BUSY, ("a", "b")) and waits[2][0] is Wait.RESERVED


def test_a_later_run_may_use_another_host() -> None:
    result = plan([ask(1, 4), ask(2, 1)], [host("big", 4, free=3), host("small")])
    assert placed(result) == {2: [Share("small", (0,), 0)]}


def test_a_run_that_fits_nowhere_holds_up_nobody() -> None:
    assert set(placed(plan([ask(1, 8), ask(2)], [host()]))) == {2}


def test_exclusive_needs_an_idle_host_and_blocks_it() -> None:
    assert plan([ask(1, exclusive=True)], [host(free=1)]).waits == {1: (Wait.WHOLE_HOST, ("a",))}
    result = plan([ask(1, exclusive=True), ask(2)], [host()])
    assert set(placed(result)) == {1}
    assert result.waits == {2: (Wait.WHOLE_HOST, ("a",))}


def test_an_exclusive_run_waits_for_the_host_that_is_idle_soonest() -> None:
    """Not for the one with most free devices, which may be busy for hours."""
    busy, soon, unknown = host(free=1, idle_in=7200.0), host("b", free=0, idle_in=60.0), host("c", free=1, idle_in=inf)
    result = plan([ask(1, exclusive=True), ask(2)], [busy, unknown, soon])
    assert result.waits == {1: (Wait.WHOLE_HOST, ("b",))} and hosts_of(result) == {"a"}
    assert plan([ask(1, exclusive=True)], [busy, unknown]).waits == {1: (Wait.WHOLE_HOST, ("a",))}
    assert plan([ask(1, 2)], [busy, soon]).waits == {1: (Wait.BUSY, ("a",))}, "it needs no idle host"
    over_two = plan([ask(1, 2, exclusive=True, hosts=2)], [busy, unknown, soon]).waits
    assert over_two == {1: (Wait.WHOLE_HOST, ("b", "a"))}
    given = plan([ask(1), ask(2, exclusive=True)], [host("a", 4), soon])
    assert hosts_of(given) == {"a"} and given.waits == {2: (Wait.WHOLE_HOST, ("b",))}, (
        "how long run 1 takes is not known"
    )


def test_the_runs_of_a_study_wait_for_a_host_on_which_all_have_room() -> None:
    """Else the first ones would go to a smaller one, and be compared with larger ones elsewhere."""
    large, small = host("large", 4, free=3), host("small")
    first = ask(1, exclusive=True, study=7, widest=4)
    assert plan([first], [large, small]).waits == {1: (Wait.WHOLE_HOST, ("large",))}
    assert placed(plan([first], [large.ready(), small]))[1][0].host == "large"
    assert placed(plan([replace(first, widest=8)], [large, small]))[1][0].host == "small", "no host has room for all"
    assert placed(plan([replace(first, prefer="small")], [large, small]))[1][0].host == "small", "they began there"


def test_exclusive_is_not_beside_what_holds_a_device_that_cannot_be_used() -> None:
    """All devices that the host still lists are free then."""
    held = host(held=True)
    assert plan([ask(1, exclusive=True)], [held]).waits == {1: (Wait.WHOLE_HOST, ("a",))}
    assert placed(plan([ask(1)], [held])) and placed(plan([ask(1, exclusive=True)], [held.ready()]))


def test_a_waiting_exclusive_run_reserves_its_host() -> None:
    result = plan([ask(1, exclusive=True), ask(2)], [host(free=1)])
    assert result.placed == []


def test_runs_beside_an_exclusive_one_wait() -> None:
    assert plan([ask(1)], [host(free=1, exclusive=True)]).waits == {1: (Wait.WHOLE_HOST, ("a",))}


def test_exclusive_runs_of_a_study_go_one_after_another_over_all_hosts() -> None:
    queue = [ask(1, exclusive=True, study=7), ask(2, exclusive=True, study=7)]
    result = plan(queue, [host("a"), host("b")])
    assert set(placed(result)) == {1}
    assert result.waits == {2: (Wait.SIBLING, ())}
    assert plan(queue, [host("a"), host("b")], studies_active=[7]).placed == []


def test_a_run_that_no_host_can_take_does_not_hold_up_its_study() -> None:
    """It waits alone, also while a sibling runs, and goes in its turn once a host has the devices."""
    queue = [ask(1, 3, exclusive=True, study=7, alone=True), ask(2, 2, exclusive=True, study=7)]
    small, large = host("small"), host("large", 4)
    result = plan(queue, [small])
    assert set(placed(result)) == {2} and result.waits == {1: (Wait.TOO_LARGE, ())}
    busy = plan(queue, [small], studies_active=[7])
    assert busy.waits == {1: (Wait.TOO_LARGE, ()), 2: (Wait.SIBLING, ())}
    assert plan(queue, [small, large], studies_active=[7]).waits == {1: (Wait.SIBLING, ()), 2: (Wait.SIBLING, ())}
    result = plan(queue, [small, large])
    assert placed(result)[1][0].host == "large" and result.waits == {2: (Wait.SIBLING, ())}


def test_a_host_that_is_away_for_a_moment_does_not_split_a_study() -> None:
    """Its smaller siblings wait for it too; after a longer absence the large run waits alone."""
    queue = [ask(run, devices, exclusive=True, study=7) for run, devices in enumerate((8, 2, 1), 1)]
    small, away = host("b"), host("a", 8, open=False)
    result = plan(queue, [away, small])
    assert result.waits == {1: (Wait.TOO_LARGE, ()), 2: (Wait.SIBLING, ()), 3: (Wait.SIBLING, ())}
    gone = plan(queue, [replace(away, known=False), small])
    assert set(placed(gone)) == {2} and gone.waits == {1: (Wait.TOO_LARGE, ()), 3: (Wait.SIBLING, ())}


def test_a_run_whose_checkpoint_is_gone_does_not_hold_up_its_study() -> None:
    queue = [ask(1, exclusive=True, study=7, needs=("b",)), ask(2, exclusive=True, study=7)]
    away = host("b", open=False)
    assert plan(queue, [host("a"), away]).waits == {1: (Wait.CHECKPOINT, ("b",)), 2: (Wait.SIBLING, ())}
    result = plan(queue, [host("a"), replace(away, known=False)])
    assert set(placed(result)) == {2} and result.waits == {1: (Wait.CHECKPOINT, ("b",))}


@pytest.mark.parametrize("devices", [2, 8], ids=["taken", "untaken"])
def test_hosts_are_looked_at_once_for_all_siblings_alike(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study may have thousands of queued runs, and a plan is made at every sweep."""
    looked: list[int] = []
    find = assignments.find

    def noted(request: Request, *rest: Any) -> Found:
        looked.append(request.run)
        return find(request, *rest)

    monkeypatch.setattr(assignments, "find", noted)
    queue = [ask(run, devices, exclusive=True, study=7, prefer=f"h{run}") for run in range(50)]
    result = plan(queue, [host(f"h{i}", 2, across=False) for i in range(4)], studies_active=[7])
    assert {why for why, _ in result.waits.values()} == {Wait.SIBLING if devices == 2 else Wait.TOO_LARGE}
    assert len(result.waits) == 50 and set(looked) == {0}


def test_a_run_of_a_study_that_only_waits_for_its_host_keeps_its_turn() -> None:
    queue = [ask(1, exclusive=True, study=7), ask(2, exclusive=True, study=7)]
    assert plan(queue, [host("a", free=1)]).waits == {1: (Wait.WHOLE_HOST, ("a",)), 2: (Wait.SIBLING, ())}


def test_a_task_goes_only_to_hosts_that_announced_it() -> None:
    request, old, new = ask(1, task="generate"), host("a"), host("b", tasks=("generate",))
    assert [share.host for share in placed(plan([request], [old, new]))[1]] == ["b"]
    assert plan([request], [old, host("b", free=0, tasks=("generate",))]).waits == {1: (Wait.BUSY, ("b",))}
    result = plan([request, ask(2, 2)], [old])
    assert result.waits == {1: (Wait.UNABLE, ("a",))} and set(placed(result)) == {2}, "it reserves no host"
    assert plan([ask(1, task="links")], [new]).waits == {1: (Wait.UNABLE, ("b",))}


def test_old_hosts_are_named_only_where_they_are_what_is_missing() -> None:
    old, new = host("a", 2), host("b", 2, tasks=("generate",))
    assert plan([ask(1, 4, task="generate")], [old, new]).waits == {1: (Wait.UNABLE, ("a",))}
    assert plan([ask(1, 5, task="generate")], [old, new]).waits == {1: (Wait.TOO_LARGE, ())}
    assert plan([Request(1, 1, "cuda", task="generate")], [old]).waits == {1: (Wait.TOO_LARGE, ())}
    assert plan([ask(1, task="generate", needs=("c",))], [old]).waits == {1: (Wait.CHECKPOINT, ("c",))}


def test_each_host_that_a_run_measures_must_know_the_task() -> None:
    about = ask(1, 2, among=("a", "b"), hosts=2, exclusive=True, task="links")
    able = host("a", tasks=("links",))
    assert plan([about], [able, host("b")]).waits == {1: (Wait.UNABLE, ("b",))}
    assert set(placed(plan([about], [able, host("b", tasks=("links",))]))) == {1}


def test_hosts_that_a_run_cannot_have_are_not_kept_from_others() -> None:
    """A worker that takes no part in runs over several hosts is open to all others."""
    about, other = ask(1, 2, among=("a", "b"), hosts=2), ask(2)
    result = plan([about, other], [host("a", across=False)])
    assert result.waits == {1: (Wait.AWAY, ("a", "b"))} and set(placed(result)) == {2}


def test_a_study_stays_on_its_host_while_it_is_open() -> None:
    request = ask(1, exclusive=True, study=7, prefer="b")
    assert placed(plan([request], [host("a"), host("b")]))[1][0].host == "b"
    assert plan([request], [host("a"), host("b", free=1)]).waits == {1: (Wait.WHOLE_HOST, ("b",))}
    assert placed(plan([request], [host("a"), host("b", open=False)]))[1][0].host == "a"


def test_closed_hosts_get_nothing() -> None:
    assert plan([ask(1)], [host(open=False)]).waits == {1: (Wait.NO_HOST, ())}


def test_a_run_that_needs_a_host_waits_for_it() -> None:
    request = ask(1, needs=("b",))
    assert placed(plan([request], [host("a"), host("b")]))[1][0].host == "b"
    assert plan([request], [host("a"), host("b", free=0)]).waits == {1: (Wait.BUSY, ("b",))}
    assert plan([request], [host("a"), host("b", open=False)]).waits == {1: (Wait.CHECKPOINT, ("b",))}
    assert plan([ask(1, 3, needs=("b",))], [host("a", 4), host("b")]).waits == {1: (Wait.TOO_LARGE, ())}


def test_any_host_that_has_what_a_run_reads_will_do() -> None:
    request = ask(1, needs=("b", "c"))
    assert placed(plan([request], [host("a"), host("b", free=0), host("c")]))[1][0].host == "c"
    assert plan([request], [host("a"), host("b", open=False)]).waits == {1: (Wait.CHECKPOINT, ("b", "c"))}
    together = plan([ask(1, 4, needs=("b", "c"))], [host("a"), host("b"), host("c")])
    assert [share.host for share in placed(together)[1]] == ["b", "c"]


def test_a_run_is_spread_over_hosts_that_share_what_it_writes_and_on_one_any_will_do() -> None:
    shares = ask(1, 4, over=("b", "c"))
    assert [share.host for share in placed(plan([shares], [host("a"), host("b"), host("c")]))[1]] == ["b", "c"]
    assert [share.host for share in placed(plan([shares], [host("a", 4), host("b"), host("c")]))[1]] == ["a"]


def test_a_host_that_others_cannot_reach_has_no_part_of_a_run_over_several() -> None:
    hosts = [host("a", 3, across=False), host("b"), host("c")]
    assert [share.host for share in placed(plan([ask(1, 4)], hosts))[1]] == ["b", "c"]
    assert [share.host for share in placed(plan([ask(1, 3)], hosts))[1]] == ["a"]
    assert plan([ask(1, 5)], hosts).waits == plan([ask(1, 3, hosts=3)], hosts).waits == {1: (Wait.TOO_LARGE, ())}
    assert plan([ask(1, 2, among=("a", "b"), hosts=2)], hosts).waits == {1: (Wait.AWAY, ("a",))}


def test_kinds_of_devices_are_apart() -> None:
    both = Host("a", {"cpu": (0, 1), "cuda": (0,)}, {"cpu": (), "cuda": (0,)})
    assert plan([Request(1, 1, "cuda")], [both]).placed == [(Request(1, 1, "cuda"), [Share("a", (0,), 0)])]


def test_a_run_that_is_about_hosts_gets_those_or_waits_for_them() -> None:
    about = ask(1, 2, among=("a", "c"), hosts=2, exclusive=True)
    every = [host("a", 1), host("b", 4), host("c", 2)]
    assert placed(plan([about], every)) == {1: [Share("c", (0,), 0), Share("a", (0,), 1)]}
    assert plan([about], [*every[:2], host("c", 2, open=False)]).waits == {1: (Wait.AWAY, ("c",))}
    assert plan([about], [*every[:2], host("c", 2, free=1)]).waits == {1: (Wait.WHOLE_HOST, ("c", "a"))}


GIB = 2**30


def gpus(name: str, *sizes: int, free: int | None = None, **more: Any) -> Host:
    """A host with a GPU of each of these sizes in GiB, 0 = it does not report its memory."""
    every = tuple(range(len(sizes)))
    memory = {"cuda": {i: size * GIB for i, size in enumerate(sizes) if size}}
    return Host(name, {"cuda": every}, {"cuda": every if free is None else every[:free]}, memory=memory, **more)


def large(run: int, devices: int = 1, memory: int = 40, **more: Any) -> Request:
    return Request(run, devices, "cuda", memory=memory * GIB, **more)


def test_a_run_goes_where_the_devices_have_its_memory() -> None:
    """The other host has more free devices, and would end it as out of memory."""
    hosts = [gpus("a", 80), gpus("b", 24, 24)]
    assert placed(plan([large(1), large(2, memory=20)], hosts)) == {1: [Share("a", (0,), 0)], 2: [Share("b", (0,), 0)]}
    assert placed(plan([large(1, memory=0)], hosts))[1][0].host == "b", "not predicted: any will do"
    assert placed(plan([large(1)], [gpus("c", 0, 0), hosts[1]]))[1][0].host == "c", "unknown memory counts as enough"


def test_every_device_of_a_run_has_its_memory() -> None:
    mixed = gpus("a", 24, 80, 80)
    assert placed(plan([large(1, 2)], [mixed])) == {1: [Share("a", (1, 2), 0)]}
    assert placed(plan([large(1, 3)], [mixed, gpus("b", 48)])) == {1: [Share("a", (1, 2), 0), Share("b", (0,), 2)]}
    assert plan([large(1, 3)], [mixed]).waits == {1: (Wait.MEMORY, ("a",))}
    assert plan([large(1, 2, hosts=2)], [mixed, gpus("b", 24)]).waits == {1: (Wait.MEMORY, ("a", "b"))}
    held = plan([large(1, exclusive=True)], [gpus("a", 24, 80, free=0)])
    assert held.waits == {1: (Wait.WHOLE_HOST, ("a",))}, "a small device in use is one in use"


def test_too_little_memory_reserves_nothing_and_holds_up_no_sibling() -> None:
    small, away = gpus("b", 24, 24), gpus("a", 80, open=False)
    result = plan([large(1), large(2, memory=20)], [small, away])
    assert result.waits == {1: (Wait.MEMORY, ("b",))} and set(placed(result)) == {2}
    siblings = [large(run, memory=size, exclusive=True, study=7) for run, size in ((1, 40), (2, 20))]
    gone = replace(away, known=False)
    assert set(placed(plan(siblings, [small, gone]))) == {2}
    assert plan(siblings, [small, away]).waits == {1: (Wait.MEMORY, ("b",)), 2: (Wait.SIBLING, ())}, "it may come back"
    assert plan([large(1)], [replace(small, free={"cuda": ()})]).waits == {1: (Wait.MEMORY, ("b",))}


def test_a_run_waits_for_the_host_that_has_the_memory() -> None:
    hosts = [gpus("a", 80, free=0), gpus("b", 24, 24)]
    assert plan([large(1)], hosts).waits == {1: (Wait.BUSY, ("a",))}
    assert plan([large(1, 2, memory=20, alone=True)], [hosts[0], gpus("b", 24, 24)]).placed
    assert plan([large(1, 4)], hosts).waits == {1: (Wait.TOO_LARGE, ())}, "that many there are of no size"


def test_what_is_missing_is_named_task_before_memory() -> None:
    old, new = gpus("a", 80), gpus("b", 24, tasks=("generate",))
    assert plan([large(1, task="generate")], [old, new]).waits == {1: (Wait.UNABLE, ("a",))}
    assert plan([large(1, memory=90, task="generate")], [old, new]).waits == {1: (Wait.MEMORY, ("b",))}
