"""Utilisation and the shares of a step on the run's page, in a study's table and in the API."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.ledger.models import Prediction
from dashboard.runs import selectors
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.page import metric_charts, tiles
from dashboard.runs.page.metric_rows import metrics_of
from dashboard.runs.page.tabs import equal_sentence
from dashboard.runs.page.verdict import verdict
from dashboard.studies.overview.peaks import over_one_peak
from dashboard.studies.selectors import overview
from dashboard.studies.table import METERS
from parallel_core.analysis.meters import Work
from parallel_core.analysis.quantities import rate_text, seconds_text, significant
from parallel_core.observe.record_files import encode
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame, spans_frame, waits_frame

pytestmark = pytest.mark.django_db


def test_summary_has_the_meters_of_the_median_step(alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2, "recompute": "full"})
    meters, median = run.summary["meters"], run.summary["timed"]["median"]
    expected = Work.of(RunSpec.model_validate(run.spec)).speeds(median, 2 * factory.PEAK)
    assert {name: meters[name] for name in expected} == expected
    assert meters["hfu"] > meters["mfu"] > 0


def test_a_traced_step_has_its_shares(alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "schedule": "naive"})
    found = selectors.series(run, "bubble_share")
    parts = selectors.breakdown(run, int(found.step[0]))
    assert found.value.tolist() == [pytest.approx(sum(p.share("bubble") for p in parts.values()) / 2, rel=1e-6)]
    assert found.value[0] > 0.3


def test_share_charts_say_in_which_steps_they_are_measured(alice: Any) -> None:
    """A run of an engine that sent the spans of traced steps only keeps its words, and its points."""
    run, keys = factory.finished(alice, {"pp": 2}), ("bubble_share", "exposed_share", "recompute_share")
    old = {chart.key: chart.source for chart in metric_charts.metrics(run)}
    assert all("in every traced step from" in old[key] and "1 of 1 points" in old[key] for key in keys)
    said = {"kind": "hello", "rank": 0, "t": 1.0, "waits": True}
    for steps, ended, words in (
        (range(42), False, "every step"),
        (range(42), True, "42 of 43 steps"),
        (range(20, 42), False, "22 of 42 steps"),
        (range(7, 43, 8), False, "5 of 40 steps (one in 8: each has over 4096 spans)"),
    ):
        run = factory.queued(alice, {"pp": 2})
        attempt = factory.start(run)
        factory.feed_steps(attempt, 10)
        factory.feed(attempt, 0, points_frame(10, 33, "step_time") + encode(said) + waits_frame(steps))
        factory.feed(attempt, 1, waits_frame(steps, rank=1, late=100))
        if ended:
            factory.end(run, State.SUCCEEDED)
        new = {chart.key: chart.source for chart in metric_charts.metrics(run)}
        assert all(f"measured in {words} from the spans of all ranks" in new[key] for key in keys)
        assert not any("traced" in source for source in new.values())


@pytest.mark.parametrize(
    ("shared", "traced", "words"),
    [
        ([3, 7, 10, 11, 15, 19, 20, 23, 27, 30, 31, 35, 39], [10, 20, 30], "(one in 4: each has over 2048 spans)"),
        ([7, 10, 15, 20, 23, 30, 31, 39], [10, 20, 30], "(one in 8: each has over 4096 spans)"),
        ([10, 15, 20, 30], [10, 20, 30], ""),
        ([3, 7, 12, 15, 39], [10, 20, 30], ""),
        ([10, 20, 30], [10, 20, 30], ""),
    ],
    ids=["every 4th", "every 8th", "one of them is no rule", "one was lost", "traced ones alone"],
)
def test_traced_steps_among_the_shares_do_not_change_their_stride(
    alice: Any, shared: list[int], traced: list[int], words: str
) -> None:
    run = factory.queued(alice, {"pp": 2})
    attempt = factory.start(run)
    hello = encode({"kind": "hello", "rank": 0, "t": 1.0, "waits": True})
    factory.feed(attempt, 0, hello + points_frame(0, 40, "step_time"))
    for rank in (0, 1):
        spans = b"".join(spans_frame(step, rank=rank, waits=True) for step in traced)
        factory.feed(attempt, rank, spans + waits_frame(shared, rank=rank))
    said = next(metric.measured for metric in metrics_of(run) if metric.name == "bubble_share")
    number = max(shared) + 1
    assert f"measured in {len(shared)} of {number} steps{words and f' {words}'} from" in said


def test_metrics_say_where_they_are_measured(alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2})
    charts = {chart.key: chart for chart in metric_charts.metrics(run)}
    assert "Chowdhery et al. 2022" in charts["mfu"].source
    assert "spans of all ranks" in charts["bubble_share"].source
    assert " GFLOP/s at step 42" in charts["tflops"].title  # on CPU cores
    utilisation = selectors.series(run, "mfu").value[-1]
    assert charts["mfu"].title.startswith(f"Model FLOPs utilisation (MFU): {significant(100 * utilisation)} % at step")
    assert metric_charts.points_since(run, 41)["mfu"]["value"] == [pytest.approx(100 * utilisation)]
    assert all(not charts[name].empty for name in ("mfu", "hfu", "tflops", "bubble_share", "exposed_share"))


def test_tile_study_table_and_csv(alice: Any, client: Client) -> None:
    client.force_login(alice)
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    run = study.runs.all()[0]
    throughput = next(tile for tile in tiles.tiles(run) if tile.key == "tokens_per_s")
    assert throughput.note.startswith("MFU ")
    run.refresh_from_db()
    assert run.tokens_per_s and run.step_time
    assert run.tokens_per_s == pytest.approx(run.summary["meters"]["tokens_per_s"])
    assert run.tokens_per_s * run.step_time == pytest.approx(RunSpec.model_validate(run.spec).tokens_per_step)
    listed = client.get(reverse("runs:list")).content.decode()
    assert throughput.value == rate_text(run.tokens_per_s) and rate_text(run.tokens_per_s, zeros=True) in listed
    median = step_tile(run)
    assert median.value == seconds_text(run.step_time) and f"{median.value} a step" in verdict(run).sentence
    page = client.get(reverse("studies:page", args=[study.pk])).content.decode()
    assert ">MFU</a></th>" in page
    text = client.get(reverse("studies:csv", args=[study.pk])).content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert all(float(row[name]) > 0 for row in rows for name in METERS)


def step_tile(run: Run) -> tiles.Tile:
    return next(tile for tile in tiles.tiles(run) if tile.key == "step_time")


def test_the_step_time_stands_beside_its_prediction(alice: Any, client: Client) -> None:
    run = factory.queued(alice)
    assert step_tile(run).note == "" and step_tile(run).outline is None, "no profile, so no prediction"
    Prediction.objects.filter(run=run).update(seconds=0.083, low_seconds=0.08, high_seconds=0.09, earlier=0)
    waiting = step_tile(run)
    assert waiting.note == "predicted 83 ms (eight of ten such runs: 80 ms to 90 ms)"
    assert waiting.value == "–" and waiting.outline == tiles.WIDTH and waiting.level is None
    factory.feed_steps(factory.start(run), 20)
    measured = selectors.timed(run)
    assert measured is not None
    Prediction.objects.filter(run=run).update(seconds=1.04 * measured.median)
    running = step_tile(run)
    assert f"(n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{measured.n})" in running.note, "one word, in one line"
    assert running.note.endswith(f", predicted {seconds_text(1.04 * measured.median)}, 4 % too high")
    assert running.points and running.outline is None and running.level is not None
    assert 0 <= running.level < min(float(pair.split(",")[1]) for pair in running.points.split()[-5:])
    client.force_login(alice)
    page = client.get(reverse("runs:page", args=[run.pk])).content.decode()
    assert f'd="M0 {running.level:.1f}H120"' in page


def test_where_others_used_its_devices_no_prediction_is_called_wrong(alice: Any) -> None:
    run = factory.finished(alice)
    Prediction.objects.filter(run=run).update(seconds=0.01)
    assert step_tile(run).note.endswith("% too low")
    Prediction.objects.filter(run=run).update(disturbed=True)
    assert step_tile(run).note.endswith("predicted 10 ms")


def with_peak(run: Run, flops_per_s: float) -> Run:
    """Sets the peak that the run measured for each of its devices."""
    meters, peak = run.summary["meters"], flops_per_s * run.devices
    scale = meters["peak_flops_per_s"] / peak
    source = {"peak_flops_per_s": peak, "peak_source": "fp32 matrix product, measured"}
    run.summary["meters"] = {**meters, "mfu": meters["mfu"] * scale, "hfu": meters["hfu"] * scale, **source}
    run.save(update_fields=("summary",))
    return run


def test_compared_runs_are_held_against_one_peak(alice: Any, client: Client) -> None:
    """The same step must get the same utilisation although one run measured a lower peak, and the page names the common
    peak.
    """
    runs = [with_peak(factory.finished(alice), peak) for peak in (80e9, 100e9)]
    own = [run.summary["meters"]["mfu"] for run in runs]
    assert own[0] == pytest.approx(1.25 * own[1], rel=0.05)
    both = overview(runs, runs[0])
    shared = {row.run.pk: row.meters["mfu"] for row in both.rows}
    assert shared[runs[0].pk] == pytest.approx(own[0] * 0.8) and shared[runs[1].pk] == pytest.approx(own[1])
    assert both.peak_sentence == (
        "MFU and HFU are over 100 GFLOP/s a device, the highest that these runs measured (80 GFLOP/s to 100 GFLOP/s); "
        "a run's own page uses its own."
    )
    client.force_login(alice)
    page = client.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").content.decode()
    assert both.peak_sentence in page.replace("&#x27;", "'")


def test_ranks_that_share_cores_have_the_peak_of_those_cores(alice: Any) -> None:
    """Four ranks on two cores, next to one rank on one: the peak of a core is not taken four times."""
    one, four = with_peak(factory.finished(alice), 100e9), with_peak(factory.finished(alice, {"dp": 4}), 80e9)
    meters = four.summary["meters"]
    four.summary["meters"] = {**meters, "peak_flops_per_s": 2 * 80e9, "mfu": 0.4, "hfu": 0.4, "peak_devices": 2}
    found = over_one_peak([one, four])[four.pk]
    assert found["peak_flops_per_s"] == pytest.approx(2 * 100e9) and found["mfu"] == pytest.approx(0.4 * 0.8)
    four.save(update_fields=("summary",))
    both = overview([one, four], one)
    assert (
        "100 GFLOP/s a device, the highest that these runs measured (80 GFLOP/s to 100 GFLOP/s)" in both.peak_sentence
    )


def test_hosts_and_ways_of_measuring_keep_their_own_peak(alice: Any) -> None:
    near, far = (with_peak(factory.finished(alice), peak) for peak in (80e9, 100e9))
    node = {"worker": "yard-b", "devices": [0], "first_rank": 0, "address": ""}
    Attempt.objects.filter(run=far).update(devices=[node])
    assert over_one_peak([near, far])[near.pk]["mfu"] == near.summary["meters"]["mfu"]
    both = overview([near, far], near)
    assert "80 GFLOP/s or 100 GFLOP/s a device, the highest measured on the same hosts" in both.peak_sentence
    half = with_peak(factory.finished(alice), 900e9)
    half.summary["meters"]["peak_source"] = "bf16 matrix product, measured"
    mixed = overview([near, half], near).peak_sentence
    assert mixed.startswith("MFU and HFU are over 80 GFLOP/s (fp32) or 900 GFLOP/s (bf16) a device, the highest")
    assert "80 GFLOP/s to" not in mixed, "no range across two precisions"
    listed = factory.finished(alice)
    listed.summary["meters"]["peak_source"] = "the catalogue"
    assert over_one_peak([near, listed])[listed.pk] == listed.summary["meters"]
    assert overview([listed], listed).peak_sentence == ""


def test_the_ranks_tab_says_that_replicas_were_equal(alice: Any, client: Client) -> None:
    client.force_login(alice)
    run = factory.finished(alice, {"dp": 2})
    page = client.get(reverse("runs:page", args=[run.pk]) + "?tab=ranks").content.decode()
    assert "3 checks, 400 µs each (under 1 % of the steps): all replicas equal bit for bit." in page
    assert "Parameters after step 42: 0123456789abcdef." in page
    alone = client.get(reverse("runs:page", args=[factory.finished(alice).pk]) + "?tab=ranks").content.decode()
    assert "one rank, which has no replica. Parameters after step 42" in alone


NONE_TWICE = "no two ranks hold the same parameters"


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"pp": 2, "schedule": "1f1b", "micro_batches": 4}, f"{NONE_TWICE}, so none were compared."),
        ({"dp": 2, "zero": 3}, f"{NONE_TWICE} under ZeRO-3, so none were compared."),
        ({"tp": 2}, "what several ranks hold is equal bit for bit, and there are no replicas to compare."),
        ({"dp": 2, "zero": 2}, "all replicas equal bit for bit."),
    ],
)
def test_only_what_was_compared_is_called_equal(alice: Any, split: dict[str, Any], said: str) -> None:
    assert f": {said} Parameters after" in equal_sentence(factory.finished(alice, split))


def test_the_cost_of_checks_is_over_the_steps_that_they_covered(alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2})
    median = run.summary["timed"]["median"]
    run.summary["fingerprint"] |= {"step": 2, "checks": 1, "seconds": 0.3 * median}
    assert "(10 % of the steps)" in equal_sentence(run), "3 steps, not the 20 after which the next check is due"
    run.attempts.update(begins={"step": 2})
    said = equal_sentence(run)
    assert "(30 % of the steps)" in said, "this attempt trained one of them"
    assert said.startswith("1 check since step 2, "), "an earlier attempt had its own, which are not counted"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.4, "0.4 images/s"), (1.5, "1.5 images/s"), (999.4, "999 images/s"), (18_200, "18.2 k images/s")],
)
def test_low_rates_are_not_rounded_to_whole_numbers(rate: float, text: str) -> None:
    assert rate_text(rate, "images") == text


def test_titles_of_metrics_are_numbers_as_people_read_them(alice: Any) -> None:
    """No exponents, and the unit next to the number, as everywhere else."""
    run = factory.finished(alice, {"pp": 2})
    charts = {chart.key: chart for chart in metric_charts.metrics(run)}
    newest = selectors.series(run, "step_time").value[-1]
    assert charts["step_time"].title.startswith(f"Step time: {seconds_text(newest)} at step 42, first ")
    assert " k tokens/s at step 42" in charts["tokens_per_s"].title
    assert not [chart.title for chart in charts.values() if re.search(r"\de[+-]\d", chart.title)]
    shares = [chart for key, chart in charts.items() if key.endswith("_share")]
    assert shares and all(chart.figure["layout"]["yaxis"]["rangemode"] == "tozero" for chart in shares)
    live = metric_charts.points_since(run, 41)["step_time"]
    assert live["title"] == charts["step_time"].title
    assert live["value"] == [pytest.approx(1e3 * newest)]
