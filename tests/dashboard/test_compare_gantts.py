"""The timelines of compared runs: their order, and the lane of operations in which two runs differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.runs import selectors
from dashboard.runs.models import Run, SpanChunk
from dashboard.studies.overview import gantts
from tests.dashboard import factory


def test_gantts_of_compared_runs_keep_the_order_of_the_address(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {"dp": 2}), factory.finished(alice, {})
    rows = reader.get(f"/compare/gantt.json?show={b.pk},{a.pk}").json()["rows"]
    assert [row[0] for row in rows] == ["Single", "DP", "DP"]


def test_two_runs_have_a_lane_of_the_operations_in_which_they_differ(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {"micro_batches": 2}), factory.finished(alice, {"dp": 2, "micro_batches": 2})
    c = factory.finished(alice, {"micro_batches": 2})
    chart = reader.get(f"/compare/gantt.json?show={a.pk},{b.pk}").json()
    (alone,) = (trace for trace in chart["figure"]["data"] if trace["name"] == "alone")
    assert len(alone["x"]) == 1 and alone["y"][0] > 0.7, "only the second run has a reduction: in the lower half"
    assert alone["customdata"][0].startswith("second run, rank 0, stage 0: ")
    assert "the first run has none" in alone["customdata"][0]
    assert (
        "; 1 of 13 operations of rank 0 of both differ" in chart["source"] and "between the runs" in chart["subtitle"]
    )
    same = reader.get(f"/compare/gantt.json?show={a.pk},{c.pk}").json()
    assert "; 0 of 12 operations of rank 0 of both differ" in same["source"]
    assert not {"alone", "moved"} & {trace["name"] for trace in same["figure"]["data"]}
    three = reader.get(f"/compare/gantt.json?show={a.pk},{b.pk},{c.pk}").json()
    assert "differ" not in three["source"] and ", step 10, 3 of 3 runs" in three["source"]
    SpanChunk.objects.filter(attempt__run=c).update(step=2000)
    Run.objects.filter(pk=c.pk).update(summary={**c.summary, "breakdown_step": 2000})
    source = reader.get(f"/compare/gantt.json?show={a.pk},{b.pk},{c.pk}").json()["source"]
    assert ", steps 10 and 2\N{NO-BREAK SPACE}000, 3 of 3 runs" in source


def test_a_span_that_was_dropped_is_no_difference(reader: Client, alice: Any) -> None:
    """The reduction that only the second run has may have been among the dropped spans of the first; not the other way
    round."""
    a, b = factory.finished(alice, {"micro_batches": 2}), factory.finished(alice, {"dp": 2, "micro_batches": 2})
    address = f"/compare/gantt.json?show={a.pk},{b.pk}"
    SpanChunk.objects.filter(attempt__run=b, rank=1).update(total=20)
    assert "kept" not in reader.get(address).json()["source"], "that is another rank"
    SpanChunk.objects.filter(attempt__run=b, rank=0).update(total=20)
    second = reader.get(address).json()
    assert "; 1 of 13 operations" in second["source"], "the first run kept all, and has none"
    assert "; 8 of 20 of its spans were kept of the second run, so what only the first has is not" in second["source"]
    SpanChunk.objects.filter(attempt__run=a).update(total=12)
    first = reader.get(address).json()
    assert "; 0 of 13 operations of rank 0 of both differ; 7 of 12 of its spans were kept of the" in first["source"]
    assert "alone" not in {trace["name"] for trace in first["figure"]["data"]}


def test_spans_dropped_of_a_step_that_arrives_meanwhile_are_not_of_the_step_drawn(
    reader: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drawn step is the newest of each run, until a newer one, of which spans were dropped, arrives."""
    runs = [factory.finished(alice, split) for split in ({"micro_batches": 2}, {"dp": 2, "micro_batches": 2})]
    for run in runs:
        run.summary.pop("breakdown_step")
        run.save()

    def read(run: Run, step: int) -> dict[int, np.ndarray]:
        found = selectors.spans(run, step)
        for rank, rows in found.items():
            chunk = {"step": step + 10, "count": len(rows), "total": 99, "data": rows.tobytes()}
            SpanChunk.objects.create(attempt=run.attempts.get(), rank=rank, **chunk)
        return found

    monkeypatch.setattr(gantts, "spans", read)
    source = reader.get(f"/compare/gantt.json?show={runs[0].pk},{runs[1].pk}").json()["source"]
    assert [selectors.span_counts(run, selectors.newest_traced_step(run) or 0, 0)[1] for run in runs] == [99, 99]
    assert "; 1 of 13 operations of rank 0 of both differ" in source and "kept" not in source


def test_operations_of_another_order_are_in_the_lane(reader: Client, alice: Any) -> None:
    shape = {"pp": 2, "micro_batches": 4}
    runs = [factory.finished(alice, {**shape, "schedule": name}) for name in ("gpipe", "1f1b")]
    chart = reader.get(f"/compare/gantt.json?show={runs[0].pk},{runs[1].pk}").json()
    (moved,) = (trace for trace in chart["figure"]["data"] if trace["name"] == "moved")
    halves = sorted(set(moved["y"]))
    assert [moved["y"].count(half) for half in halves] == [len(moved["x"]) // 2] * 2
    assert 1.4 < halves[0] < 1.7 < halves[1] < 2.0, "between the ranks of the first run and those of the second"
    assert all("stands elsewhere in the order of the" in text for text in moved["customdata"])
    page = reader.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").content.decode()
    assert all(f"?tab=operators&amp;a={rank}&amp;b={rank}&amp;other={runs[1].pk}#details" in page for rank in (0, 1))


def test_gantts_of_more_runs_have_the_order_of_the_other_charts(reader: Client, alice: Any) -> None:
    splits: tuple[dict[str, Any], ...] = ({}, {"dp": 2}, {"tp": 2})
    listed = ",".join(str(factory.finished(alice, split).pk) for split in splits)
    rows = reader.get(f"/compare/gantt.json?show={listed}").json()["rows"]
    bars = reader.get(f"/compare/?runs={listed}").context["charts"]["speedup"].rows
    assert list(dict.fromkeys(row[0] for row in rows)) == [row[0] for row in bars] != ["Single", "DP", "TP"]
