"""What reaches a yard from outside: other projects' variables, an HTTP proxy, the characters of its folder's name."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from dashboard.yard import broker, up
from dashboard.yard.home import PREFIX, READ, Home, left_out, own
from tests.answering import answering
from tests.dashboard.database_file import NAME, env_of
from tests.scratch import fresh_folder
from tests.yard_process import OF_ANOTHER_PROJECT, ROOT, YardProcess, tiny
from workers.settings import Settings, socket_url

CLOSED = "http://127.0.0.1:9"
"""A proxy that is not there."""
ODD = "C# 100%=?&+"
LOADED = """
import json
from django.conf import settings
names = ("DEBUG", "ALLOWED_HOSTS", "LOG_LEVEL", "REDIS_URL", "ROOT_URLCONF")
print(json.dumps({name: getattr(settings, name) for name in names} | settings.DATABASES["default"], default=str))
"""


def loaded(env: dict[str, str]) -> dict[str, Any]:
    """Django's settings in a process of that environment."""
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_variables_of_another_project_are_not_used(tmp_path: Path) -> None:
    home = Home(tmp_path)
    env = home.environment(8000, {**os.environ, **OF_ANOTHER_PROJECT})
    assert {name for name, value in OF_ANOTHER_PROJECT.items() if env.get(name) == value} == {"http_proxy"}
    found = loaded(env)
    assert (found["ROOT_URLCONF"], found["DEBUG"], found["LOG_LEVEL"]) == ("dashboard.urls", False, "INFO")
    assert found["NAME"] == str(tmp_path / "trainyard.sqlite3")
    assert found["REDIS_URL"] == Settings.from_env(env).redis_url == f"unix://{home.socket}"


def test_what_is_not_used_is_named_with_the_name_that_is() -> None:
    told = left_out({"DATABASE_URL": "a", "HTTPS": "1", "LOG_LEVEL": " ", "DEBUG": "1", "TRAINYARD_DEBUG": "0"})
    assert told == (
        "Not used, since another program may have set it: DATABASE_URL, HTTPS. "
        "For this yard, set TRAINYARD_DATABASE_URL, TRAINYARD_HTTPS."
    )
    assert left_out({"TRAINYARD_DATABASE_URL": "a", "PATH": "/bin"}) == ""


@pytest.mark.parametrize("command", ["up", "check"])
def test_a_folder_that_cannot_be_made_is_told_in_a_line(command: str, tmp_path: Path) -> None:
    """There was a stack trace."""
    (tmp_path / "file").touch()
    env = {**own(os.environ), "TRAINYARD_HOME": str(tmp_path / "file" / "yard")}
    asked = [sys.executable, "-m", "dashboard.yard", command]
    done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = f"The data folder {tmp_path}/file/yard cannot be used: Not a directory. Set TRAINYARD_HOME to one that can."
    assert done.stderr.strip() == said


@pytest.mark.parametrize("command", ["password", "compact"])
def test_a_folder_that_cannot_be_looked_into_is_told_in_a_line_too(command: str) -> None:
    """As another user's; here because the path is too long, which root may not look at either."""
    with pytest.raises(SystemExit, match=r"cannot be used: .+\. Set TRAINYARD_HOME to one that can\."):
        Home(Path("h" * 300)).lacks(command, {})


