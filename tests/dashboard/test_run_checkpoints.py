"""The table of a run's checkpoints: what each is, where it is, and commands that the command line understands."""

from __future__ import annotations

import re
import shlex
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs import left_out, services
from dashboard.runs.models import Checkpoint, Run, State
from dashboard.runs.page import checkpoints
from parallel_core.checkpoint.folder import path_of
from parallel_core.cli import main
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.plain import plain
from workers import run_folders
from workers.settings import NAME_VARIABLE, Settings

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker

LLAMA = {"positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}


def saved(owner: Any, *steps: tuple[int, str, float | None], **model: Any) -> Run:
    """A run with checkpoints (step, worker, held-out loss)."""
    spec = {"model": model if "kind" in model else factory.BASE["model"] | model, "train": factory.BASE["train"]}
    factory.worker()
    run = services.submit(owner=owner, spec=spec)
    attempt = factory.start(run)
    for step, worker, held_out in steps:
        of = {"attempt": attempt, "worker": worker, "step": step, "held_out": held_out}
        Checkpoint.objects.create(run=run, bytes=3 << 20, seconds=0.5, **of)
    return run


def page(client: Client, run: Run) -> str:
    return unescape(client.get(f"/runs/{run.pk}/?tab=events").content.decode())


def rows(text: str) -> list[str]:
    return re.findall(r'<tr data-step="\d+">.*?</tr>', text, re.DOTALL)


def test_each_copy_is_a_row_with_its_size_place_and_held_out_loss(reader: Client, alice: Any) -> None:
    run = saved(alice, (10, "yard-a", 2.5), (20, "yard-a", 2.75), (20, "yard-b", 2.75))
    found = rows(page(reader, run))
    assert [re.findall(r"<code>(step-\d+)</code>", row)[0] for row in found] == [
        *("step-00000020", "step-00000020", "step-00000010")
    ]
    assert "3 MiB" in found[0] and "yard-a" in found[0] and "yard-b" in found[1] and "2.75" in found[1]
    assert ["(lowest)" in row for row in found] == [False, False, True]


def test_a_damaged_one_says_so_and_stands_in_no_command(reader: Client, alice: Any) -> None:
    run = saved(alice, (10, "yard-a", None), (20, "yard-a", None))
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, ended_at=timezone.now())
    later = factory.queued(alice, resume_from={"run": run.pk, "step": 20})
    said = "The checkpoint step-00000020 is damaged: rank-0.bin is short."
    Run.objects.filter(pk=later.pk).update(state=State.FAILED, detail=said, ended_at=timezone.now())
    found = rows(page(reader, run))
    assert ["Damaged" in row for row in found] == [True, False]
    (place,) = checkpoints.context(run)["places"]
    assert place.step == 10 and "step-00000010" in place.commands[0]


def test_the_page_has_each_command_on_a_line_of_its_own(reader: Client, alice: Any) -> None:
    run = saved(alice, (10, "yard-a", None), **LLAMA)
    (place,) = checkpoints.context(run)["places"]
    shown = re.search(r'aria-label="Commands on yard-a">(.*?)</pre>', page(reader, run), re.DOTALL)
    assert shown and shown[1].splitlines() == place.commands and len(place.commands) == 2


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("uid", ["0123abcd", ""])
def test_the_folder_is_the_one_that_the_worker_uses(
    alice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, uid: str
) -> None:
    run = saved(alice, (10, "yard-a", None))
    Run.objects.filter(pk=run.pk).update(uid=uid)
    run.refresh_from_db()
    Worker.objects.filter(name="yard-a").update(shared_checkpoints=shared)
    (tmp_path / "all").mkdir()
    env = {"TRAINYARD_HOME": str(tmp_path), NAME_VARIABLE: "yard-a", "REDIS_URL": "redis://localhost:1"}
    env |= {"TRAINYARD_CHECKPOINTS": str(tmp_path / "all")} if shared else {}
    identity: Any = {"uid": uid, "attempts": []} if uid else None
    theirs = path_of(run_folders.of_run(Settings.from_env(env).checkpoints, run.pk, identity), 10)
    (place,) = checkpoints.context(run)["places"]
    shell = ["bash", "-c", f'printf %s "{place.folder}/step-00000010"']
    ours = subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout
    assert ours == str(theirs)
    assert f"{place.folder}/step-00000010" in place.commands[0]


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ({}, ["generate"]),
        (LLAMA, ["generate", "export-llama"]),
        ({"vocab": 1024}, ["generate"]),
        ({"seq": 128}, ["generate"]),
        ({"seq": 1}, []),
        ({"kind": "mlp"}, []),
    ],
)
def test_the_command_line_takes_the_commands(
    alice: Any, capsys: pytest.CaptureFixture[str], model: dict[str, Any], kinds: list[str]
) -> None:
    run = saved(alice, (10, "yard-a", None), **model)
    (place,) = checkpoints.context(run)["places"]
    words = [shlex.split(command) for command in place.commands]
    assert [command[3] for command in words] == kinds
    for command in words:
        assert command[:3] == ["python", "-m", "parallel_core"]
        assert main(command[3:]) == 2
        said = capsys.readouterr().err
        assert "cannot be used" in said and "holds no checkpoint" in said, "only the file is missing here"
    for command in (each for each in words if each[3] == "generate"):
        asked = dict(zip(command[5::2], command[6::2], strict=True))
        tokens = len(asked["--ids"].split(",")) if "--ids" in asked else len(asked["--prompt"].encode())
        seq = run.spec["model"]["seq"]
        assert tokens + int(asked.get("--new", 64)) <= seq, "the command would be refused"


