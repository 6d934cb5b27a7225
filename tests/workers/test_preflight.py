"""A worker that cannot reach the yard says which of its settings is wrong, and starts as soon as it can."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.yard import broker
from tests.workers.harness import ROOT
from workers import preflight
from workers.contract import EVENTS
from workers.settings import Settings

ALLOWED = ("~worker.gpu1*", "~trainyard:control:gpu1", "+@all", "-@admin", "-@dangerous", f"(~{EVENTS} +xadd +xlen)")


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A broker that asks for a password, with a user for the worker gpu1."""
    home = tmp_path_factory.mktemp("r")
    process, url = broker.start(home)
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", "gpu1", "on", ">right", *ALLOWED)
        admin.execute_command("CONFIG", "SET", "requirepass", "of-the-yard")
    yield home / "redis.sock"
    process.kill()
    process.wait()


def settings(url: str, name: str = "gpu1") -> Settings:
    return Settings.from_env({"REDIS_URL": url, "TRAINYARD_WORKER_NAME": name, "TRAINYARD_HOME": "/tmp"})


def test_its_own_user_is_let_in(socket: Path) -> None:
    assert preflight.barred_by(settings(f"unix://gpu1:right@{socket}")) == ""


@pytest.mark.parametrize(
    ("user", "name", "words"),
    [
        ("gpu1:wrong@", "gpu1", "refuses the user or the password in REDIS_URL"),
        ("", "gpu1", "it asks for one, and the address has none"),
        ("gpu1:right@", "gpu2", "gpu1 of Redis (REDIS_URL) may not reach worker.gpu2. TRAINYARD_WORKER_NAME is gpu2"),
    ],
)
def test_what_bars_the_way_names_the_setting(socket: Path, user: str, name: str, words: str) -> None:
    said = preflight.barred_by(settings(f"unix://{user}{socket}", name))
    assert words in said and "wrong" not in said and "right" not in said


def test_nobody_there_is_told_with_the_address_once(tmp_path: Path) -> None:
    said = preflight.barred_by(settings("redis://nobody:secret@127.0.0.1:9/0"))
    assert said == "Redis at 127.0.0.1:9 (REDIS_URL) cannot be reached: Connection refused."


def test_it_waits_and_starts_when_the_broker_is_there(tmp_path: Path) -> None:
    said: list[str] = []
    waiting = threading.Thread(target=preflight.wait, args=(settings(f"unix://{tmp_path}/redis.sock"), said.append))
    waiting.start()
    while not said:
        time.sleep(0.01)
    process, _ = broker.start(tmp_path)
    try:
        waiting.join(30)
        assert not waiting.is_alive()
        assert len(said) == 2 and said[0].endswith("It is tried again every 2 s.") and "Redis answers" in said[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"REDIS_URL": "yard.example.org:6380"}, "REDIS_URL must begin with redis://"),
        ({"REDIS_URL": "redis://yard:port/0"}, "REDIS_URL must name a host, and a port by its number."),
        ({"REDIS_URL": "redis://"}, "REDIS_URL must name a host"),
        ({"TRAINYARD_URL": "yard.example.org"}, "TRAINYARD_URL='yard.example.org' must begin with http"),
        ({"TRAINYARD_WORKER_NAME": "my worker"}, "TRAINYARD_WORKER_NAME='my worker': use letters"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_it_with_a_sentence(tmp_path: Path, env: dict[str, str], words: str) -> None:
    whole = {**os.environ, "TRAINYARD_HOME": str(tmp_path), "REDIS_URL": "redis://127.0.0.1:9/0", **env}
    done = subprocess.run([sys.executable, "-m", "workers"], cwd=ROOT, env=whole, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(words) and "Traceback" not in done.stderr


@pytest.mark.parametrize(("asked", "code", "words"), [("--help", 0, "docs/deploy.md"), ("--name", 2, "--name")])
def test_it_is_told_nothing_by_arguments_and_says_so(tmp_path: Path, asked: str, code: int, words: str) -> None:
    whole = {**os.environ, "TRAINYARD_HOME": str(tmp_path), "REDIS_URL": "redis://127.0.0.1:9/0"}
    command = [sys.executable, "-m", "workers", asked]
    done = subprocess.run(command, cwd=ROOT, env=whole, capture_output=True, text=True, timeout=30)
    assert done.returncode == code and words in done.stdout + done.stderr