@pytest.mark.full
@pytest.mark.parametrize(
    ("url", "said"),
    [("postgres://own:secret@127.0.0.1:9/own", "port 9 failed: Connection refused"), ("", "file is not a database")],
)
def test_a_database_that_cannot_be_opened_is_told_in_its_words(url: str, said: str, tmp_path: Path) -> None:
    """There was a stack trace."""
    (tmp_path / NAME).write_text("no database " * 100)
    env = {**env_of(tmp_path, f"unix://{tmp_path}/none.sock"), "DATABASE_URL": url}
    asked = [sys.executable, "-m", "dashboard.yard.prepare"]
    done = subprocess.run(asked, cwd=ROOT, env=env, input="", capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("Not started: the database cannot be opened: ")
    assert said in done.stderr and "Traceback" not in done.stderr and "secret" not in done.stderr


@pytest.mark.parametrize("command", ["password", "migrate"])
def test_a_yard_whose_runs_are_in_another_database_does_not_begin_a_new_one(command: str, tmp_path: Path) -> None:
    """It would begin without the run 1 that is in the other one, and give its number to another."""
    (tmp_path / "workers" / "cpu" / "checkpoints" / "1").mkdir(parents=True)
    env = {**os.environ, **OF_ANOTHER_PROJECT, "TRAINYARD_HOME": str(tmp_path)}
    asked = [sys.executable, "-m", "dashboard.yard", command]
    done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("Not used, since another program may have set it: ")
    assert "set TRAINYARD_DATABASE_URL to the database of these runs" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["workers"]


def test_a_yard_begins_a_database_unless_there_are_runs_of_another(tmp_path: Path) -> None:
    home, another = Home(tmp_path), {"DATABASE_URL": "postgres://another:project@127.0.0.1:9/theirs"}
    home.check_database(another)
    (tmp_path / "workers" / "cpu" / "attempts").mkdir(parents=True)
    home.check_database({})
    home.check_database(another | {"TRAINYARD_DATABASE_URL": "postgres://own@127.0.0.1:9/own"})
    home.database.touch()
    with pytest.raises(SystemExit, match="Not started"):
        home.check_database(another)
    with closing(sqlite3.connect(home.database)) as database:
        database.execute("CREATE TABLE runs_run (id INTEGER PRIMARY KEY AUTOINCREMENT)")
        database.execute("INSERT INTO runs_run VALUES (4)")
        database.execute("DELETE FROM runs_run")
        database.commit()
    home.check_database(another)
    (tmp_path / "workers" / "cpu" / "checkpoints" / "4").mkdir(parents=True)
    home.check_database(another)
    (tmp_path / "workers" / "cpu" / "checkpoints" / "5-0a0b").mkdir()
    with pytest.raises(SystemExit, match="runs that are in no"):
        home.check_database(another)


def test_with_the_prefix_they_are(tmp_path: Path) -> None:
    told = {"DATABASE_URL": "postgres://own@127.0.0.1:9/own", "LOG_LEVEL": "debug", "ALLOWED_HOSTS": "yard.example.org"}
    prefixed = {PREFIX + name: value for name, value in told.items()}
    found = loaded(Home(tmp_path).environment(8000, {**os.environ, **OF_ANOTHER_PROJECT, **prefixed}))
    assert (found["HOST"], found["NAME"], found["LOG_LEVEL"]) == ("127.0.0.1", "own", "DEBUG")
    assert found["ALLOWED_HOSTS"] == ["yard.example.org"]


def named(home: Home, **given: str) -> str:
    """The name of the worker that `./run` would start."""
    return Settings.from_env(home.environment(8000, given)).name


def test_the_worker_keeps_its_name_when_the_host_is_called_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints, and the records that the yard does not have yet, are in a folder of that name."""
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop.local")
    before = Settings.from_env(Home(tmp_path).environment(8000, {}))
    assert (before.name, before.home) == ("laptop.local", tmp_path / "workers" / "laptop.local")
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop.fritz.box")
    after = Settings.from_env(Home(tmp_path).environment(8000, {}))
    assert (after.name, after.home) == (before.name, before.home)
    assert named(Home(tmp_path), TRAINYARD_WORKER_NAME="gpu1") == "gpu1" and named(Home(tmp_path)) == "laptop.local"
    by_hand = Settings.from_env({"TRAINYARD_HOME": str(tmp_path)})
    assert by_hand.name == "laptop.fritz.box", "a worker that is started by hand is no yard's own"


@pytest.mark.parametrize(
    ("workers", "name"), [((), "here"), (("before",), "before"), (("before", "here"), "here"), ((".hidden",), "here")]
)
def test_the_worker_of_a_folder_from_before_it_had_a_name_goes_on(
    workers: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    for one in workers:
        (tmp_path / "workers" / one).mkdir(parents=True)
    (tmp_path / "admin-password").touch()  # the yard was up before
    assert named(Home(tmp_path)) == name
    (tmp_path / "workers" / "another").mkdir(parents=True)
    assert named(Home(tmp_path)) == name


def test_a_folder_of_a_worker_of_another_yard_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started here by hand; this yard starts for the first time."""
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    (tmp_path / "workers" / "gpu1").mkdir(parents=True)
    assert named(Home(tmp_path)) == "here"


def test_a_hostname_that_is_no_name_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "my laptop")
    with pytest.raises(ValueError, match="TRAINYARD_WORKER_NAME='my laptop': use letters"):
        named(Home(tmp_path))
    monkeypatch.setattr(socket, "gethostname", lambda: "mylaptop")
    assert named(Home(tmp_path)) == "mylaptop"


