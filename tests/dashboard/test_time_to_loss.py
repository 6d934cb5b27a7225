"""When runs reach a loss: the loss is none that a single batch happens to have, and pauses between attempts do not
count.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.runs.metrics import series
from dashboard.runs.models import SeriesChunk, State
from dashboard.runs.series_parts import pause
from dashboard.studies import compare, selectors
from dashboard.studies.overview import streams
from parallel_core.analysis.target import LEAST
from parallel_core.observe.records import POINT
from tests.dashboard import factory


def points(begin: int, end: int, first: float, usual: float = 2.0) -> np.ndarray:
    found = np.zeros(end - begin, POINT)
    found["step"] = np.arange(begin, end)
    found["time"] = first + usual * np.arange(end - begin)
    return found


def test_a_later_attempt_goes_on_a_usual_step_after_the_last_valid_point() -> None:
    before = points(0, 30, 100.0)
    later = points(20, 40, 50_000.0)
    assert later["time"][0] - pause(before, later) == before["time"][19] + 2.0
    anew = points(0, 40, 50_000.0)
    assert anew["time"][0] - pause(before, anew) == 100.0, "nothing of the first attempt is valid"
    assert pause(before[:0], later) == pause(before, later[:0]) == 0.0
    assert pause(before[:1], points(1, 2, 50_000.0)) == 49_900.0, "one point tells no usual step"


def test_time_to_loss_takes_the_lowest_loss_that_all_reach(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2}, loss_shift=0.5)
    page = reader.get(f"/compare/?runs={a.pk},{b.pk}")
    reached = {line.label: int(line.step) for line in page.context["reached"].lines}
    assert reached["DP"] == 42
    assert reached["Single"] < 42
    assert "Losses are averaged over 5 steps." in page.content.decode()


def test_the_luckiest_batch_is_not_the_loss_that_a_run_reaches(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    expected = compare.time_to_loss(selectors.overview([a, b])).target
    for chunk in SeriesChunk.objects.filter(attempt__run__in=[a, b], name="loss"):
        points = np.frombuffer(bytes(chunk.data), POINT).copy()
        points["value"][7] = 1.0
        chunk.data = points.tobytes()
        chunk.save()
    found = compare.time_to_loss(selectors.overview([a, b]))
    assert found.target == expected and all(int(line.step) == 42 for line in found.lines)


def test_why_a_run_of_few_losses_has_no_time_to_one(reader: Client, alice: Any) -> None:
    """A mean over fewer losses than those of longer runs would be the luckiest batch; it is said, not left away."""
    short = {"train": {"steps": LEAST - 1, "warmup_steps": 1}}
    a, b, c = factory.finished(alice, {}), factory.finished(alice, {"dp": 2}, **short), factory.finished(alice, {})
    page = reader.get(f"/compare/?runs={a.pk},{b.pk}")
    said = "There is none: losses are averaged over 5 steps, as one batch may be low by chance, and DP has fewer."
    assert page.context["reached"] == compare.Reaches(why_not=said)
    assert f'<h3>Time to a loss</h3><p class="sub small">{said}</p>' in page.content.decode()
    text = reader.get(f"/compare/?runs={a.pk},{c.pk}").content.decode()
    heads = re.findall(r"<th [^>]*>([^<]+)</th>", text[text.index("Time to a loss of") :].partition("</thead>")[0])
    assert heads == ["Run", "Time", "Step", "Samples"]  # a phone shows the first two
    whole = compare.time_to_loss(selectors.overview([a, c]))
    assert whole.lines and not whole.why_not
    enough = factory.finished(alice, {"dp": 2}, train={"steps": LEAST, "warmup_steps": 1})
    assert len(compare.time_to_loss(selectors.overview([a, enough])).lines) == 2


def test_a_run_that_reaches_no_loss_is_said(reader: Client, alice: Any) -> None:
    """Its loss was never finite, so there is none that both reach; no word of it stood on the page."""
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    for run, who in ((b, "DP has"), (a, "DP and Single have")):
        for chunk in SeriesChunk.objects.filter(attempt__run=run, name="loss"):
            points = np.frombuffer(bytes(chunk.data), POINT).copy()
            points["value"] = np.nan
            chunk.data = points.tobytes()
            chunk.save()
        page = reader.get(f"/compare/?runs={a.pk},{b.pk}")
        said = f"There is none that all of these runs reach: {who} no finite loss over 5 steps."
        assert page.context["reached"] == compare.Reaches(why_not=said) and said in page.content.decode()


def test_the_night_between_two_attempts_is_no_time_to_a_loss(reader: Client, alice: Any) -> None:
    """The second attempt goes on from step 20, and the first had trained more."""
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    before = compare.time_to_loss(selectors.overview([a, b]))
    again = factory.start(b)
    for chunk in SeriesChunk.objects.filter(attempt__run=b, name__in=("loss", "step_time")):
        points = np.frombuffer(bytes(chunk.data), POINT)[20:].copy()
        points["time"] += 50_000
        chunk.pk, chunk.attempt, chunk.first_step, chunk.data = None, again, 20, points.tobytes()
        chunk.save()
    b.refresh_from_db()
    factory.end(b, State.SUCCEEDED)
    page = reader.get(f"/compare/?runs={a.pk},{b.pk}")
    assert [line.seconds for line in page.context["reached"].lines] == [line.seconds for line in before.lines]
    for key in ("loss", "steps"):
        chart = page.context["charts"][key]
        seconds = [x for line in chart.figure["layout"]["meta"]["axes"]["seconds"] for x in line if x is not None]
        assert min(seconds) >= 0 and max(seconds) < 1_000, key
        assert "the time between attempts is left out" in chart.source
    assert page.content.decode().count("averaged over 5 steps; the time between attempts is left out.") == 1


def test_work_between_the_steps_is_no_time_to_a_loss(reader: Client, alice: Any) -> None:
    """The clock counts it: of these runs, one did as much between its steps as in them."""
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    before = streams.race(selectors.overview([a, b])).reaches[b.pk]
    for chunk in SeriesChunk.objects.filter(attempt__run=b, name="loss"):
        points = np.frombuffer(bytes(chunk.data), POINT).copy()
        points["time"] = points["time"][0] + 2 * (points["time"] - points["time"][0])
        chunk.data = points.tobytes()
        chunk.save()
    after = streams.race(selectors.overview([a, b])).reaches[b.pk]
    assert after.step == before.step and after.seconds == before.seconds
    times = series(b, "step_time")
    assert after.step is not None and times.step[0] == 0
    assert after.seconds == pytest.approx(float(times.value[1 : after.step + 1].sum()))
    assert compare.TIMES in reader.get(f"/compare/?runs={a.pk},{b.pk}").content.decode()
