"""The web of `./run` imports its pages while the database is prepared, and serves none before that has ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard.yard import gate, sign_in, up
from dashboard.yard.gate import Gate
from dashboard.yard.home import Home
from dashboard.yard.processes import Part
from tests.dashboard.database_file import ROOT, env_of

PASSES = "from dashboard.yard import gate; gate.wait(lambda: None)"
LOADS = """
import sys
from uvicorn_worker import UvicornWorker
from dashboard.gunicorn import WebWorker, gate
def loaded(*_): print("dashboard.runs.views" in sys.modules, "dashboard.asgi" in sys.modules)
gate.wait = loaded
UvicornWorker.load_wsgi = lambda worker: print("loads")
WebWorker.load_wsgi(WebWorker.__new__(WebWorker))
"""


def test_whoever_has_no_gate_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gate.VARIABLE, raising=False)
    gate.wait(pytest.fail)


def test_a_shut_gate_holds_with_beats_until_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BEAT_S", 0.01)
    subject, beats = Gate(), []
    for name, value in subject.variables.items():
        monkeypatch.setenv(name, value)

    def beat() -> None:
        beats.append(subject.is_open)
        if len(beats) == 3:
            subject.open()

    gate.wait(beat)
    assert beats == [False] * 3
    subject.open()
    gate.wait(pytest.fail)  # as a web that is started again


def test_another_process_waits_and_goes_on_when_it_is_opened() -> None:
    subject = Gate()
    env = {**os.environ, **subject.variables}
    with subprocess.Popen([sys.executable, "-c", PASSES], cwd=ROOT, env=env, pass_fds=[subject.reader]) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.0)
        subject.open()
        assert waiting.wait(30) == 0


def test_the_web_has_its_pages_before_it_waits_and_the_application_after(tmp_path: Path) -> None:
    """The application looks for the static files once, when it is made."""
    env = env_of(tmp_path, f"unix://{tmp_path}/none.sock")
    said = subprocess.check_output([sys.executable, "-c", LOADS], cwd=ROOT, env=env, text=True)
    assert said.splitlines() == ["True False", "loads"]


def test_the_web_starts_first_and_serves_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two cores the other processes would keep its first page waiting."""
    yard, done = up.Yard(Home(tmp_path)), list[str]()

    def notes(what: str) -> Callable[..., Any]:
        def note(*_: object) -> str:
            done.append(f"{what}{', open' if yard.gate.is_open else ''}")
            return what

        return note

    monkeypatch.setattr(Part, "start", lambda part, *_: notes(part.name)())
    monkeypatch.setattr(sign_in, "prepare", notes("prepared"))
    monkeypatch.setattr(sign_in, "verified", notes("verified"))
    monkeypatch.setattr(yard, "_wait_for_broker", lambda: None)
    monkeypatch.setattr(yard, "_wait_for_web", notes("page"))
    with contextlib.closing(yard.listener):
        yard._start()
        yard.lock.release()
    later = [f"{name}, open" for name in ("page", "controller", "analyst", "worker", "verified")]
    assert done == ["redis", "web", "prepared", *later]
