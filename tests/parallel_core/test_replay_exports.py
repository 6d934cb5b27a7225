"""A replayed step as a file of another tool."""

from __future__ import annotations

import json

from parallel_core.analysis.export import COLUMNS, About, chrome_trace, table
from parallel_core.layout import Layout
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from tests.parallel_core.test_replay import spec, step


def test_exports() -> None:
    made = spec(pp=2, micro_batches=2)
    spans, layout = step(made, Costs.uniform(2, 1000, 1000, 1000, message=500), 10**9), Layout.of(made)
    document = json.loads("".join(chrome_trace(spans, layout, About(1))))
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == sum(map(len, spans.values()))
    assert min(event["ts"] for event in complete) == 0
    starts = {event["id"]: event for event in document["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in document["traceEvents"] if event["ph"] == "f"}
    assert len(starts) == len(ends) == 4
    sent = {(one["pid"], one["ts"]) for one in complete if one["name"].startswith("SEND")}
    received = {(one["pid"], one["ts"] + one["dur"]) for one in complete if one["name"].startswith("RECV")}
    assert {(arrow["pid"], arrow["ts"]) for arrow in starts.values()} == sent
    assert {(arrow["pid"], arrow["ts"]) for arrow in ends.values()} == received
    assert all(starts[message]["pid"] != ends[message]["pid"] for message in starts)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table(spans, layout)]
    assert len(rows) == len(complete)
    first = next(row for row in rows if row["kind"] == "RECV_ACT")
    assert first["waited_ns"] == 1000  # until the send began; then the message takes 500
    assert first["end_ns"] - first["start_ns"] == 1500


def test_waits_are_not_exported_where_a_rank_is_missing() -> None:
    """Without it nobody knows who came last: the column is empty, in place of a wait for the last of the others."""
    made = spec(dp=3)
    spans, layout = step(made, Costs.uniform(1, 1000, 1000, 1000)), Layout.of(made)
    spans[0]["start"][spans[0]["kind"] == Kind.ALLREDUCE] -= 500
    part = {rank: spans[rank] for rank in (0, 1)}
    for own, known in ((spans, True), (part, False)):
        column = COLUMNS.index("waited_ns")
        assert all((row[column] is not None) == known for row in table(own, layout))
        document = json.loads("".join(chrome_trace(own, layout, About(1))))
        events = [event for event in document["traceEvents"] if event["ph"] == "X"]
        assert len(events) == sum(map(len, own.values()))
        assert all(("waited_us" in event["args"]) == known for event in events)
    assert sum(row[COLUMNS.index("waited_ns")] for row in table(spans, layout)) == 500
