"""Messages between two hosts, timed in real ranks with torch's own groups; here both "hosts" are the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.engine.distributed import Rendezvous
from parallel_core.observe import progress
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.profile import host_link_bench
from parallel_core.profile.curves import Link, LinksBetween
from parallel_core.profile.links import COLLECTIVES
from parallel_core.profile.request import spec_between
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file

SIZES = (1024, 65536)


def _told(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[dict[str, Any]]:
    host_link_bench.run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), SIZES)
    return [frame.header for frame in read_file(events_path(folder, rank)) if frame.kind == "links"]


def _last_seen(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> str:
    _told(spec, rank, meeting, folder)
    where = progress.read(folder, rank)
    assert where is not None
    return where.op


@pytest.fixture(scope="module")
def found() -> LinksBetween:
    """Measured with two ranks on each host."""
    first, *others = ranks.run(spec_between("cpu", 2), _told, ranks.scratch())
    assert others == [[], [], []]
    (told,) = first
    rows = tuple(Link.model_validate(row) for row in told["links"])
    return LinksBetween(hosts=("a", "b"), device=told["device"], software=told["software"], links=rows)


@pytest.mark.full
def test_every_kind_of_message_is_timed(found: LinksBetween) -> None:
    """Collectives with one and with two ranks per host, one and two concurrent messages between the hosts, and messages
    inside a host over the same transport.
    """
    wanted = {(what, many, 2) for what in (*COLLECTIVES, "send") for many in (2, 4)} | {("send", 2, 1)}
    assert {(link.what, link.ranks, link.hosts) for link in found.links} == wanted
    assert len(found.links) == len(wanted)
    for link in found.links:
        assert link.time.sizes == SIZES and all(seconds > 0 for seconds in link.time.seconds)
        assert (link.work is not None) == (link.what == "send")


def test_one_message_is_not_plural_in_what_a_rank_is_at() -> None:
    seen = ranks.run(spec_between("cpu", 1), _last_seen, ranks.scratch())
    assert seen == ["1 message at once between the hosts"] * 2


def test_the_nearest_group_that_was_timed_answers(found: LinksBetween) -> None:
    nearest = found.link("all_reduce", 7)
    assert nearest is not None and nearest.ranks == 4
    assert found.link("all_reduce", 2, hosts=1) is None
    send = found.link("send", 2)
    assert send is not None and send.ranks == 2
    inside = found.link("send", 2, hosts=1)
    assert inside is not None and inside.hosts == 1
