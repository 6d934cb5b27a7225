"""A run's report: a self-contained page with the same numbers as the live one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.runs import selectors
from dashboard.runs.models import Attempt, LogChunk, MemoryRecord, State
from dashboard.runs.page import report_views
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


def test_a_report_needs_nothing_outside_it(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "micro_batches": 4})
    text = reader.get(f"/runs/{run.pk}/report/").content.decode()
    assert "<script" not in text
    assert not re.search(r"""(?:src|href)=["'](?!data:,|http://testserver/runs/)""", text)
    assert "@media print" in text


def test_it_says_what_the_page_says(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "micro_batches": 4})
    page, report = reader.get(f"/runs/{run.pk}/"), reader.get(f"/runs/{run.pk}/report/")
    text = report.content.decode()
    assert report.context["verdict"] == page.context["verdict"]
    for tile in page.context["tiles"]:
        assert tile.value in text
    assert page.context["gantt"].title in text
    assert f"/runs/{run.pk}/report/" in page.content.decode()


def test_the_step_is_drawn_to_scale(alice: Any) -> None:
    spans = selectors.spans(factory.finished(alice, {"pp": 2, "micro_batches": 4}))
    drawn = report_views.strips(spans)
    assert [strip.rank for strip in drawn] == [0, 1]
    bars = [bar for strip in drawn for bar in strip.bars]
    assert min(bar.left for bar in bars) >= 0
    assert max(bar.left + bar.width for bar in bars) <= 100 + 1e-9
    assert {"forward", "backward", "communication", "optimizer"} <= {bar.phase for bar in bars}


def test_of_many_spans_the_longest_are_drawn(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = selectors.spans(factory.finished(alice, {"dp": 2, "micro_batches": 4}))
    monkeypatch.setattr(report_views, "DRAWN", 3)
    lengths = np.concatenate([rows["end"] - rows["start"] for rows in spans.values()])
    bars = [bar for strip in report_views.strips(spans) for bar in strip.bars]
    assert 3 <= len(bars) < len(lengths)


def test_a_run_without_measurements_has_a_report_too(reader: Client, alice: Any) -> None:
    run = factory.queued(alice, name="<b>Waiting</b>", inject=[{"kind": "slow_data", "ms": 5}])
    text = reader.get(f"/runs/{run.pk}/report/").content.decode()
    assert "<b>Waiting" not in text
    assert "has not ended yet" in text
    assert "every batch comes 5 ms late" in text


def test_a_failed_run_is_reported_with_its_fix_its_log_and_its_traceback(reader: Client, alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2})
    attempt = factory.start(run)
    factory.feed_steps(attempt, 12)
    MemoryRecord.objects.update(peak_total=8 << 20)  # this model needs less than the factory's memory records say
    LogChunk.objects.create(attempt=attempt, rank=0, start=0, end=14, data=b"<the last line>"[:14])
    Attempt.objects.filter(pk=attempt.pk).update(report={"rank": 0, "traceback": "Boom <b>"})
    factory.end(run, State.FAILED, detail="rank 0 raised Boom", cause="user_code")
    text = reader.get(f"/runs/{run.pk}/report/").content.decode()
    assert "What would fix it:" in text and "change what the traceback names" in text
    assert "<pre>&lt;the last line</pre>" in text
    assert "<pre>Boom &lt;b&gt;</pre>" in text
    assert "Nothing wrong found" not in text
    assert "The rules find nothing wrong with the steps before it ended" in text


def test_where_not_all_rules_were_applied_the_report_says_how_many(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2})
    MemoryRecord.objects.update(peak_total=8 << 20)
    page, report = (reader.get(f"/runs/{run.pk}/{part}").content.decode() for part in ("", "report/"))
    said = re.search(r"Nothing wrong found; checked \d+ of \d+ rules: [^<]+", page)
    assert said and said[0].strip() in report
