"""Searches that pages leave to the analyst: queued once, shown while waiting, cached, and never lost or left
hanging.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.analyst import claims, searching, services, shown
from dashboard.analyst.child import NICENESS, Child
from dashboard.analyst.models import Search, SearchState
from dashboard.ledger.models import Profile
from parallel_core.processes import alive
from tests.dashboard.database_file import NAME, ROOT, env_of, make_database
from tests.dashboard.run_analyst import DEADLINE_S, analyse_until, finish, lane_of, search_next

PART = "/planner/accuracy/bubbles/1.5B"
HX = {"HX-Request": "true"}
pytestmark = pytest.mark.django_db


def asked(model: str = "1.5B") -> Search:
    return services.ask("bubbles", {"model": model}, lambda: {"model": model}, asker=None)


def text(client: Client, address: str = PART) -> str:
    return str(client.get(address, headers=HX).content.decode())


def test_a_question_is_asked_once_and_its_answer_kept_for_all(member: Client, reader: Client) -> None:
    waiting = text(reader)
    search = Search.objects.get()
    assert f'data-search="{search.pk}"' in waiting and "1.5B: simulating every rate: begins in a moment." in waiting
    assert text(member).count("data-search=") == 1 and Search.objects.count() == 1
    assert search_next() and not search_next()
    for client in (member, reader):
        assert "1.5B: 3 rows" in text(client)
        assert "1.5B: 3 rows" in client.get(PART).content.decode(), (
            "without JavaScript the address returns a whole page"
        )
    search.refresh_from_db()
    assert (search.state, search.question, search.tries) == (SearchState.DONE, {}, 1)


def test_the_page_says_how_far_it_is_and_what_it_waits_for(reader: Client) -> None:
    first, second = asked("28.3B"), asked("1.5B")
    assert "waits for 1 search asked before it." in text(reader)
    Search.objects.filter(pk=first.pk).update(state=SearchState.RUNNING, done=1, of=2)
    said = text(reader, "/planner/accuracy/bubbles/28.3B")
    assert "28.3B: simulating every rate: 1 of 2." in said and 'aria-valuenow="50"' in said
    Search.objects.filter(pk=first.pk).delete()
    Search.objects.filter(pk=second.pk).update(asked_at=timezone.now() - timedelta(seconds=40))
    assert re.search(r"no analyst has taken it up for [4-9]\d s", text(reader))


def test_progress_and_the_answer_are_kept_as_they_come() -> None:
    search, lane = asked(), lane_of(searching)
    assert lane.move()
    search.refresh_from_db()
    assert (search.state, search.tries) == (SearchState.RUNNING, 1)
    finish(lane)
    search.refresh_from_db()
    assert search.state == SearchState.DONE and search.answer
    assert search.answer["predicted"][0]["model"] == "1.5B"
    assert search.ended_at and shown.unanswered(search, "", "", "", None) is None


def test_a_question_without_an_answer_says_why_and_offers_no_second_try(reader: Client) -> None:
    search = services.ask("bubbles", {"model": "1.5B"}, lambda: {"model": "7B"}, asker=None)
    assert search_next()
    said = text(reader)
    assert "The tables have no model 7B" in said and "Ask again" not in said
    search.refresh_from_db()
    assert search.state == SearchState.REFUSED


def test_a_search_that_breaks_says_so_and_can_be_asked_again(member: Client, reader: Client) -> None:
    search = services.ask("bubbles", {"model": "1.5B"}, lambda: {"models": "1.5B"}, asker=None)
    assert search_next()
    assert "It broke off:" in text(reader) and "Traceback" not in text(reader)
    assert "Ask again<" in text(member) and "Ask again<" not in text(reader), "a viewer would be refused"
    assert "Members may ask again." in text(reader) and "Members may" not in text(member)
    Search.objects.update(question={"model": "1.5B"})
    address = f"/searches/{search.pk}/again"
    assert reader.post(address).status_code == 403
    back = member.post(address, {"next": PART})
    assert back.status_code == 302 and back.headers["Location"] == PART
    assert search_next() and "1.5B: 3 rows" in text(reader)
    assert member.post(address, {"next": "https://elsewhere.example/"}).headers["Location"] == "/planner/"
    search.refresh_from_db()
    assert search.state == SearchState.DONE, "an answered search is not queued again"


def test_one_that_is_stopped_ends_its_process(member: Client, reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LOOK_S", 0.0)
    started: list[int] = []
    monkeypatch.setattr(searching, "Child", lambda *given: _noted(Child(*given), started))
    search, lane = asked("28.3B"), lane_of(searching)
    assert lane.move()
    assert os.getpriority(os.PRIO_PROCESS, started[0]) >= NICENESS, "it has a lower priority than ranks that are timed"
    address = f"/searches/{search.pk}/stop"
    assert reader.post(address).status_code == 403
    assert member.post(address, {"next": PART}).status_code == 302
    finish(lane)
    assert not alive(started[0])
    assert "Stopped by alice." in text(reader, "/planner/accuracy/bubbles/28.3B")


def test_only_who_asked_stops_a_search_and_admins(member: Client, reader: Client, admin: Any, bob: Any) -> None:
    address, theirs = f"/searches/{asked().pk}/stop", "Stop this search"
    assert theirs in text(member) and "Members may stop it." in text(reader), "nobody in particular asked for it"
    Search.objects.update(asker=bob)
    assert theirs in text(reader) and theirs not in text(member) and "bob asked for it" in text(member)
    assert member.post(address).status_code == 403
    assert Search.objects.get().waiting
    assert reader.post(address).status_code == 302, "a viewer may ask, so may stop that"
    assert Search.objects.get().detail == "Stopped by bob."
    Search.objects.update(state=SearchState.QUEUED)
    member.force_login(admin)
    assert member.post(address).status_code == 302 and not Search.objects.get().waiting


def _noted(child: Child, started: list[int]) -> Child:
    started.append(child.pid)
    return child


def test_one_whose_process_is_killed_is_tried_again_and_given_up_in_the_end(
    reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(searching, "Child", lambda *given: _noted(Child(*given), started))
    search, lane = asked("28.3B"), lane_of(searching)
    for tries in range(1, claims.MAX_TRIES + 1):
        assert lane.move()
        os.kill(started[-1], signal.SIGKILL)
        finish(lane)
        search.refresh_from_db()
        assert (search.state, search.tries) == (SearchState.QUEUED, tries)
    assert search_next()
    assert "It was begun 3 times and never came to its end" in text(reader, "/planner/accuracy/bubbles/28.3B")


def test_memory_and_time_have_limits(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LIMIT_S", -1.0)
    asked()
    assert search_next()
    assert "It took longer than" in text(reader)
    monkeypatch.setattr(searching, "MEMORY_BYTES", 1 << 20)
    Search.objects.update(state=SearchState.QUEUED, detail="")
    assert search_next()
    assert Search.objects.get().state in (SearchState.FAILED, SearchState.QUEUED)


@pytest.mark.full
def test_an_analyst_takes_up_what_another_left() -> None:
    asked()
    Search.objects.update(state=SearchState.RUNNING, tries=1)
    analyse_until(lambda: Search.objects.get().state == SearchState.DONE)
    assert Search.objects.get().tries == 2


def test_a_crowd_is_turned_away_and_old_answers_go(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_WAITING", 1)
    asked("28.3B")
    said = text(reader)
    assert services.TOO_MANY in said and Search.objects.count() == 1
    monkeypatch.setattr(services, "KEPT", 1)
    Search.objects.update(state=SearchState.DONE)
    old = Search.objects.get()
    Search.objects.create(kind="bubbles", key="k", question={}, state=SearchState.DONE)
    asked("1.5B")
    assert not Search.objects.filter(pk=old.pk).exists() and Search.objects.count() == 2


@pytest.mark.parametrize(
    "address", ["/partition/fleet/found?memory=30{}", "/partition/alpa?profile={profile}&workers=2&samples={}"]
)
def test_nobody_crowds_out_the_others(
    reader: Client, member: Client, bob: Any, profile: Profile, redis_url: str, address: str
) -> None:
    """Each number that a viewer puts into the address is a separate search."""
    addresses = [address.format(n, profile=profile.pk) for n in (1, 2, 4, 8, 16)]
    for one in addresses[: services.MOST_OF_ONE]:
        assert "data-search=" in text(reader, one)
    refused = text(reader, addresses[3])
    assert services.TOO_MANY_OF_ONE in refused and "data-search=" not in refused and "Ask again" not in refused
    assert Search.objects.filter(asker=bob).count() == Search.objects.count() == services.MOST_OF_ONE
    assert "data-search=" in text(reader, addresses[0]), "those that wait are still shown"
    assert "data-search=" in text(member, addresses[3]), "others ask meanwhile"
    assert "data-search=" in text(reader, addresses[3]), "and what they asked is shown to all"
    assert "data-search=" in text(reader, PART), "the tables have few models: who asked for one is all the same"
    Search.objects.filter(asker=bob)[0].delete()
    assert "data-search=" in text(reader, addresses[4])


def test_asking_again_is_asking(member: Client, alice: Any, bob: Any, redis_url: str) -> None:
    kept = {"kind": "bubbles", "question": {}}
    for n in range(services.MOST_OF_ONE):
        Search.objects.create(**kept, key=str(n), asker=alice)
    failed = Search.objects.create(**kept, key="failed", asker=bob, state=SearchState.FAILED)
    Search.objects.update(asked_at=timezone.now() - timedelta(hours=5))
    page = member.post(f"/searches/{failed.pk}/again", {"next": "/planner/accuracy/"}, follow=True)
    assert services.TOO_MANY_OF_ONE in page.content.decode()
    failed.refresh_from_db()
    assert failed.state == SearchState.FAILED
    Search.objects.filter(key="0").delete()
    member.post(f"/searches/{failed.pk}/again")
    failed.refresh_from_db()
    assert (failed.state, failed.asker) == (SearchState.QUEUED, alice)
    assert timezone.now() - failed.asked_at < timedelta(hours=1), "it has waited since it was asked again"


@pytest.mark.parametrize("next_", ["//evil.example/", "https://evil.example/", "1:2", "plans:page", "x", "/a\r\nX: y"])
def test_the_button_of_a_search_leads_nowhere_else(member: Client, alice: Any, next_: str) -> None:
    search = Search.objects.create(kind="splits", key="k", question={}, asker=alice)
    for action in ("again", "stop"):
        answer = member.post(f"/searches/{search.pk}/{action}", {"next": next_})
        assert (answer.status_code, answer["Location"]) == (302, "/a%0D%0AX:%20y" if next_[:2] == "/a" else "/planner/")


SEED = """
import django; django.setup()
from dashboard.analyst.services import ask
ask("bubbles", {"model": "28.3B"}, lambda: {"model": "28.3B"}, asker=None)
"""


class Deployment:
    """A database file with one search, and as many analysts as a test starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = env_of(folder, f"unix://{folder}/none.sock")
        self.analysts: list[subprocess.Popen[bytes]] = []
        make_database(folder, self.env, SEED)

    def start(self) -> subprocess.Popen[bytes]:
        made = subprocess.Popen([sys.executable, "manage.py", "analyst"], cwd=ROOT, env=self.env)
        self.analysts.append(made)
        return made

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        database = sqlite3.connect(self.folder / NAME, timeout=20)
        try:
            with database:
                return database.execute(statement).fetchall()
        finally:
            database.close()

    def wait(self, state: str) -> tuple[Any, ...]:
        def look() -> tuple[Any, ...]:
            return self.sql("SELECT state, tries, answer FROM analyst_search")[0]

        _until(lambda: look()[0] == state)
        return look()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    for analyst in made.analysts:
        analyst.kill()
        analyst.wait(10)


def test_a_killed_analyst_leaves_no_process_and_the_next_one_answers(deployment: Deployment) -> None:
    first = deployment.start()
    deployment.wait("running")
    _until(lambda: bool(_children(first.pid)))
    (child,) = _children(first.pid)
    first.kill()
    first.wait(10)
    _until(lambda: not alive(child))
    assert deployment.wait("running")[1:] == (1, None)
    deployment.sql("""UPDATE analyst_search SET question = '{"model": "1.5B"}'""")  # a question that takes a second
    second = deployment.start()
    assert deployment.wait("succeeded")[1] == 2
    second.terminate()
    assert second.wait(20) == 0