def test_a_run_without_any_has_no_table(reader: Client, alice: Any) -> None:
    run = saved(alice)
    assert 'id="checkpoints"' not in page(reader, run)


def test_a_checkpoint_that_found_no_room_is_told_until_a_later_one_is_written(
    member: Client, alice: Any, redis_url: str
) -> None:
    run = factory.queued(alice, train={"checkpoint_every": 20, "steps": 100})
    attempt = factory.start(run)

    def told(kind: str, step: int, **more: Any) -> None:
        factory.feed(attempt, 0, encode({"kind": kind, "rank": 0, "t": 1.0, "step": step, **more}))

    def shown() -> str:
        return plain(page(member, run))

    def yellow() -> bool:
        return '<p class="notice warning">The checkpoint' in page(member, run)

    factory.feed_steps(attempt, 10)
    told("left_out", 20, why="No space left on device")
    said = "The checkpoint after 20 steps found no room on yard-a and was left out: No space left on device."
    goes_on = "Training goes on; the next one is tried after 40 steps."
    text = shown()
    assert text.count(f"{said} {goes_on}") == 2, "on top and among the events"
    assert "No checkpoint is kept yet; Fleet says how much room its disk has, and `df -i` there how many more" in text
    assert yellow()
    told("checkpoint", 40, bytes=1000, seconds=0.1, kept=[40])
    assert shown().count(said) == 1 and not yellow()
    told("left_out", 60, why="No space left on device")
    assert "Everything after step 40 would be lost; Fleet says" in shown()


def test_a_checkpoint_left_out_as_the_run_was_stopped_promises_no_next_one(alice: Any) -> None:
    run = factory.queued(alice, train={"checkpoint_every": 20, "steps": 100})
    attempt = factory.start(run)
    told = {"kind": "left_out", "rank": 0, "t": 1.0, "step": 20, "why": "Disk quota exceeded", "last": True}
    factory.feed(attempt, 0, encode(told))
    said = (
        "found no room on yard-a and was left out: Disk quota exceeded. The run was ending, so no other one was tried."
    )
    assert run.events.get(kind="left_out").text == f"The checkpoint after 20 steps {said}"
    assert "`quota -s` there says" in left_out.warning(run) and "Fleet" not in left_out.warning(run)


def test_of_checkpoints_that_are_told_at_once_the_newest_decides_whether_the_page_warns(alice: Any) -> None:
    """As after an outage of the controller, which then reads all at once."""
    full = {"kind": "left_out", "rank": 0, "t": 1.0, "why": "No space left on device"}
    whole = {"kind": "checkpoint", "rank": 0, "t": 1.0, "bytes": 1000, "seconds": 0.1}
    run = factory.queued(alice, train={"checkpoint_every": 20, "steps": 100})
    attempt = factory.start(run)
    factory.feed(attempt, 0, encode(full | {"step": 20}) + encode(whole | {"step": 40, "kept": [40]}))
    assert left_out.warning(run) == ""
    factory.feed(attempt, 0, encode(whole | {"step": 60, "kept": [60]}) + encode(full | {"step": 80}))
    assert "The checkpoint after 80 steps found no room" in left_out.warning(run)


def test_what_an_earlier_attempt_left_out_is_no_warning_of_the_newest(alice: Any) -> None:
    run = factory.queued(alice, train={"checkpoint_every": 20, "steps": 100})
    attempt = factory.start(run)
    told = {"kind": "left_out", "rank": 0, "t": 1.0, "step": 60, "why": "No space left on device"}
    factory.feed(attempt, 0, encode(told))
    assert left_out.warning(run)
    factory.start(run)
    assert left_out.warning(run) == ""


def test_checkpoints_that_are_left_out_in_a_row_are_one_event(alice: Any) -> None:
    """A disk that is full over night may leave out thousands, and the tab of events shows all that there are."""
    run = factory.queued(alice, train={"checkpoint_every": 500, "steps": 9000})
    attempt = factory.start(run)

    def told(kind: str, step: int, **more: Any) -> list[str]:
        factory.feed(attempt, 0, encode({"kind": kind, "rank": 0, "t": 1.0, "step": step, **more}))
        return [" ".join(one.text.split()) for one in run.events.filter(kind="left_out")]

    full = {"why": "No space left on device"}
    for step in (1500, 2000, 2500):
        texts = told("left_out", step, **full)
    said = (
        "The checkpoints after 1 500 to 2 500 steps found no room on yard-a and were left out: No space left on device."
    )
    assert texts == [f"{said} Training goes on; the next one is tried after 3 000 steps."]
    assert said in " ".join(left_out.warning(run).split())
    told("checkpoint", 3000, bytes=1000, seconds=0.1, kept=[3000])
    assert left_out.warning(run) == ""
    texts = told("left_out", 3500, **full)
    assert len(texts) == 2 and texts[1].startswith(
        "The checkpoint after 3 500 steps found no room on yard-a and was left"
    )
