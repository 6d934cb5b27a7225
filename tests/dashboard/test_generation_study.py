"""The study of text generation: its form, what it queues, and what its page says of every state."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from dashboard.api.models import Scope
from dashboard.control.placement import plan
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts
from dashboard.runs import queue, removal, services
from dashboard.runs.generating import ONE, Split
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.studies import generation, generation_form, generation_views, reruns
from dashboard.studies.models import Study
from parallel_core.analysis.generated import first_difference
from parallel_core.analysis.stats import Stats
from parallel_core.layout import Layout
from parallel_core.observe.records import encode
from parallel_core.plan.room import FRAMEWORK
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.study_charts import charts_of
from tests.dashboard.test_api import bearer
from tests.dashboard.test_study_form import NEW, preview

pytestmark = pytest.mark.django_db
MIB = 1 << 20
NAMES = ["Single", "TP 2", "PP 2", "DP 2"]
TEXTS = [list(b"sum(xs):"), list(b"max(xs):")]
TRAINING_WORDS = ("Loss", "MFU", "ubble", "ideal", "Speedup", "Recompute", "Gantt")
"""What means nothing where nothing is trained."""


@pytest.fixture(autouse=True)
def _broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def source(client: Client, alice: Any) -> Run:
    """A run that succeeded, with a checkpoint at step 20; alice is signed in."""
    client.force_login(alice)
    run = factory.finished(alice, {"dp": 2}, name="Trained")
    kept = {"kind": "checkpoint", "rank": 0, "t": 1.0, "step": 20, "bytes": 1000, "seconds": 0.1, "kept": [20]}
    factory.feed(run.attempts.get(), 0, encode(kept))
    return run


def asked(source: Run, **change: str) -> dict[str, str]:
    form = {"kind": "generation", "name": "Splits", "run": str(source.pk), "step": "", "prompt": "def ", "new": "8"}
    form |= {"samples": "2", "temperature": "0", "top_k": "0", "seed": "7", "repeats": "1"}
    return {**form, "degrees": "2x1x1, 1x2x1, 1x1x2", **change}


@pytest.fixture
def study(client: Client, source: Run) -> Study:
    """A study that was queued through the form: a single device and three splits."""
    answer = client.post(NEW, asked(source))
    assert answer.status_code == 302, answer.content.decode()
    return Study.objects.get()


def run_of(study: Study, name: str) -> Run:
    return study.runs.get(name=name)


def finish(run: Run, token: float, peak: int, texts: Sequence[Sequence[int]] = TEXTS) -> None:
    """The run generates the texts, `token` seconds each, with `peak` bytes on its worst rank, and succeeds."""
    attempt, layout = factory.start(run), Layout.of(RunSpec.model_validate(run.spec))
    each = len(texts) // layout.dp
    for rank in range(layout.world):
        first = layout.coords(rank).replica * each
        mine = [list(text) for text in texts[first : first + each]]
        made = {"kind": "generated", "rank": rank, "t": 1.0, "first": 0, "tokens": mine, "prefill": 0.01}
        made |= {"seconds": [token] * (len(mine[0]) - 1), "kv_bytes": 4096}
        held = {"params": peak - MIB - rank, "grads": 0, "optimizer": 0, "activations": MIB, "buffers": 0}
        memory = {"kind": "memory", "rank": rank, "t": 1.0, "step": 0, "peak": held, "peak_total": peak - rank}
        factory.feed(attempt, rank, encode(made) + encode({**memory, "rss_delta": 0, "final": held}))
    factory.end(run, State.SUCCEEDED)


def finish_all(study: Study) -> None:
    for name, token, peak in (
        ("Single", 2e-3, 9 * MIB),
        ("TP 2", 1e-3, 6 * MIB),
        ("PP 2", 3e-3, 5 * MIB),
        ("DP 2", 1.6e-3, 9 * MIB),
    ):
        finish(run_of(study, name), token, peak)


def verdict(client: Client, study: Study) -> list[str]:
    said: list[str] = client.get(f"/studies/{study.pk}/").context["verdict"]
    return said


def test_a_split_is_written_as_three_degrees() -> None:
    assert Split.read(" 2 x 1 × 4 ") == Split(2, 1, 4)
    assert Split.read("1") == ONE and str(Split(2, 1, 4)) == "2x1x4"
    assert [split.label for split in (ONE, Split(2), Split(1, 4), Split(2, 3, 4))] == [
        "Single",
        "TP 2",
        "PP 4",
        "DP 4 x TP 2 x PP 3",
    ]


def test_the_first_difference_names_text_and_token() -> None:
    assert first_difference(TEXTS, [list(text) for text in TEXTS]) is None
    assert first_difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == (1, 1)
    assert first_difference([[1, 2]], [[1]]) == (0, 1)
    assert first_difference([[1], [2]], [[1]]) == (1, 0)


def test_the_link_on_the_run_s_page_fills_the_form_and_says_what_would_run(client: Client, source: Run) -> None:
    address = f"{NEW}?kind=generation&run={source.pk}"
    assert address.replace("&", "&amp;") in client.get(f"/runs/{source.pk}/").content.decode()
    page = client.get(address).content.decode()
    assert re.search(rf'name="run" value="{source.pk}"', page) and f'<option value="{source.pk}">Trained<' in page
    assert "<strong>4 runs</strong> on up to <strong>2 devices</strong>" in page
    assert "time unknown: the first run shows how long a token takes" in page
    assert f"From step 20 of run {source.pk}, “Trained”." in page
    for name in NAMES:
        assert re.search(rf"<li>{name} <span class=\"sub\">\d dev, [\d.]+ [KM]iB a rank predicted", page), name
    assert "Architecture in detail" not in page and "Timed steps" not in page
    assert f'value="{source.pk}"' in client.get(f"{NEW}?kind=generation").content.decode(), (
        "the newest run that will do"
    )


def test_runs_are_queued_one_after_another_with_the_same_text(source: Run, study: Study) -> None:
    runs = list(study.runs.order_by("position"))
    assert [run.name for run in runs] == NAMES
    assert [run.devices for run in runs] == [1, 2, 2, 2] and all(run.exclusive for run in runs)
    assert {(run.resume_run_id, run.resume_step, run.label) for run in runs} == {(source.pk, 20, "Generate")}
    assert all(run.task == runs[0].task for run in runs) and runs[0].task["prompt"] == list(b"def ")
    assert study.baseline == runs[0] and study.base["model"] == runs[0].spec["model"]


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"run": ""}, "run", "Name the run whose checkpoint generates the text. Run {source} (Trained) would do."),
        ({"run": "x"}, "run", "Write the number of a run; got “x”."),
        ({"run": "999"}, "run", "There is no run 999. Run {source} (Trained) would do."),
        ({"step": "21"}, "step", "has no checkpoint at step 21; it has steps 20."),
        ({"step": "last"}, "step", "Write one of its steps, 20; got “last”."),
        ({"prompt": ""}, "prompt", "The prompt is empty"),
        ({"new": "9999"}, "new", "tokens and the prompt has 4; at most"),
        ({"new": "1"}, "new", "Write at least 2: the first token is the prefill&#x27;s"),
        ({"temperature": "-1"}, "temperature", "Must be at least 0; got -1."),
        ({"samples": "65"}, "samples", "Must be at most 64; got 65."),
        ({"degrees": "2x1"}, "degrees", "“2x1” is no split; write tensor ranks x stages x replicas"),
        ({"degrees": "2x0x1"}, "degrees", "Each number of “2x0x1” must be from 1 to"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    client: Client, source: Run, change: dict[str, str], field: str, said: str
) -> None:
    answer = client.post(NEW, asked(source, **change))
    assert answer.status_code == 422 and not Study.objects.exists()
    at = (page := answer.content.decode()).index(f'id="error-{field}"')
    assert said.format(source=source.pk) in page[at : at + 400]


def test_a_refused_study_begins_with_links_to_what_is_wrong(client: Client, source: Run) -> None:
    page = client.post(NEW, asked(source, run="x", degrees="2")).content.decode()
    assert "<strong>Not queued.</strong> Put right <a href=" in page
    for anchor, label in (("f-run", "Source run"), ("f-degrees", "Splits")):
        assert f'<a href="#{anchor}">{label}</a>' in page and f'id="{anchor}"' in page
    assert ">\ndef </textarea>" in page, "what was typed is kept"


def test_a_run_that_cannot_generate_says_why(client: Client, source: Run, alice: Any) -> None:
    def told(run: Run) -> str:
        return client.post(NEW, asked(run)).content.decode()

    plain_run = factory.finished(alice, {})
    assert f"Run {plain_run.pk} has no checkpoint" in told(plain_run)
    mlp = {"model": {"kind": "mlp", "layers": 2, "hidden": 32}, "train": factory.BASE["train"]}
    assert "only a GPT generates text" in told(services.submit(owner=alice, spec=mlp))
    begun = factory.queued(alice, {})
    factory.start(begun)
    assert f"Run {begun.pk} has not ended" in told(begun)
    client.post(f"/runs/{source.pk}/generate", asked(source, step="20", tp="1", pp="1", dp="1"))
    text = Run.objects.latest("pk")
    assert text.generates
    assert f"Run {text.pk} does not train" in told(text) and f"as run {source.pk} does" in told(text)
    assert "Compare splits" not in client.get(f"/runs/{text.pk}/").content.decode()
    assert not Study.objects.exists()


def test_a_gpt_is_offered_behind_any_number_of_newer_runs_of_other_models(
    client: Client, source: Run, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose stored spec is of a version that knew no other kind."""
    monkeypatch.setattr(generation_form, "MOST_OFFERED", 1)
    mlp = {"model": {"kind": "mlp", "layers": 2, "hidden": 32}, "train": factory.BASE["train"]}
    (of,) = source.attempts.all()
    for _ in range(3):
        run = services.submit(owner=alice, spec=mlp)
        Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
        Checkpoint.objects.create(run=run, attempt=of, worker="yard-a", step=20, bytes=1, seconds=0.1)

    def offered() -> str:
        page = client.get(f"{NEW}?kind=generation").content.decode()
        return page.partition('<datalist id="source-runs">')[2].partition("</datalist>")[0]

    only = f'<option value="{source.pk}">Trained</option>'
    assert offered() == only
    del source.spec["model"]["kind"]
    source.save()
    assert offered() == only


