"""Studies and the runs in them through the API: made, joined, edited, cancelled; and what is told of their runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.roles import make_member
from dashboard.api.models import Scope
from dashboard.fleet.models import Worker
from dashboard.runs import services
from dashboard.runs.models import Checkpoint, Run, State
from dashboard.studies import reruns
from dashboard.studies.models import Study
from tests.dashboard import factory
from tests.dashboard.test_api import TINY, bearer
from tests.dashboard.test_resume import frame

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def ask(client: Client, alice: Any) -> Any:
    """A function that sends a request, by default as alice, and returns (status, JSON)."""

    def send(method: str, path: str, body: Any = None, user: Any = alice) -> tuple[int, Any]:
        text, headers = "" if body is None else json.dumps(body), bearer(user, Scope.SUBMIT)
        answer = client.generic(method, f"/api/v1/{path}", text, "application/json", headers=headers)
        return answer.status_code, answer.json()

    return send


def split(**parallel: Any) -> dict[str, Any]:
    return {**TINY, "parallel": parallel}


def test_a_list_of_specs_becomes_a_study(ask: Any, alice: Any, worker: Worker) -> None:
    runs = [
        {"label": "one", "spec": TINY},
        {"label": " two ", "spec": split(dp=2)},
        {"label": "4", "spec": split(dp=4)},
    ]
    status, made = ask("POST", "studies", {"name": "by script", "runs": runs, "repeats": 2, "retries": 1})
    assert status == 201, made
    data = made["data"]
    assert [one["name"] for one in data["members"]] == ["one #1", "two #1", "one #2", "two #2"]
    assert [one["position"] for one in data["members"]] == [0, 1, 2, 3]
    assert list(made["meta"]["skipped"]) == ["4"] and "the fleet has 2" in made["meta"]["skipped"]["4"]
    assert (data["name"], data["owner"], data["baseline"]) == ("by script", "alice", data["members"][0]["id"])
    queued = Run.objects.filter(study=data["id"])
    assert {(run.exclusive, run.retries_left, run.state) for run in queued} == {(True, 1, "queued")}
    client = Client()
    client.force_login(alice)
    for page in ("", "report/", "table.csv", "edit/", "add/"):
        assert client.get(f"/studies/{data['id']}/{page}").status_code == 200, page
    assert client.get(f"/studies/new/?clone={data['id']}").status_code == 200


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"runs": []}, "runs"),
        ({"runs": [{"label": "a", "spec": TINY}, {"label": " a", "spec": split(dp=2)}]}, "runs"),
        ({"runs": [{"label": "a", "spec": split(dp=4)}]}, "runs"),
        ({"runs": [{"label": "a", "spec": TINY}, {"label": "b", "spec": split(dp=8)}]}, "runs.1.spec.parallel.dp"),
        ({"runs": [{"label": " ", "spec": TINY}]}, "runs.0.label"),
        ({"runs": [{"label": "a", "spec": {"model": {"heads": 3}}}]}, "runs.0.spec.model.heads"),
        ({"runs": [{"label": "a"}]}, "runs.0.spec"),
        ({"name": " "}, "name"),
        ({"repeats": 21}, "repeats"),
    ],
)
def test_what_is_no_study_is_refused_by_field(ask: Any, worker: Worker, changed: Any, field: str) -> None:
    good = {"name": "s", "runs": [{"label": "a", "spec": TINY}]}
    status, answer = ask("POST", "studies", good | changed)
    assert status == 422 and field in answer["error"]["fields"], answer
    assert not Study.objects.exists() and not Run.objects.exists()


@pytest.mark.parametrize(
    "filtered", ["runs?owner=alcie", "studies?owner=alcie", "studies?kind=matrx", "runs?study=999"]
)
def test_a_filter_by_a_name_that_nobody_has_is_refused(ask: Any, alice: Any, filtered: str) -> None:
    """An empty list would say that there are none of that name."""
    field = filtered.partition("?")[2].partition("=")[0]
    status, answer = ask("GET", filtered)
    assert (status, list(answer["error"]["fields"])) == (422, [field])
    if field == "study":
        right = str(Study.objects.create(name="empty", owner=alice).pk)
    else:
        right = {"owner": alice.username, "kind": "postmortem"}[field]
    status, answer = ask("GET", f"{filtered.partition('=')[0]}={right}")
    assert (status, answer["data"]) == (200, [])


def test_a_run_joins_a_study_of_its_owner(ask: Any, alice: Any, admin: Any, django_user_model: Any) -> None:
    study = Study.objects.create(name="s", owner=alice)
    services.submit(owner=alice, spec=TINY, study=study, position=4)
    status, made = ask("POST", "runs", {"spec": TINY, "name": "late", "study": study.pk})
    assert status == 201 and made["data"]["study"] == study.pk
    run = Run.objects.get(name="late")
    assert (run.position, run.exclusive) == (5, True)
    carol = make_member(django_user_model.objects.create_user("carol"))
    assert ask("POST", "runs", {"spec": TINY, "study": study.pk}, carol)[0] == 403
    status, answer = ask("POST", "runs", {"spec": TINY, "study": 999})
    assert (status, list(answer["error"]["fields"])) == (422, ["study"])
    Study.objects.update(kind="fit")
    status, answer = ask("POST", "runs", {"spec": TINY, "study": study.pk})
    assert (status, list(answer["error"]["fields"])) == (422, ["study"])
    assert Run.objects.count() == 2


def test_members_tell_their_place_and_what_they_repeat(ask: Any, alice: Any, worker: Worker) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    first, second = study.runs.order_by("position")
    Run.objects.filter(pk=second.pk).update(state=State.LOST, cause="worker_lost")
    (again,) = reruns.run_again(study=study, user=alice)
    members = ask("GET", f"studies/{study.pk}")[1]["data"]["members"]
    told = {one["id"]: (one["position"], one["repeats"]) for one in members}
    assert told == {first.pk: (0, None), second.pk: (1, None), again.pk: (1, second.pk)}


def test_a_study_is_cancelled_with_all_its_runs(ask: Any, alice: Any, admin: Any, django_user_model: Any) -> None:
    study = Study.objects.create(name="s", owner=alice)
    ended = factory.finished(alice, study=study)
    going, queued = (factory.queued(alice, study=study) for _ in range(2))
    factory.start(going)
    theirs = factory.queued(admin, study=study)
    carol = make_member(django_user_model.objects.create_user("carol"))
    assert ask("POST", f"studies/{study.pk}/cancel", user=carol)[0] == 403
    status, answer = ask("POST", f"studies/{study.pk}/cancel")
    assert status == 200
    assert [one["id"] for one in answer["data"]["cancelled"]] == [going.pk, queued.pk]
    assert [one["id"] for one in answer["data"]["left"]] == [theirs.pk]
    for run, state, is_asked in ((ended, "succeeded", False), (going, "running", True), (queued, "cancelled", False)):
        run.refresh_from_db()
        assert (run.state, run.cancel_requested_at is not None) == (state, is_asked)
    again = ask("POST", f"studies/{study.pk}/cancel", user=admin)[1]["data"]
    assert ([one["id"] for one in again["cancelled"]], again["left"]) == ([going.pk, theirs.pk], [])
    said = [event.text for event in study.history]
    assert said == ["alice cancelled 2 runs.", f"{admin.get_username()} cancelled 1 run."], "those not cancelled before"


def test_names_tags_and_notes_are_changed_one_by_one(ask: Any, alice: Any, admin: Any, django_user_model: Any) -> None:
    study = Study.objects.create(name="s", owner=alice, notes="before")
    run = services.submit(owner=alice, spec=TINY, name="r", tags=["a"])
    data = ask("PATCH", f"runs/{run.pk}", {"tags": ["b", "b ", "c"]})[1]["data"]
    assert (data["name"], data["tags"]) == ("r", ["b", "c"])
    data = ask("PATCH", f"runs/{run.pk}", {"name": " new "})[1]["data"]
    assert (data["name"], data["tags"]) == ("new", ["b", "c"])
    data = ask("PATCH", f"studies/{study.pk}", {"notes": ""})[1]["data"]
    assert (data["name"], data["notes"]) == ("s", "")
    assert ask("PATCH", f"studies/{study.pk}", {"name": "t"})[1]["data"]["name"] == "t"
    for path in (f"runs/{run.pk}", f"studies/{study.pk}"):
        assert ask("PATCH", path, {"name": " "})[1]["error"]["fields"] == {
            "name": f"A {'run' if 'runs' in path else 'study'} needs a name."
        }
        assert ask("PATCH", path, {"state": "succeeded"})[0] == 422
        carol = make_member(django_user_model.objects.get_or_create(username="carol")[0])
        assert ask("PATCH", path, {"name": "mine"}, carol)[0] == 403


def test_every_copy_of_a_checkpoint_is_told(ask: Any, alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2})
    attempt = factory.start(run)
    for step, kept in ((10, [10]), (20, [10, 20])):
        factory.feed(attempt, 0, frame(step, kept))
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-b", step=20, bytes=7, seconds=0.2)
    found = factory.queued(alice, {"dp": 2}, resume_from={"run": run.pk, "step": 20})
    factory.start(found)
    said = "Rank 0 failed in loading: CheckpointError: The checkpoint step-00000020 is damaged: 3 bytes short."
    factory.end(found, State.FAILED, said, "refused")
    data = ask("GET", f"runs/{run.pk}")[1]["data"]
    assert data["checkpoints"] == [10]
    told = [[one[name] for name in ("step", "bytes", "worker", "damaged")] for one in data["checkpoints_detail"]]
    assert told == [[10, 1000, "yard-a", False], [20, 1000, "yard-a", True], [20, 7, "yard-b", True]]
    assert all(one["at"] and one["seconds"] > 0 for one in data["checkpoints_detail"])


def test_a_run_whose_source_was_deleted_does_not_look_as_if_it_began_anew(ask: Any, alice: Any) -> None:
    source = factory.queued(alice)
    factory.feed(factory.start(source), 0, frame(10, [10]))
    run = factory.queued(alice, resume_from={"run": source.pk, "step": 10})
    assert ask("GET", f"runs/{run.pk}")[1]["data"]["resume_from"] == {"run": source.pk, "step": 10}
    Run.objects.filter(pk=source.pk).delete()
    told = ask("GET", f"runs/{run.pk}")[1]["data"]
    assert told["resume_from"] == {"run": None, "step": 10}
    status, answer = ask("POST", "runs", {"spec": told["spec"], "resume_from": told["resume_from"]})
    assert status == 422 and "resume_from.run" in answer["error"]["fields"], "and not from step 0"
