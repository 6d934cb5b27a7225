"""The form of a study of text generation: what it refuses, leaves out and queues."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts
from dashboard.placement.assignments import plan
from dashboard.runs import services
from dashboard.runs.generation.generating import ONE, Split
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.runs.waiting import asking, turns
from dashboard.studies.generating import generation_form
from dashboard.studies.models import Study
from parallel_core.plan.room import FRAMEWORK
from tests.dashboard import factory
from tests.dashboard.new_study import NEW, preview
from tests.dashboard.plain import error_at
from tests.dashboard.text_studies import NAMES, asked, queued

pytestmark = pytest.mark.django_db


def test_a_split_is_written_as_three_degrees() -> None:
    assert Split.read(" 2 x 1 × 4 ") == Split(2, 1, 4)
    assert Split.read("1") == ONE and str(Split(2, 1, 4)) == "2x1x4"
    assert [split.world for split in (ONE, Split(2), Split(2, 3, 4))] == [1, 2, 24]
    assert [split.label for split in (ONE, Split(2), Split(1, 4), Split(2, 3, 4))] == [
        "Single",
        "TP 2",
        "PP 4",
        "DP 4 x TP 2 x PP 3",
    ]


def test_the_link_on_the_run_s_page_fills_the_form_and_says_what_would_run(client: Client, source: Run) -> None:
    address = f"{NEW}?kind=generation&run={source.pk}"
    assert address.replace("&", "&amp;") in client.get(f"/runs/{source.pk}/").content.decode()
    page = client.get(address).content.decode()
    assert re.search(rf'name="run" value="{source.pk}"', page) and f'<option value="{source.pk}">Trained<' in page
    assert "<strong>4 runs</strong> on up to <strong>2 devices</strong>" in page
    assert "<strong>1 run</strong> on <strong>1 device</strong>" in preview(client, asked(source, degrees="1"))
    assert "time unknown: the first run shows how long a token takes" in page
    assert f"From step 20 of run {source.pk}, “Trained”." in page
    for name in NAMES:
        assert re.search(rf"<li>{name} <span class=\"sub\">\d dev, [\d.]+ [KM]iB a rank predicted", page), name
    assert "Architecture in detail" not in page and "Timed steps" not in page
    assert f'value="{source.pk}"' in client.get(f"{NEW}?kind=generation").content.decode(), (
        "the newest run that will do"
    )


def test_a_study_that_no_worker_takes_now_says_so_before_it_is_queued(client: Client, source: Run) -> None:
    assert "They would wait." not in preview(client, asked(source))
    Worker.objects.update(tasks=[], version="0.0.1")
    names = " and ".join((", ".join(f"“{name}”" for name in NAMES[:-1]), f"“{NAMES[-1]}”"))
    old = "yard-a runs version 0.0.1, which does not announce that it can generate text."
    said = f"They would wait.</strong> No worker takes them now. {names}: Needs a newer worker: {old}"
    assert said in preview(client, asked(source))
    Worker.objects.update(tasks=["generate"], draining=True)
    assert f"{names}: Too few such devices take runs now: yard-a is draining." in preview(client, asked(source))
    queued(client, source)


def test_runs_are_queued_one_after_another_with_the_same_text(source: Run, study: Study) -> None:
    runs = list(study.runs.order_by("position"))
    assert [run.name for run in runs] == NAMES
    assert [run.devices for run in runs] == [1, 2, 2, 2] and all(run.exclusive for run in runs)
    assert {(run.resume_run_id, run.resume_step) for run in runs} == {(source.pk, 20)}
    splits = ["single", "TP 2", "PP 2", "DP 2"]
    assert [run.label for run in runs] == [f"Generate, {split}" for split in splits], "the list shows it as Strategy"
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
        ({"new": "1"}, "new", "Write at least 2: the first token is the prefill's"),
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
    assert said.format(source=source.pk) in error_at(answer.content.decode(), field)


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
    for request in asking.requests(asking.queued_runs(turns.queue_order())):
        assert plan([replace(request, study=None)], hosts()).placed, request


def test_a_host_that_shares_the_folder_of_the_checkpoint_counts(client: Client, source: Run) -> None:
    factory.worker("yard-b", devices=4)
    shared("yard-a", "yard-b")
    assert client.post(NEW, asked(source, degrees="4x1x1")).status_code == 302
    wide = next(found for found in asking.requests(asking.queued_runs(turns.queue_order())) if found.devices == 4)
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


def test_a_clone_asks_for_the_same(client: Client, study: Study, source: Run) -> None:
    page = client.get(f"{NEW}?clone={study.pk}").content.decode()
    for name, value in (("run", source.pk), ("step", 20), ("new", 8), ("samples", 2)):
        assert re.search(rf'name="{name}" value="{value}"', page), name
    assert 'value="2x1x1, 1x2x1, 1x1x2"' in page and "<strong>4 runs</strong>" in page
    assert client.get(f"{NEW}?kind=matrix&clone={study.pk}").status_code == 200