def test_each_split_that_cannot_run_is_left_out_with_its_reason(client: Client, source: Run) -> None:
    page = preview(client, asked(source, samples="1", degrees="3x1x1, 1x99x1, 4x1x1, 1x1x2, 2x1x1, 2x1x1"))
    assert "<strong>2 runs</strong>" in page
    left = left_out(page)
    assert list(left) == ["TP 3", "PP 99", "DP 2", "TP 4"]
    assert left["TP 3"].startswith("Tensor parallel = 3 does not divide")
    assert "is more than the model" in left["PP 99"]
    assert "replicas share 1 text, and each needs one" in left["DP 2"]
    assert "need 4 CPU devices on one host, because its checkpoints lie on one" in left["TP 4"]


def left_out(page: str) -> dict[str, str]:
    """Split -> why a preview leaves it out."""
    return dict(re.findall(r"<li><strong>([^<]+)</strong> ([^<]+)</li>", page))


def shared(*workers: str) -> None:
    """These workers share a folder, into which every checkpoint was written."""
    Worker.objects.filter(name__in=workers).update(shared_checkpoints=True)
    for attempt in Attempt.objects.all():
        attempt.devices = [{**node, "shares": True} for node in attempt.devices]
        attempt.save()


def test_only_devices_where_the_checkpoint_is_count(client: Client, source: Run) -> None:
    """Two devices on the host that has it, four on another: four ranks would wait for ever."""
    factory.worker("yard-b", devices=4)
    form = asked(source, degrees="4x1x1, 2x1x1")
    gone = left_out(preview(client, form))
    assert list(gone) == ["TP 4"] and "the largest worker that has its files (yard-a) has 2." in gone["TP 4"]
    assert client.post(NEW, form).status_code == 302
    study = Study.objects.get()
    assert [run.name for run in study.runs.order_by("position")] == ["Single", "TP 2"]
    for request in queue.requests(queue.queued_runs()):
        assert plan([replace(request, study=None)], hosts()).placed, request


