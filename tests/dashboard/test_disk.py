"""A worker's free disk space: on its card, in the API, and in a warning before a run whose checkpoints would not
fit.
"""

from __future__ import annotations

from html import unescape
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.runs import submission
from dashboard.runs.disk import bytes_kept
from parallel_core.analysis.quantities import bytes_text
from parallel_core.plan import units
from parallel_core.plan.checkpoint_size import checkpoint_bytes
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, preview
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.django_db


@pytest.fixture
def member(client: Client, alice: Any) -> Client:
    client.force_login(alice)
    return client


def free(*sizes: int | None) -> None:
    for name, size in zip("ab", sizes, strict=False):
        factory.worker(f"yard-{name}")
        Worker.objects.filter(name=f"yard-{name}").update(disk_free=size, host=f"host-{name}")


def said(member: Client, **asked: str) -> str:
    return str(member.post("/runs/new/check", filled(train__checkpoint_every="5", **asked)).context["panel"].disk)


def test_its_card_and_the_api_say_what_is_left(member: Client) -> None:
    free(3 << 30, None)
    text = member.get("/fleet/").content.decode()
    assert text.count("of disk left") == 1 and "3 GiB of disk left" in text
    rows = {row["name"]: row["disk_free"] for row in member.get("/api/v1/workers").json()["data"]}
    assert rows == {"yard-a": 3 << 30, "yard-b": None}


def test_checkpoints_that_find_no_room_are_told_before(member: Client) -> None:
    given = filled()
    model = {name.split("__")[1]: value for name, value in given.items() if name.startswith("model__") and value != ""}
    kept = {key: model[key] for key in ("layers", "hidden", "heads", "seq", "vocab") if key in model}
    one = checkpoint_bytes(RunSpec.model_validate({"model": kept}))
    free(3 * one - 1)
    sentence = said(member)
    assert sentence.startswith(f"Up to 3 checkpoints of {bytes_text(one)} are there at once, and yard-a has ")
    assert sentence.endswith("; use Checkpoints kept = 1, or free some.")
    assert "may not find room" in member.post("/runs/new/check", filled(train__checkpoint_every="5")).content.decode()
    free(one)
    assert said(member).endswith("; free some, or use Checkpoint every = 0.")
    free(3 * one)
    assert said(member) == ""


def test_the_checkpoint_at_a_time_limit_needs_room_too(member: Client) -> None:
    def limited(every: str) -> str:
        sent = filled(train__checkpoint_every=every, train__max_minutes="5")
        return str(member.post("/runs/new/check", sent).context["panel"].disk)

    one = checkpoint_bytes(RunSpec())
    free(one - 1)
    assert limited("0").startswith(f"Up to 1 checkpoint of {bytes_text(one)} is there at once, and yard-a has ")
    assert limited("0").endswith("; free some, or use Time limit = 0.")
    assert limited("5").endswith("; free some, or use Checkpoint every = 0 and Time limit = 0.")
    free(one)
    assert limited("0") == ""
    assert limited("5").endswith("; free some, or use Checkpoint every = 0.")


def test_nobody_worries_where_nothing_is_known_or_nothing_is_saved(member: Client) -> None:
    free(None)
    assert said(member) == ""
    free(0, 1 << 40)  # another worker has room
    assert said(member) == ""
    free(0, 0)
    panel = member.post("/runs/new/check", filled(train__checkpoint_every="0")).context["panel"]
    assert panel.disk == ""


def test_a_time_limit_at_which_nothing_could_be_saved_is_told_before(member: Client) -> None:
    factory.worker("yard-a")
    factory.worker("yard-b")
    Worker.objects.update(fields=["train.max_minutes"])

    def told(**asked: str) -> str:
        sent = filled(train__checkpoint_every="0", train__max_minutes="5", **asked)
        return str(member.post("/runs/new/check", sent).context["panel"].unsaved)

    said = "Its ranks would be on yard-a and yard-b, which share no folder for checkpoints."
    assert told(parallel__dp="4") == said and told(parallel__dp="2") == ""
    page = member.post("/runs/new/check", filled(train__max_minutes="5", parallel__dp="4")).content.decode()
    assert f"Its time limit would save nothing.</strong> {said}" in page
    assert warned(member, dp=4) == [f"Its time limit would save nothing. {said}"] and warned(member, dp=2) == []
    assert warned(member, dp=4, key="once") == [f"Its time limit would save nothing. {said}"]
    assert warned(member, dp=4, key="once") == [], "its run is queued already"
    Worker.objects.update(shared_checkpoints=True)
    assert told(parallel__dp="4") == "" and warned(member, dp=4) == []


