"""Submitting, cancelling and renaming runs; draining workers."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from dashboard.fleet.models import Worker
from dashboard.fleet.services import drain
from dashboard.runs import cancelling, services, states
from dashboard.runs.models import Run, State
from tests.dashboard.fake_worker import spec

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(alice: Any) -> Run:
    return services.submit(owner=alice, spec=spec(dp=2), name="  first ", tags=["a", " a", "", "b, c"], retries=2)


def test_submit_queues_a_complete_row(run: Run, alice: Any) -> None:
    assert (run.state, run.name, run.devices, run.retries_left) == (State.QUEUED, "first", 2, 2)
    assert run.tags == ["a", "b", "c"]
    assert run.label == "DP"
    assert run.spec == spec(dp=2)
    assert run.events.get().actor == alice


@pytest.mark.parametrize(
    "split",
    [
        {"dp": 2, "micro_batches": 4, "zero": 3, "zero_backend": "fully_shard", "recompute": "selective"},
        {"pp": 48, "replicas": [1] * 47 + [2], "micro_batches": 4, "schedule": "1f1b-stash"},
    ],
)
def test_every_name_of_a_strategy_fits_its_column(alice: Any, split: dict[str, Any]) -> None:
    """PostgreSQL refuses a value that is too long for its column, SQLite does not: here the fields' own validators
    check.
    """
    some = {"recompute_layers": [0, 1]} if "recompute" in split else {}
    model = {"tied": False, "layers": 48, "hidden": 32, "heads": 4, "seq": 16}
    run = services.submit(
        owner=alice, spec={"model": model, "parallel": split | some, "train": {"global_batch": 8, "clip_norm": None}}
    )
    assert len(run.label) > 60
    run.full_clean()


def test_a_run_without_a_name_is_called_by_its_strategy(alice: Any) -> None:
    assert services.submit(owner=alice, spec={}).name == "Single"


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"spec": {"parallel": {"tp": 3}}}, "parallel.tp"),
        ({"spec": {"unknown": 1}}, "unknown"),
        ({"spec": {"train": {"lr": float("nan")}}}, "train.lr"),
        ({"spec": {"train": {"corpus": "blob:" + "0" * 64}}}, "train.corpus"),
        ({"name": "x" * 121}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"tags": ["t"] * 1 + [f"t{i}" for i in range(20)]}, "tags"),
        ({"tags": ["x" * 41]}, "tags"),
        ({"retries": -1}, "retries"),
    ],
)
def test_bad_input_names_its_field_and_queues_nothing(alice: Any, bad: dict[str, Any], field: str) -> None:
    with pytest.raises(services.Invalid) as caught:
        services.submit(**{"owner": alice, "spec": spec(), **bad})
    assert list(caught.value.field_errors) == [field]
    assert not Run.objects.exists()


def test_all_wrong_fields_are_named_together(alice: Any) -> None:
    with pytest.raises(services.Invalid) as caught:
        services.submit(owner=alice, spec={"parallel": {"tp": 3}}, name="x" * 121)
    assert set(caught.value.field_errors) == {"parallel.tp", "name"}


def test_viewers_do_not_submit(bob: Any) -> None:
    with pytest.raises(PermissionDenied):
        services.submit(owner=bob, spec=spec())


def test_a_queued_run_is_cancelled_at_once(run: Run, alice: Any) -> None:
    assert cancelling.request_cancel(run=run, user=alice).state == State.CANCELLED


def test_an_active_run_is_asked_to_stop_once(run: Run, alice: Any, admin: Any) -> None:
    nodes = [{"worker": "yard-a", "devices": [0, 1], "first_rank": 0, "address": ""}]
    states.place(run, nodes, Worker.objects.create(name="yard-a"))
    first = cancelling.request_cancel(run=run, user=alice).cancel_requested_at
    assert first is not None
    assert cancelling.request_cancel(run=run, user=admin).cancel_requested_at == first
    assert run.events.filter(kind="cancel_requested").count() == 1
    run.refresh_from_db()
    assert run.state == State.STARTING


def test_cancelling_an_ended_run_changes_nothing(run: Run, alice: Any) -> None:
    cancelling.request_cancel(run=run, user=alice)
    events = run.events.count()
    assert cancelling.request_cancel(run=run, user=alice).state == State.CANCELLED
    assert run.events.count() == events


def test_strangers_neither_cancel_nor_rename(run: Run, bob: Any) -> None:
    with pytest.raises(PermissionDenied):
        cancelling.request_cancel(run=run, user=bob)
    with pytest.raises(PermissionDenied):
        services.edit(run=run, user=bob, name="mine", tags=[], notes="mine")


def test_rename(run: Run, alice: Any) -> None:
    services.edit(run=run, user=alice, name="second", tags=["c"], notes=" as\r\nplanned ")
    run.refresh_from_db()
    assert (run.name, run.tags, run.notes) == ("second", ["c"], "as\nplanned")
    services.edit(run=run, user=alice, tags=["c", "d"], notes="as\nplanned")
    services.edit(run=run, user=alice, tags=["c", "d"])
    assert [(event.text, event.actor) for event in run.events.filter(kind="edited")] == [
        (
            "alice renamed it to “second”, instead of “first”; changed its tags to “c”, instead of “a”, “b” and “c”; "
            "changed its notes.",
            alice,
        ),
        ("alice changed its tags to “c” and “d”, instead of “c”.", alice),
    ]
    with pytest.raises(services.Invalid) as caught:
        services.edit(run=run, user=alice, name="  ", tags=[], notes="")
    assert list(caught.value.field_errors) == ["name"]


def test_only_staff_drains(alice: Any, admin: Any) -> None:
    worker = Worker.objects.create(name="yard-a")
    with pytest.raises(PermissionDenied):
        drain(worker=worker, user=alice)
    assert drain(worker=worker, user=admin).draining