def test_a_host_that_shares_the_folder_of_the_checkpoint_counts(client: Client, source: Run) -> None:
    factory.worker("yard-b", devices=4)
    shared("yard-a", "yard-b")
    assert client.post(NEW, asked(source, degrees="4x1x1")).status_code == 302
    wide = next(found for found in queue.requests(queue.queued_runs()) if found.devices == 4)
    assert [share.host for _, given in plan([replace(wide, study=None)], hosts()).placed for share in given] == [
        "yard-b"
    ]


def test_a_folder_shared_since_then_has_no_earlier_checkpoint(client: Client, source: Run) -> None:
    factory.worker("yard-b", devices=4)
    Worker.objects.update(shared_checkpoints=True)
    gone = left_out(preview(client, asked(source, degrees="4x1x1")))
    assert "on one host, because the checkpoint it begins from lies on one; the largest" in gone["TP 4"]


def test_the_room_is_that_of_the_host_with_the_checkpoint(client: Client, source: Run) -> None:
    factory.worker("yard-b", devices=2)
    worker = Worker.objects.get(name="yard-a")
    for device in worker.devices:
        device["memory_total"] = FRAMEWORK["cpu"] + 1
    worker.save()
    gone = left_out(preview(client, asked(source)))
    assert list(gone) == NAMES and all("there is room for 1 B" in why for why in gone.values())
    shared("yard-a", "yard-b")
    assert left_out(preview(client, asked(source))) == {}


