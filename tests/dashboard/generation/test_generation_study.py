"""The page of a study of text generation: what it says of every state."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from django.test import Client

from dashboard.api.models import Scope
from dashboard.runs import removal
from dashboard.runs.generation.generating import Split
from dashboard.runs.models import Run, State
from dashboard.studies.generating import generation, generation_views
from dashboard.studies.models import Study
from parallel_core.analysis.generated import first_difference
from parallel_core.analysis.stats import Stats
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.study_charts import charts_of
from tests.dashboard.test_api import bearer
from tests.dashboard.text_studies import MIB, NAMES, TEXTS, finish, finish_all, run_of, verdict

pytestmark = pytest.mark.django_db
TRAINING_WORDS = ("Loss", "MFU", "ubble", "ideal", "Speedup", "Recompute", "Gantt")
"""What means nothing where nothing is trained."""
CHARTS = {"tokens", "where", "prefill", "positions"}


def test_the_first_difference_names_text_and_token() -> None:
    assert first_difference(TEXTS, [list(text) for text in TEXTS]) is None
    assert first_difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == (1, 1)
    assert first_difference([[1, 2]], [[1]]) == (0, 1)
    assert first_difference([[1], [2]], [[1]]) == (1, 0)


def test_no_split_of_a_text_is_known_before_one_has_run(client: Client, study: Study) -> None:
    assert verdict(client, study) == ["0 of 4 runs generated text so far."]
    page = plain(client.get(f"/studies/{study.pk}/").content.decode())
    assert "0 splits have generated text so far." in page and "Cancel the rest…" in page
    assert "the likeliest token each time" in page and "from step 20 of" in page
    assert [line.row.label for line in client.get(f"/studies/{study.pk}/").context["lines"]] == NAMES


def test_the_answer_is_the_first_sentence(client: Client, study: Study) -> None:
    finish_all(study)
    assert verdict(client, study) == [
        "TP 2 is fastest: 2 k tokens/s at the median token, 2.00x (2.00x to 2.00x) the single device; "
        "each rank computes 1/2 of a layer, and communication takes 25 % of a token.",
        "All 4 splits generate the same text.",
        "PP 2 needs least memory, 5 MiB on its worst rank.",
    ]
    page = plain(client.get(f"/studies/{study.pk}/").content.decode())
    for word in TRAINING_WORDS:
        assert word not in page.partition("<main")[2], word
    assert "941 overall" in page
    charts = charts_of(client, study)
    assert [row[:2] for row in charts["tokens"]["rows"]] == [
        ["TP 2", "1.00 ms"],
        ["DP 2", "1.60 ms"],
        ["Single", "2.00 ms"],
        ["PP 2", "3.00 ms"],
    ]
    assert charts["tokens"]["source"] == "measured, 7 tokens after the first, 4 of 4 splits"
    assert verdict(client, study)[0] in plain(client.get("/studies/").content.decode())


def test_the_csv_has_every_run(client: Client, study: Study) -> None:
    finish_all(study)
    rows = list(csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()))
    assert [(row["split"], row["replicas"], float(row["tokens_per_s"])) for row in rows] == [
        ("TP 2", "1", 2000.0),
        ("DP 2", "2", 1250.0),
        ("Single", "1", 1000.0),
        ("PP 2", "1", pytest.approx(2000 / 3)),
    ]
    took = [10e-3 + 7e-3, 10e-3 + 7 * 1.6e-3, 10e-3 + 14e-3, 10e-3 + 21e-3]  # two texts of 8 tokens
    assert [float(row["overall_tokens_per_s"]) for row in rows] == pytest.approx([16 / seconds for seconds in took])
    assert [float(row["text_s"]) for row in rows] == pytest.approx(took)
    assert [int(row["peak_bytes"]) // MIB for row in rows] == [6, 9, 9, 5]
    assert {row["same_text"] for row in rows} == {"True"} and {row["kv_bytes"] for row in rows} == {"4096"}
    assert all(int(row["predicted_peak_bytes"]) > 0 for row in rows)


def test_a_text_that_differs_is_named_and_not_explained_away(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 2e-3, 9 * MIB)
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB, [TEXTS[0], list(b"max(ys):")])
    finish(run_of(study, "DP 2"), 1e-3, 6 * MIB)
    said = verdict(client, study)
    assert said[1:] == [
        "TP 2 (from token 5 of text 2 on) does not generate the text of the single device.",
        "TP 2 and DP 2 need least memory, 6 MiB on their worst ranks.",
        "3 of 4 runs have generated their text so far.",
    ]
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "no, from token 5 of text 2 on" in page and "rounding" not in page
    row = next(csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()))
    assert row["split"] in ("TP 2", "DP 2")


def test_a_single_device_that_nothing_beats_is_said_to_be_fastest(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 1e-3, 6 * MIB)
    assert verdict(client, study)[:2] == [
        "Single alone has a result so far: 2 k tokens/s at the median token.",
        "Its worst rank needs 6 MiB.",
    ]
    finish(run_of(study, "TP 2"), 2e-3, 6 * MIB)
    finish(run_of(study, "PP 2"), 3e-3, 6 * MIB)
    said = verdict(client, study)
    assert said[0] == (
        "No split is faster than the single device, 2 k tokens/s at the median token: "
        "TP 2 reaches 0.50x (0.50x to 0.50x) of it; "
        "communication takes 25 % of a token."
    )
    assert "Each needs 6 MiB on its worst rank." in said


def test_replicas_of_unlike_loads_are_compared_by_all_their_texts(study: Study) -> None:
    """Two texts at 2 ms on one replica and one at 1 ms on the other are 2 k tokens/s, not 3 texts at 2 ms."""
    row = generation.Row(
        run_of(study, "DP 2"), "DP 2", Split(dp=2), token=Stats(2e-3, 1e-3, 4e-3, 2e-3, 7), rate=2000.0
    )
    assert row.each == Stats(5e-4, 2.5e-4, 1e-3, 5e-4, 7)


def test_all_that_need_least_memory_are_named(client: Client, study: Study) -> None:
    for name, peak in (("Single", 9 * MIB), ("TP 2", 5 * MIB), ("PP 2", 5 * MIB + 1)):
        finish(run_of(study, name), 2e-3, peak)
    assert "TP 2 and PP 2 need least memory, 5 MiB on their worst ranks." in verdict(client, study)


def test_within_noise_is_said(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 2e-3, 6 * MIB)
    finish(run_of(study, "TP 2"), 1.9e-3, 6 * MIB)
    run = run_of(study, "TP 2")
    run.summary["generation"]["token"]["p90"] = 2.2e-3
    run.save()
    assert verdict(client, study)[0].startswith(
        "TP 2 is fastest, but within noise: 1.05 k tokens/s at the median token, 1.05x (0.91x"
    )
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert '1.05x<br><span class="sub small">within noise</span>' in page, "in a line of its own, for the last column"
    run.summary["generation"]["token"]["n"] = 1
    run.save()
    said = verdict(client, study)[0]
    assert said.startswith(
        "TP 2 is fastest, but within noise (1 token): 1.05 k tokens/s at the median token, 1.05x the single device"
    )
    assert "within noise (1 token)</span>" in client.get(f"/studies/{study.pk}/").content.decode()


def test_without_the_single_device_nothing_is_compared_with_it(client: Client, study: Study) -> None:
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB)
    finish(run_of(study, "PP 2"), 2e-3, 5 * MIB)
    assert "the single device has no result yet." in verdict(client, study)[0]
    factory.start(run_of(study, "Single"))
    factory.end(run_of(study, "Single"), State.FAILED, "Rank 0 ran out of memory: weights", "out_of_memory")
    said = verdict(client, study)
    assert said[0] == "TP 2 is fastest of 2, 2 k tokens/s at the median token; the single device has no result."
    assert "Single failed and is left out: Rank 0 ran out of memory: weights." in said
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "Rank 0 ran out of memory: weights" in page and 'data-state="failed"' in page


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_study_of_which_nothing_is_left_says_so(client: Client, study: Study, state: State) -> None:
    for run in study.runs.all():
        factory.start(run)
        factory.end(run, state, "It ended.")
    said = verdict(client, study)
    assert said[0] == "0 of 4 runs generated text." and "4 runs are left out" in said[1]
    titles = {chart["title"] for chart in charts_of(client, study).values()}
    assert titles == {"0 splits have generated text."}
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert ("Run the 4 cancelled" in page) == (state == State.CANCELLED) and "Cancel the rest" not in page
    assert "0 of 4 runs generated text." in client.get("/studies/").content.decode()


def test_a_run_that_goes_on_counts_as_open_and_what_it_made_so_far_is_not_compared(
    client: Client, study: Study
) -> None:
    attempt = factory.start(run_of(study, "Single"))
    made = {"kind": "generated", "rank": 0, "t": 1.0, "first": 0, "tokens": [[1, 2]] * 2, "prefill": 0.01}
    factory.feed(attempt, 0, encode({**made, "seconds": [0.001], "kv_bytes": 8}))
    assert verdict(client, study) == ["0 of 4 runs generated text so far."]
    factory.end(run_of(study, "Single"), State.CANCELLED, "Cancelled while it ran.")
    assert verdict(client, study)[1] == "Single was cancelled and is left out: Cancelled while it ran."


def test_its_page_survives_the_source_run(client: Client, study: Study, source: Run, alice: Any) -> None:
    finish_all(study)
    removal.delete(runs=[source.pk], user=alice)
    page = plain(client.get(f"/studies/{study.pk}/").content.decode())
    assert "from step" not in page and "TP 2 is fastest" in page


def test_live_changes_send_the_parts_of_the_page(client: Client, study: Study) -> None:
    address = f"/studies/{study.pk}/changes.json"
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert f'data-live-changes="{address}"' in page
    first = client.get(address).json()
    assert set(first["parts"]) == set(generation_views.LIVE_PARTS) and set(first["charts"]) == CHARTS
    for name, keys in first["parts"].items():
        assert "".join(first["texts"][key] for key in keys).strip() in page, name
    have = {"X-Have": ",".join(first["texts"])}
    assert client.get(address, headers=have).json()["texts"] == {}
    finish(run_of(study, "PP 2"), 2e-3, 5 * MIB)
    told = client.get(address, headers=have).json()["texts"].values()
    assert any("PP 2 alone has a result so far" in plain(text) for text in told)


def test_what_its_page_has_not_leads_nowhere_wrong(client: Client, study: Study, reader: Client) -> None:
    finish_all(study)
    assert client.get(f"/studies/{study.pk}/report/").headers["Location"] == f"/studies/{study.pk}/"
    assert client.get(f"/studies/{study.pk}/add/").status_code == 404, "its runs do not train"
    for part in ("findings/", "questions/", "gantt.json"):
        assert client.get(f"/studies/{study.pk}/{part}").status_code == 200, part
    assert "Delete…" not in reader.get(f"/studies/{study.pk}/").content.decode()
    study.runs.all().delete()
    assert "This study has no runs" in client.get(f"/studies/{study.pk}/").content.decode()


def test_the_api_shows_it_like_any_other_study(client: Client, study: Study, alice: Any) -> None:
    finish_all(study)
    found = client.get(f"/api/v1/studies/{study.pk}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert (found["kind"], found["runs"]) == ("generation", {"succeeded": 4})
    assert found["settings"]["degrees"] == ["2x1x1", "1x2x1", "1x1x2"]
    splits = ["Generate, single", "Generate, TP 2", "Generate, PP 2", "Generate, DP 2"]
    assert [member["strategy"] for member in found["members"]] == splits
    one = client.get(f"/api/v1/runs/{study.baseline_id}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert one["summary"]["generation"]["tokens_per_s"] == pytest.approx(1000)
    assert one["summary"]["generation"]["overall_tokens_per_s"] == pytest.approx(16 / 24e-3)
    assert one["tokens_per_s"] == pytest.approx(16 / 24e-3), "as the list of runs shows it"
    assert one["summary"]["memory"]["peak_total"] == 9 * MIB
