"""Titles of a trace's charts name the rank that stands out, or say that none does."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.charts.timeline import Step
from dashboard.traces import page, whatif
from dashboard.traces.models import Trace
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind


def step(*busy_ms: int, long_ms: int = 10) -> Step:
    """One rank for each of `busy_ms`; the step takes `long_ms` on the last one, 10 ms on the others."""
    spans = {}
    for rank, busy in enumerate(busy_ms):
        rows = np.zeros(2, SPAN)
        rows["kind"], rows["micro_batch"] = (Kind.STEP, Kind.F), -1
        rows["end"] = ((long_ms if rank == len(busy_ms) - 1 else 10) * 1e6, busy * 1e6)
        spans[rank] = rows
    return Step(spans)


@pytest.mark.parametrize(
    ("found", "idle", "longest"),
    [
        (step(6, 6), "Each rank is idle for 40 % of its step", "10 ms: the step of each rank is as long"),
        (step(6, 4), "Rank 1 is idle most: 60 % of its step", "10 ms: the step of each rank is as long"),
        (step(6, 6, long_ms=12), "Rank 1 is idle most: 50 % of its step", "The longest step is that of rank 1: 12 ms"),
        (step(6), "40 % of the step is idle", "One step of rank 0"),
    ],
)
def test_a_rank_is_named_only_where_it_stands_out(found: Step, idle: str, longest: str) -> None:
    assert page._least(found, "idle") == idle
    assert page.where(found, "").title == longest


def test_of_many_ranks_the_one_that_the_title_names_is_drawn() -> None:
    found = step(*[6] * 63, 4, long_ms=12)
    made = page.where(found, "imported from 64 files")
    assert made.title == "The longest step is that of rank 63: 12 ms"
    assert made.source == "imported from 64 files, 32 of 64 ranks"
    drawn = [row[0] for row in made.rows]
    assert drawn == [*(f"rank {rank}" for rank in range(31)), "rank 63"]
    few = page.where(step(*[6] * 32), "imported from 32 files")
    assert few.source == "imported from 32 files" and len(few.rows) == 32


def test_of_many_ranks_the_timeline_has_the_most_idle_one() -> None:
    found = step(*[6] * 63, 4)
    assert page._least(found, "idle") == "Rank 63 is idle most: 60 % of its step"
    assert page._drawn(page._idle(found)) == [*range(31), 63]
    assert page._drawn(page._idle(step(4, *[6] * 63))) == list(range(32))


def test_of_many_ranks_a_what_if_draws_those_that_end_the_step_and_its_replay() -> None:
    found = step(*[6] * 15, 4, long_ms=12)
    made = {**found.spans, 11: found.spans[15], 15: found.spans[11]}
    assert whatif._drawn(found.spans, made) == [*range(6), 11, 15]
    assert whatif._drawn(found.spans, found.spans) == [*range(7), 15]
    few = step(6, 6).spans
    assert whatif._drawn(few, few) == [0, 1]


def test_what_is_hatched_in_the_timeline_of_an_import_and_grey_in_its_accounts_is_said_to_be_the_same() -> None:
    assert "idle or not traced, which is hatched above" in page.where(step(6, 4), "").subtitle
    assert "hatched" not in page.where(step(6, 4), "", recorded=True).subtitle, "nothing of it was not traced"


def of(ranks: dict[str, bool], spans: int = 0) -> Trace:
    """A trace whose ranks have two spans each in step 2; the dict says which were read only partly. With `spans`, a
    recorded trace that had that many spans.
    """
    made = {rank: {"file": f"{rank}.json", "steps": {"2": 2}, "partial": cut} for rank, cut in ranks.items()}
    return Trace(ranks=made, recorded={"spans": {"2": spans}} if spans else {})


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (of({"0": False, "1": False}), ""),
        (of({"0": False, "1": True}), "Part of what rank 1 recorded could not be read: what is missing looks idle."),
        (of({"0": True, "1": True}), "Part of what ranks 0, 1 recorded could not be read: what is missing looks idle."),
        (of({"0": True}, spans=2), ""),
        (of({"0": False}, spans=5), "2 of its 5 spans are here: what is missing looks idle."),
    ],
)
def test_the_headline_says_what_of_a_step_is_missing(trace: Trace, said: str) -> None:
    assert page.missing(trace, 2) == said
    assert page.sentence(trace, 2, step(6)).partition(". ")[2] == said


def test_shares_of_the_largest_operations_are_of_those_listed() -> None:
    row = {"family": "other", "count": 1, "ns": 1_000}
    ranks = {str(rank): {"top": [row | {"name": f"op{rank}.{i}"} for i in range(20)]} for rank in (0, 1)}
    rows = page.largest(Trace(ranks=ranks))
    assert len(rows) == 20 and {row["share"] for row in rows} == {"5 %"}


@pytest.mark.parametrize(
    ("pause_us", "word"),
    [(400, "idle or not traced, mostly short pauses between operations"), (600, "idle or not traced")],
)
def test_pauses_are_counted_by_the_finding_alone(pause_us: int, word: str) -> None:
    """The headline is about one step, the finding about several: two counts of the same pauses would disagree."""
    rows = np.zeros(10, SPAN)
    rows["kind"], rows["micro_batch"] = Kind.F, -1
    rows["start"] = np.arange(10) * 1_000_000
    rows["end"] = rows["start"] + 1_000_000 - pause_us * 1_000
    rows["kind"][0], rows["start"][0], rows["end"][0] = Kind.STEP, 1_000_000, rows["end"][-1]
    made = Step({0: rows})
    assert page.sentence(of({"0": False}), 2, made).endswith(f" {word}.")