def test_no_split_of_a_text_is_known_before_one_has_run(client: Client, study: Study) -> None:
    assert verdict(client, study) == ["0 of 4 runs generated text so far."]
    page = plain(client.get(f"/studies/{study.pk}/").content.decode())
    assert "0 splits have generated text so far." in page and "Cancel the rest…" in page
    assert "the likeliest token each time" in page and "from step 20 of" in page
    assert [line.row.label for line in client.get(f"/studies/{study.pk}/").context["lines"]] == NAMES


def test_the_answer_is_the_first_sentence(client: Client, study: Study) -> None:
    finish_all(study)
    assert verdict(client, study) == [
        "TP 2 is fastest: 2 k tokens/s, 2.00x (2.00x to 2.00x) the single device; "
        "PP 2 needs least memory, 5 MiB on its worst rank.",
        "All 4 splits generate the same text.",
    ]
    page = plain(client.get(f"/studies/{study.pk}/").content.decode())
    for word in TRAINING_WORDS:
        assert word not in page.partition("<main")[2], word
    charts = charts_of(client, study)
    assert [row[:2] for row in charts["tokens"]["rows"]] == [
        ["TP 2", "1 ms"],
        ["DP 2", "1.6 ms"],
        ["Single", "2 ms"],
        ["PP 2", "3 ms"],
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
        "3 of 4 runs have generated their text so far.",
    ]
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "no, from token 5 of text 2 on" in page and "rounding" not in page
    row = next(csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()))
    assert row["split"] in ("TP 2", "DP 2")


def test_a_single_device_that_nothing_beats_is_said_to_be_fastest(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 1e-3, 6 * MIB)
    assert verdict(client, study)[0] == ("Single alone has a result so far: 2 k tokens/s, and 6 MiB on its worst rank.")
    finish(run_of(study, "TP 2"), 2e-3, 6 * MIB)
    finish(run_of(study, "PP 2"), 3e-3, 6 * MIB)
    assert verdict(client, study)[0] == (
        "No split is faster than the single device, 2 k tokens/s: TP 2 reaches 0.50x (0.50x to 0.50x) of it; "
        "each needs 6 MiB on its worst rank."
    )


def test_replicas_of_unlike_loads_are_compared_by_all_their_texts(study: Study) -> None:
    """Two texts at 2 ms on one replica and one at 1 ms on the other are 2 k tokens/s, not 3 texts at 2 ms."""
    row = generation.Row(
        run_of(study, "DP 2"), "DP 2", Split(dp=2), token=Stats(2e-3, 1e-3, 4e-3, 2e-3, 7), rate=2000.0
    )
    assert row.each == Stats(5e-4, 2.5e-4, 1e-3, 5e-4, 7)


def test_all_that_need_least_memory_are_named(client: Client, study: Study) -> None:
    for name, peak in (("Single", 9 * MIB), ("TP 2", 5 * MIB), ("PP 2", 5 * MIB + 1)):
        finish(run_of(study, name), 2e-3, peak)
    assert "; TP 2 and PP 2 need least memory, 5 MiB on their worst ranks." in verdict(client, study)[0]