def test_a_study_is_told_of_time_limits_at_which_nothing_could_be_saved(member: Client) -> None:
    factory.worker("yard-a")
    factory.worker("yard-b")
    Worker.objects.update(fields=["train.max_minutes"])
    why = "Its ranks would be on yard-a and yard-b, which share no folder for checkpoints."
    asked = {**MATRIX, "strategies": ["single", "dp"], "recompute": ["none"], "micro_batches": "1", "devices": "4"}
    limited = preview(member, {**asked, "train__max_minutes": "5"})
    assert f"Their time limit would save nothing.</strong> “DP 4”: {why}" in unescape(limited)
    assert "would save nothing" not in preview(member, asked)
    train = {"global_batch": 16, "max_minutes": 5}
    runs = [{"label": str(dp), "spec": {"parallel": {"dp": dp}, "train": train}} for dp in (1, 4)]
    sent: dict[str, Any] = {"content_type": "application/json", "headers": {"Idempotency-Key": "once"}}
    said = [member.post("/api/v1/studies", {"name": "listed", "runs": runs}, **sent).json()["meta"] for _ in range(2)]
    first = {"4": [f"Its time limit would save nothing. {why}"]}
    assert said == [{"skipped": {}, "warnings": first}, {"skipped": {}, "warnings": {}}]


def test_a_study_is_told_of_checkpoints_that_find_no_room(member: Client) -> None:
    """One alone, or all of them together where each has room: checkpoints outlive their run."""
    asked = {**MATRIX, "strategies": ["single", "dp"], "recompute": ["none"], "micro_batches": "1", "devices": "2"}
    saving = {**asked, "train__checkpoint_every": "5", "train__keep": "1"}
    free(0)
    model = {"layers": 2, "hidden": 32, "heads": 4, "seq": 32, "vocab": 256}
    one = checkpoint_bytes(RunSpec.model_validate({"model": model}))
    assert "may not find room" not in preview(member, asked)
    free(2 * one - 1)
    alone = f"Up to 2 checkpoints of {bytes_text(one)} are there at once, and yard-a has "
    early = unescape(preview(member, saving))
    assert f"Their checkpoints may not find room.</strong> “Single” and “DP”: {alone}" in early
    assert "; free some, or use Checkpoint every = 0." in early
    free(4 * one)
    assert "may not find room" not in preview(member, saving)
    late = unescape(preview(member, {**saving, "repeats": "3"}))
    taken = f"The checkpoints of all runs take up to {bytes_text(6 * one)} together; "
    assert f"{taken}yard-a has {bytes_text(4 * one)} left on its disk." in late
    free(2 * one, 2 * one)
    both = unescape(preview(member, {**saving, "repeats": "3"}))
    assert f"{taken}the hosts have {bytes_text(4 * one)} left on their disks." in both
    for one_disk in ({"host": "host-a"}, {"shared_checkpoints": True}):
        free(4 * one, 4 * one)
        Worker.objects.update(**one_disk)
        once = unescape(preview(member, {**saving, "repeats": "3"}))
        assert f"{taken}yard-a and yard-b have {bytes_text(4 * one)} left on the disk they share." in once
    free(4 * one, None)
    assert "may not find room" not in preview(member, {**saving, "repeats": "3"}), "a host has not said"


def test_the_parameters_of_a_study_s_model_are_counted_once(member: Client) -> None:
    """A thousandth of a second each: of many runs, several times, they would take longer than the rest of a preview."""
    free(0)
    asked = {**MATRIX, "strategies": ["single", "dp"], "recompute": ["none"], "micro_batches": "1", "devices": "2"}
    units.parameter_count.cache_clear()
    with patch.object(units, "unit_costs", wraps=units.unit_costs) as counted:
        assert "may not find room" in preview(member, {**asked, "train__checkpoint_every": "5", "repeats": "3"})
    assert counted.call_count == 1


@pytest.mark.parametrize(
    ("train", "count"),
    [
        ({}, 0),
        ({"max_minutes": 5}, 1),
        ({"steps": 4, "checkpoint_every": 5}, 0),
        ({"steps": 4, "checkpoint_every": 5, "max_minutes": 5}, 1),
        ({"steps": 40, "checkpoint_every": 5, "keep": 3}, 3),
    ],
)
def test_what_a_run_keeps_when_it_is_over(train: dict[str, Any], count: int) -> None:
    spec = RunSpec.model_validate({"train": train})
    assert bytes_kept(spec) == count * checkpoint_bytes(spec)


def test_a_run_is_checked_once_also_for_what_the_api_warns_of(member: Client) -> None:
    factory.worker("yard-a")
    with patch.object(submission, "fleet_check", wraps=submission.fleet_check) as checked:
        assert warned(member, dp=1) == []
    assert checked.call_count == 1


def warned(member: Client, dp: int, key: str = "") -> list[str]:
    """What the API warns of as it queues a run with a time limit."""
    spec = {"parallel": {"dp": dp}, "train": {"global_batch": 16, "max_minutes": 5, "checkpoint_every": 0}}
    headers = {"Idempotency-Key": key} if key else {}
    made = member.post("/api/v1/runs", {"spec": spec}, content_type="application/json", headers=headers).json()
    return list(made["meta"]["warnings"])
