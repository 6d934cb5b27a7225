"""What a study says about changes in the speed of the host, and about devices that slow each other down."""

from __future__ import annotations

import csv
import html
import io
from typing import Any

import pytest
from django.test import Client

from dashboard.studies.models import Study
from dashboard.studies.overview import figures, method
from dashboard.studies.selectors import overview
from parallel_core.analysis.host_drift import POWER
from parallel_core.analysis.quantities import ratio_text
from tests.dashboard import factory
from tests.dashboard.plain import plain


def test_a_host_that_drifted_between_runs_is_warned_of(reader: Client, alice: Any) -> None:
    """Compares runs with equally many ranks, if none measured the slowdown by company: a device next to busy ones is
    slower anyway.
    """
    made = Study.objects.create(name="Drift", owner=alice)
    factory.finished(alice, {}, study=made, reference=0.009)
    factory.finished(alice, {"dp": 2}, study=made, position=1, reference=0.0025)
    assert overview(made.runs.all()).pace_spread is None
    factory.finished(alice, {"tp": 2}, study=made, position=2, reference=0.0030)
    view = overview(made.runs.all())
    assert view.verdict[-1].startswith("The host's own pace differed by up to 20 % between runs: smaller gains")
    assert "The host's own pace differed" in html.unescape(plain(reader.get(f"/studies/{made.pk}/").content.decode()))
    (line,) = [line.text for line in method.of_overview(view, []) if line.term == "Pace"]
    assert line.startswith(
        "A fixed small computation between the timed steps of 3 of 3 runs took a device up to 20 % longer"
    )
    run = made.runs.get(position=2)
    run.summary["references"] = [0.00251, 0.00251]
    run.save(update_fields=("summary",))
    (line,) = [line.text for line in method.of_overview(overview(made.runs.all()), []) if line.term == "Pace"]
    assert " of 3 of 3 runs took a device less than 1 % longer in one run" in line
    made.runs.filter(position=2).update(summary={})
    assert not any("pace" in sentence for sentence in overview(made.runs.all()).verdict)


def test_speedups_are_told_at_one_pace_where_the_host_had_another(reader: Client, alice: Any) -> None:
    """The baseline ran while the host was fast; for the DP run, the reference work took 1.8 times as long."""
    made = Study.objects.create(name="Two paces", owner=alice)
    factory.finished(alice, {}, study=made, reference=0.002)
    factory.finished(alice, {"dp": 2}, study=made, position=1, reference=0.0036, company=1.0)
    factory.finished(alice, {"tp": 2}, study=made, position=2, reference=0.0021, company=1.02)
    factory.finished(alice, {"pp": 2}, study=made, position=3, reference=0.0020, company=1.01)
    view = overview(made.runs.all())
    entries = {entry.label: entry for entry in view.entries}
    dp, factor = entries["DP"], (0.0036 / 1.01 / 0.002) ** POWER
    assert dp.speed and dp.at_pace
    assert dp.at_pace == pytest.approx(dp.speed.ratio * factor) and factor > 1.4
    assert entries["Single"].at_pace is None and entries["TP"].at_pace is None, (
        "within the precision of the reference work"
    )
    table = reader.get(f"/studies/{made.pk}/").content.decode().split('id="table"')[1]
    assert f"about {ratio_text(dp.at_pace)}<br>at one pace" in table, "in one line it takes the width of the names"
    sentence = f"pace DP would be fastest, about {ratio_text(dp.at_pace)}."
    assert view.verdict[-1].endswith(sentence)
    made_chart = figures.speedups(view)
    (diamonds,) = [trace for trace in made_chart.figure["data"] if trace.get("name") == "at the baseline's pace"]
    assert diamonds["x"] == [dp.at_pace] and made_chart.subtitle.endswith(
        "diamond = at the baseline's pace of the host"
    )
    (words,) = [trace for trace in made_chart.figure["data"] if trace.get("mode") == "text"]
    begins = words["x"][words["y"].index(*diamonds["y"])]
    low, high = made_chart.figure["layout"]["xaxis"]["range"]
    pixels = (begins - dp.at_pace) / (high - low) * 200
    assert pixels > diamonds["marker"]["size"] / 2 + 2, "behind the whole diamond, also on a phone's axis"
    at = made_chart.columns.index("at the baseline's pace")
    assert sorted(row[at] for row in made_chart.rows) == ["", "", "", ratio_text(dp.at_pace)]
    page = html.unescape(plain(reader.get(f"/studies/{made.pk}/").content.decode()))
    assert sentence in page
    told = list(csv.DictReader(io.StringIO(reader.get(f"/studies/{made.pk}/table.csv").content.decode())))
    assert [row["company"] for row in told] == [str(e.pace.company or "") for e in view.entries if e.pace]
    alone = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in made.runs.order_by('position')[:2])}")
    assert "own pace" not in alone.content.decode(), "what a single run measured about company may be chance"
    assert [float(row["speedup_at_baseline_pace"]) for row in told if row["label"] == "DP"] == [dp.at_pace]


def test_none_is_called_fastest_at_one_pace_where_the_pace_of_a_run_is_not_known(alice: Any) -> None:
    """DP was called so by its speedup as measured: what two devices at work cost each other was not measured, so that
    the pace of the host is not known of it.
    """
    made = Study.objects.create(name="Unknown pace", owner=alice)
    factory.finished(alice, {}, study=made, reference=0.002)
    factory.finished(alice, {"micro_batches": 4}, study=made, position=1, reference=0.0036)
    factory.finished(alice, {"dp": 2}, study=made, position=2, reference=0.0021)
    view = overview(made.runs.all())
    assert [bool(entry.at_pace) for entry in sorted(view.entries, key=lambda e: e.label)] == [False, False, True]
    assert view.verdict[-1].startswith("The host's own pace differed by up to 80 % between runs: smaller gains")


def test_devices_that_hold_each_other_up_are_told_with_the_speedup_that_is_left(alice: Any) -> None:
    """As with two hyperthreads of one core: the slowdown is not a change in the host's speed."""
    made = Study.objects.create(name="Halves", owner=alice)
    factory.finished(alice, {}, study=made, reference=0.002)
    for position, split in enumerate(({"dp": 2}, {"tp": 2}, {"pp": 2}), 1):
        factory.finished(alice, split, study=made, position=position, reference=0.0034, company=1.7)
    view = overview(made.runs.all())
    assert view.pace_spread == pytest.approx(0.0, abs=1e-9) and all(entry.at_pace is None for entry in view.entries)
    assert view.verdict[-1] == (
        "With both devices at work each took 1.70x as long as alone: splits over them get to about 1.18x at most."
    )
    (line,) = [line.text for line in method.of_overview(view, []) if line.term == "Pace"]
    assert line.endswith("With both devices at work each took 1.70x as long as alone.")


def test_a_run_tells_what_the_work_took_on_each_rank(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2}, reference=0.002, company=1.03)
    run.summary["references"] = [0.002, 0.0025]
    run.save(update_fields=("summary",))
    page = html.unescape(plain(reader.get(f"/runs/{run.pk}/?tab=ranks").content.decode()))
    assert "It took rank 1 longest, 1.25x as long as the quickest." in page
    assert "With both devices at work each took 1.03x as long as alone." in page
    assert "2.00 ms" in page and "2.50 ms" in page and "Reference work</th>" in page
    bare = factory.finished(alice, {"dp": 2})
    assert "Reference work" not in reader.get(f"/runs/{bare.pk}/?tab=ranks").content.decode()