def test_within_noise_is_said(client: Client, study: Study) -> None:
    finish(run_of(study, "Single"), 2e-3, 6 * MIB)
    finish(run_of(study, "TP 2"), 1.9e-3, 6 * MIB)
    run = run_of(study, "TP 2")
    run.summary["generation"]["token"]["p90"] = 2.2e-3
    run.save()
    assert verdict(client, study)[0].startswith("TP 2 is fastest, but within noise: 1.05 k tokens/s, 1.05x (0.91x")
    assert "within noise</span>" in client.get(f"/studies/{study.pk}/").content.decode()


def test_without_the_single_device_nothing_is_compared_with_it(client: Client, study: Study) -> None:
    finish(run_of(study, "TP 2"), 1e-3, 6 * MIB)
    finish(run_of(study, "PP 2"), 2e-3, 5 * MIB)
    assert "the single device has no result yet; PP 2 needs" in verdict(client, study)[0]
    factory.start(run_of(study, "Single"))
    factory.end(run_of(study, "Single"), State.FAILED, "Rank 0 ran out of memory: weights", "out_of_memory")
    said = verdict(client, study)
    assert said[0].startswith("TP 2 is fastest of 2, 2 k tokens/s; the single device has no result; PP 2 needs least")
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


def test_of_repeats_the_median_one_is_compared(client: Client, source: Run) -> None:
    client.post(NEW, asked(source, degrees="2x1x1", repeats="3"))
    study = Study.objects.get()
    assert [run.name for run in study.runs.order_by("position")][:3] == ["Single #1", "TP 2 #1", "Single #2"]
    for number, (single, tensor) in enumerate(((4e-3, 1e-3), (2e-3, 2e-3), (1e-3, 4e-3)), 1):
        finish(run_of(study, f"Single #{number}"), single, 6 * MIB)
        finish(run_of(study, f"TP 2 #{number}"), tensor, 5 * MIB)
    view = generation.of_runs(study.runs.all())
    assert [(row.label, round(row.rate or 0)) for row in view.compared] == [("Single", 1000), ("TP 2", 1000)]
    assert view.reference is not None and view.reference.label == "Single #1"
    assert "All 2 splits generate the same text." in verdict(client, study)


def test_of_an_even_number_of_repeats_each_figure_is_the_median(client: Client, source: Run) -> None:
    client.post(NEW, asked(source, degrees="2x1x1", repeats="2"))
    study = Study.objects.get()
    for number, (single, tensor) in enumerate(((2e-3, 1e-3), (4e-3, 5e-4)), 1):
        finish(run_of(study, f"Single #{number}"), single, 6 * number * MIB)
        finish(run_of(study, f"TP 2 #{number}"), tensor, 4 * number * MIB)
    view = generation.of_runs(study.runs.all())
    assert [(row.label, row.rate, row.peak) for row in view.compared] == [
        ("TP 2", pytest.approx((2000 + 4000) / 2), 6 * MIB),
        ("Single", pytest.approx((1000 + 500) / 2), 9 * MIB),
    ]
    tokens = [row.token for row in view.compared if row.token]
    assert [(token.median, token.p90, token.n) for token in tokens] == [
        (pytest.approx(7.5e-4), pytest.approx(7.5e-4), 7),
        (pytest.approx(3e-3), pytest.approx(3e-3), 7),
    ]
    tensor, single = view.compared
    assert tensor.speed and tensor.speed.ratio == pytest.approx(3000 / 750) and single.speed is None
    assert "4.00x (4.00x to 4.00x) the single device" in verdict(client, study)[0]


def test_the_single_device_has_no_speed_over_itself(client: Client, source: Run) -> None:
    client.post(NEW, asked(source, degrees="2x1x1", repeats="2"))
    study = Study.objects.get()
    for number, seconds in enumerate((2e-3, 4e-3), 1):
        finish(run_of(study, f"Single #{number}"), seconds, 6 * MIB)
        finish(run_of(study, f"TP 2 #{number}"), 1e-3, 6 * MIB)
    lines = client.get(f"/studies/{study.pk}/").context["lines"]
    assert {(line.row.split == ONE, line.row.speed is None) for line in lines} == {(True, True), (False, False)}
    rows = list(csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()))
    assert {(row["split"].startswith("Single"), row["speedup"] == "") for row in rows} == {(True, True), (False, False)}