def test_every_variable_without_the_prefix_is_owned_by_the_yard_and_in_the_guide() -> None:
    """A new setting without the prefix would otherwise be taken from any shell."""
    settings = (ROOT / "dashboard" / "settings.py").read_text()
    read = set(re.findall(r'(?:environ\.get|environ|flag|listed)[(\[]"([A-Z_]+)"', settings))
    assert "DATABASE_URL" in read and "TRAINYARD_HOME" in read
    assert {name for name in read if not name.startswith(PREFIX)} <= set(READ)
    guide = (ROOT / "docs" / "deploy.md").read_text().partition("## Settings of `./run`")[2]
    assert {f"{PREFIX}{name}" for name in READ} <= set(re.findall(r"`([A-Z_]+)`", guide))


def test_every_variable_that_a_start_reads_is_among_its_settings_in_the_guide() -> None:
    """Those that begin with the prefix as they are. What a worker reads is told once, for all workers."""
    sources = [ROOT / "run", ROOT / "dashboard" / "settings.py", *(ROOT / "dashboard" / "yard").glob("*.py")]
    read = {name for path in sources for name in re.findall(rf'"({PREFIX}[A-Z_]+)"', path.read_text())}
    assert {"TRAINYARD_HOME", "TRAINYARD_VENV", "TRAINYARD_PORT"} <= read
    guide = (ROOT / "docs" / "deploy.md").read_text().partition("## Settings of `./run`")[2]
    assert read - {"TRAINYARD_TESTING"} <= set(re.findall(r"`([A-Z_]+)`", guide))


def test_an_http_proxy_is_not_asked_for_the_yard_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", CLOSED)
    monkeypatch.setattr(up, "WEB_LIMIT_S", 2.0)
    yard = up.Yard(Home(tmp_path))
    yard.web.retry_at = float("inf")  # not started: the server below stands in for it
    with answering() as yard.port:
        yard._wait_for_web()
    yard.lock.release()


def test_a_folder_may_have_any_characters_in_its_name() -> None:
    home = Home(fresh_folder("odd") / ODD)
    home.prepare()
    env = home.environment(8000, {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"})
    assert loaded(env)["NAME"] == str(home.path / "trainyard.sqlite3")
    process, url = broker.start(home.broker)
    try:
        assert home.socket.is_socket()
        for told in (url, env["REDIS_URL"], Settings.from_env(env).redis_url, loaded(env)["REDIS_URL"]):
            with redis.Redis.from_url(told) as client:
                assert client.ping()
        with Celery(broker=Settings.from_env(env).broker_url).connection() as connection:
            connection.ensure_connection(max_retries=1)
            assert connection.connected
    finally:
        process.kill()
        process.wait()


def test_without_a_broker_address_the_workers_and_the_web_agree() -> None:
    home = Path("/srv") / ODD
    env = {k: v for k, v in os.environ.items() if k != "REDIS_URL"}
    env |= {"TRAINYARD_HOME": str(home), "DJANGO_SETTINGS_MODULE": "dashboard.settings", "SECRET_KEY": "s"}
    assert loaded(env)["REDIS_URL"] == Settings.from_env(env).redis_url == socket_url(home / "redis.sock")


@pytest.mark.full
@pytest.mark.faults
def test_a_yard_in_such_a_folder_runs() -> None:
    with closing(YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="1")) as yard:
        outer, yard.home = yard.home, yard.home / ODD
        yard.home.mkdir()
        yard.env["TRAINYARD_HOME"] = str(yard.home)
        yard.calibrated().up()
        with yard.client() as client:
            run = yard.submit(client, tiny(6))
            assert yard.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"
        assert not [path.name for path in outer.iterdir() if path != yard.home]


def postgres_of(port: int, **options: str) -> dict[str, str]:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return {**os.environ, "DATABASE_URL": f"postgres://of@127.0.0.1:{port}/yard?{query}"}


@pytest.mark.full
def test_a_url_of_the_database_counts_before_our_own_options() -> None:
    found = loaded(postgres_of(9, connect_timeout="60", sslmode="require"))["OPTIONS"]
    assert (str(found["connect_timeout"]), found["sslmode"]) == ("60", "require")
    assert found["keepalives_idle"] and found["tcp_user_timeout"] and "-c tcp_keepalives_idle=" in found["options"]


@pytest.mark.full
def test_a_database_that_takes_connections_and_does_not_answer_is_given_up() -> None:
    """As a server that hangs, or whose network drops packets, does. Without a limit this would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = postgres_of(server.getsockname()[1])
        asked = [sys.executable, "manage.py", "migrate", "--check"]
        done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert "timeout expired" in done.stderr
