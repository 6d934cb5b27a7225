"""Where the time of generated text goes, on the pages of its runs and studies; and which times are not compared."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from dashboard.charts import generation as charts
from dashboard.runs.models import State
from dashboard.studies import reruns
from dashboard.studies.generating import generation
from dashboard.studies.models import Study
from dashboard.studies.overview import answer_cache
from parallel_core.analysis.stats import Stats
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.study_charts import charts_of
from tests.dashboard.text_studies import MIB, TEXTS, finish, finish_all, run_of, verdict

pytestmark = pytest.mark.django_db


def test_charts_say_where_a_token_and_a_text_go(client: Client, study: Study) -> None:
    finish_all(study)
    charts = charts_of(client, study)
    assert charts["where"]["title"] == "Communication takes 25 % of a token on TP 2, the most; 0 % on DP 2."
    assert {row[0]: row[1:] for row in charts["where"]["rows"]} == {
        "TP 2": ["750 µs", "250 µs", "0 ns", "1.00 ms", "25 %"],
        "DP 2": ["1.60 ms", "0 ns", "0 ns", "1.60 ms", "0 %"],
        "Single": ["2.00 ms", "0 ns", "0 ns", "2.00 ms", "0 %"],
        "PP 2": ["2.70 ms", "0 ns", "300 µs", "3.00 ms", "10 %"],
    }
    assert charts["prefill"]["title"] == "TP 2 has its whole text after 17 ms; 59 % of it is prefill."
    assert charts["prefill"]["rows"][0] == ["TP 2", "10.0 ms", "7.00 ms", "17.0 ms", "59 %", "800 tokens/s"]
    for key, names in (
        ("where", ["compute", "tensor collectives", "between stages"]),
        ("prefill", ["prefill", "later tokens"]),
    ):
        figure = charts[key]["figure"]
        assert figure["layout"]["showlegend"], "nothing else on the page names the colours"
        assert [trace["name"] for trace in figure["data"]] == names
    assert charts["positions"]["title"] == "No text is long enough to see whether its tokens take longer."
    own = [row for row in charts["positions"]["rows"] if row[0] == "PP 2"]
    assert [row[1] for row in own] == [str(n) for n in range(6, 13)], "a prompt of 4, then the prefill's token"


def test_runs_of_an_earlier_version_say_that_parts_were_not_measured(client: Client, study: Study) -> None:
    finish_all(study)
    for run in study.runs.all():
        for name in ("parts", "positions"):
            del run.summary["generation"][name]
        del run.summary["cpu_others"]
        run.save()
    charts = charts_of(client, study)
    assert charts["where"]["title"] == "Where a token goes was not measured by these runs."
    assert (
        verdict(client, study)[0]
        == "TP 2 is fastest: 2 k tokens/s at the median token, 2.00x (2.00x to 2.00x) the single device."
    )


def test_times_of_a_disturbed_run_are_left_out_but_not_its_text(client: Client, study: Study, alice: Any) -> None:
    finish(run_of(study, "Single"), 2e-3, 9 * MIB, others=0.02)
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB, others=0.31)
    finish(run_of(study, "DP 2"), 1.6e-3, 9 * MIB, others=0.0)
    finish(run_of(study, "PP 2"), 3e-3, 9 * MIB, others=0.0)
    said = verdict(client, study)
    assert said[0] == (
        "DP 2 is fastest: 1.25 k tokens/s at the median token, 1.25x (1.25x to 1.25x) the single device; "
        "its 2 replicas share out the texts and exchange nothing."
    )
    assert said[1:4] == [
        "All 4 splits generate the same text.",
        "TP 2 needs least memory, 6 MiB on its worst rank.",
        "TP 2 was disturbed: others used up to 31 % of a device, so their times are left out.",
    ]
    drawn = charts_of(client, study)["tokens"]
    assert [row[0] for row in drawn["rows"]] == ["DP 2", "Single", "PP 2"]
    assert "pattern" not in drawn["figure"]["data"][0]["marker"]
    page = plain(client.get(f"/studies/{study.pk}/").content.decode())
    assert '<br><span class="small sub">disturbed: others used 31 %' in page and "Run the disturbed one again" in page
    rows = csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines())
    assert {row["split"]: row["cpu_others"] for row in rows if row["cpu_others"]} == {
        "Single": "0.02",
        "TP 2": "0.31",
        "DP 2": "0.0",
        "PP 2": "0.0",
    }
    (again,) = reruns.run_again(study=study, user=alice)
    assert again.name == "TP 2"
    finish(again, 1e-3, 6 * MIB, others=0.01)
    assert verdict(client, study)[0].startswith("TP 2 is fastest")


def test_the_reference_of_texts_is_named_where_only_one_split_is_timed(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 2e-3, 9 * MIB, others=0.5)
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB, others=0.0)
    lines = client.get(f"/studies/{study.pk}/").context["lines"]
    assert {line.row.label: line.same for line in lines if line.row.done} == {"Single": "the reference", "TP 2": "yes"}


def test_a_speed_over_the_single_device_of_another_host_is_warned_of(client: Client, study: Study) -> None:
    finish_all(study)
    warned = "TP 2 ran on yard-b, Single on yard-a: their ratio compares the machines, too."
    assert warned not in verdict(client, study)
    attempt = run_of(study, "TP 2").attempts.get()
    attempt.devices = [{**attempt.devices[0], "worker": "yard-b"}]
    attempt.save()
    first, second = verdict(client, study)[:2]
    assert first.startswith("TP 2 is fastest") and second == warned
    cache.clear()
    assert f"{first} {second}" in plain(client.get("/studies/").content.decode())


def test_a_disturbed_single_device_is_no_base(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 2e-3, 9 * MIB, others=0.5)
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB, others=0.0)
    finish(run_of(study, "DP 2"), 1.6e-3, 6 * MIB, others=0.0)
    assert (
        verdict(client, study)[0]
        == "TP 2 is fastest of 2, 2 k tokens/s at the median token; the single device was disturbed."
    )


def test_where_all_were_disturbed_they_are_compared_with_a_warning(client: Client, study: Study) -> None:
    for run in study.runs.all():
        finish(run, 2e-3, 6 * MIB, others=0.4)
    said = verdict(client, study)
    assert len(generation.of_runs(study.runs.all()).compared) == 4
    assert said[0].startswith("4 of 4 runs were disturbed: other processes took up to 40 % of one of their devices")
    assert " ".join(said).count("disturbed") == 1
    drawn = charts_of(client, study)["tokens"]
    assert drawn["figure"]["data"][0]["marker"]["pattern"]["shape"] == ["x"] * 4
    assert drawn["subtitle"].endswith("; cross-hatched = disturbed by other processes")
    listed = answer_cache.verdicts([study])[study.pk]
    assert listed == " ".join(said[:2]), "no ratio stands in the list without the warning about it"


def test_what_a_rank_does_not_know_of_others_nobody_knows(study: Study) -> None:
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB, others=None)
    assert run_of(study, "TP 2").summary["cpu_others"] is None


@pytest.mark.parametrize("slow", [2e-3, 1e-3])
def test_how_much_longer_late_tokens_take_is_said_within_noise_too(client: Client, study: Study, slow: float) -> None:
    run = run_of(study, "Single")
    attempt = factory.start(run)
    late = [1e-3, 1e-3, *[slow] * 8]
    made = {"kind": "generated", "rank": 0, "t": 1.0, "first": 0, "tokens": [[1] * 41] * 2, "prefill": 0.01}
    made |= {"seconds": [1e-3] * 30 + late, "collective": [0.0] * 40, "p2p": [0.0] * 40, "kv_bytes": 8}
    factory.feed(attempt, 0, encode(made))
    factory.end(run, State.SUCCEEDED)
    said = f"Late tokens take {slow / 1e-3:.2f}x the time of early ones, within noise: 1 ms at first, "
    page = plain(client.get(f"/runs/{run.pk}/").content.decode())
    assert said in page


def test_the_page_of_a_run_says_where_its_time_goes(client: Client, study: Study) -> None:
    run = run_of(study, "TP 2")
    attempt = factory.start(run)
    grows = [1e-3 + 2e-5 * n for n in range(40)]
    for rank in range(2):
        made = {"kind": "generated", "rank": rank, "t": 1.0, "first": 0, "tokens": [[1] * 41] * 2, "prefill": 0.01}
        made |= {"seconds": grows, "collective": [2e-4] * 40, "p2p": [0.0] * 40, "kv_bytes": 8}
        told = {"kind": "summary", "rank": rank, "t": 1.0, "cpu_others": 0.2 * rank}
        factory.feed(attempt, rank, encode(made) + encode(told))
    factory.end(run, State.SUCCEEDED)
    page = plain(client.get(f"/runs/{run.pk}/").content.decode())
    assert "Communication takes 14 % of a token." in page
    grown = "ate tokens take 1.55x the time of early ones: 1.09 ms at first, 1.69 ms at the end."
    assert f"L{grown}" in page
    assert charts_of(client, study)["positions"]["title"] == f"On TP 2 l{grown}", "one rule of noise for both pages"
    assert "Other processes used 20 % of one of its devices: read the timing with care." in page
    shown = "of a token, 1.39 ms on average: 200 µs in collectives<"
    assert shown in page.replace("\n", ""), "a share of the mean, and not of the median in the tile of the time"
    assert 'data-chart="positions"' in page and "measured, 40 tokens after the first" in page
    assert "4 prompt tokens, 15 % of the time" in page


def test_the_whole_text_is_there_when_the_last_replica_is(client: Client, study: Study) -> None:
    """That is the second, whose median token is the faster one."""
    run = run_of(study, "DP 2")
    attempt = factory.start(run)
    for rank, seconds in enumerate(([1e-3] * 7, [9e-4] * 6 + [50e-3])):
        made = {"kind": "generated", "rank": rank, "t": 1.0, "first": 0, "tokens": [TEXTS[rank]], "prefill": 0.01}
        factory.feed(attempt, rank, encode({**made, "seconds": seconds, "kv_bytes": 4096}))
    factory.end(run, State.SUCCEEDED)
    (row,) = charts_of(client, study)["prefill"]["rows"]
    assert row[:4] == ["DP 2", "10.0 ms", "55.4 ms", "65.4 ms"]
    assert "first after 10 ms, then 1 ms each (median)" in plain(client.get(f"/runs/{run.pk}/").content.decode())
    assert "15 % of the time" in plain(client.get(f"/runs/{run.pk}/").content.decode())


def test_the_title_over_the_times_of_a_token_says_what_is_noise() -> None:
    """It named the least of times whose whiskers overlap as if that were certain."""

    def bar(label: str, ms: float) -> charts.Bar:
        return charts.Bar(label, 0.01, Stats(ms / 1e3, 0.9 * ms / 1e3, 1.2 * ms / 1e3, ms / 1e3, 15))

    bars = [bar("DP 2", 1.79), bar("Single", 1.65), bar("TP 2", 19.6)]
    assert (
        charts.tokens(bars, "s").title
        == "Single takes 1.65 ms a token, the least; DP 2 is within noise; TP 2 takes most, 19.6 ms."
    )
    assert charts.tokens(bars[:2], "s").title == "Single takes 1.65 ms a token, the least; DP 2 is within noise."
    assert charts.tokens(bars[1:], "s").title == "Single takes 1.65 ms a token, the least; TP 2 takes most, 19.6 ms."