def test_cancelled_runs_are_queued_again_with_their_task(client: Client, study: Study, alice: Any) -> None:
    finish(run_of(study, "Single"), 2e-3, 6 * MIB)
    for run in study.runs.filter(state=State.QUEUED):
        services.request_cancel(run=run, user=alice)
    task = run_of(study, "Single").task
    queued = reruns.run_again(study=study, user=alice, which=reruns.cancelled)
    assert [(run.name, run.task, run.resume_step) for run in queued] == [(name, task, 20) for name in NAMES[1:]]


def test_nothing_is_queued_again_from_a_checkpoint_that_is_gone(study: Study, source: Run, alice: Any) -> None:
    for run in study.runs.all():
        services.request_cancel(run=run, user=alice)
    Checkpoint.objects.all().delete()
    refused: dict[str, str] = {}
    assert reruns.run_again(study=study, user=alice, which=reruns.cancelled, refused=refused) == []
    assert list(refused) == NAMES and "has no checkpoint at step 20" in refused["TP 2"]
    removal.delete(runs=[source.pk], user=alice)
    refused.clear()
    assert reruns.run_again(study=study, user=alice, which=reruns.cancelled, refused=refused) == []
    assert set(refused.values()) == {"the run from whose checkpoint it began was deleted."}


def test_its_page_survives_the_source_run(client: Client, study: Study, source: Run, alice: Any) -> None:
    finish_all(study)
    removal.delete(runs=[source.pk], user=alice)
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "from step" not in page and "TP 2 is fastest" in page


def test_live_changes_send_the_parts_of_the_page(client: Client, study: Study) -> None:
    address = f"/studies/{study.pk}/changes.json"
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert f'data-live-changes="{address}"' in page
    first = client.get(address).json()
    assert set(first["parts"]) == set(generation_views.LIVE_PARTS) and set(first["charts"]) == {"tokens", "prefill"}
    for name, keys in first["parts"].items():
        assert "".join(first["texts"][key] for key in keys).strip() in page, name
    have = {"X-Have": ",".join(first["texts"])}
    assert client.get(address, headers=have).json()["texts"] == {}
    finish(run_of(study, "PP 2"), 2e-3, 5 * MIB)
    told = client.get(address, headers=have).json()["texts"].values()
    assert any("PP 2 alone has a result so far" in text for text in told)


def test_what_its_page_has_not_leads_nowhere_wrong(client: Client, study: Study, reader: Client) -> None:
    finish_all(study)
    assert client.get(f"/studies/{study.pk}/report/").url == f"/studies/{study.pk}/"
    assert client.get(f"/studies/{study.pk}/add/").status_code == 404, "its runs do not train"
    for part in ("findings/", "questions/", "gantt.json"):
        assert client.get(f"/studies/{study.pk}/{part}").status_code == 200, part
    assert "Delete…" not in reader.get(f"/studies/{study.pk}/").content.decode()
    study.runs.all().delete()
    assert "This study has no runs" in client.get(f"/studies/{study.pk}/").content.decode()


def test_a_clone_asks_for_the_same(client: Client, study: Study, source: Run) -> None:
    page = client.get(f"{NEW}?clone={study.pk}").content.decode()
    for name, value in (("run", source.pk), ("step", 20), ("new", 8), ("samples", 2)):
        assert re.search(rf'name="{name}" value="{value}"', page), name
    assert 'value="2x1x1, 1x2x1, 1x1x2"' in page and "<strong>4 runs</strong>" in page
    assert client.get(f"{NEW}?kind=matrix&clone={study.pk}").status_code == 200


def test_the_api_shows_it_like_any_other_study(client: Client, study: Study, alice: Any) -> None:
    finish_all(study)
    found = client.get(f"/api/v1/studies/{study.pk}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert (found["kind"], found["runs"]) == ("generation", {"succeeded": 4})
    assert found["settings"]["degrees"] == ["2x1x1", "1x2x1", "1x1x2"]
    assert [member["strategy"] for member in found["members"]] == ["Generate"] * 4
    one = client.get(f"/api/v1/runs/{study.baseline_id}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert one["summary"]["generation"]["tokens_per_s"] == pytest.approx(1000)
    assert one["summary"]["memory"]["peak_total"] == 9 * MIB
