"""Runs the compose files on a Docker engine, under a project name, an image name and a port of their own, so that no
real deployment on the same host is touched and its `.env` is not read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.scratch import fresh_folder
from tests.yard_process import ROOT, Web, free_port, wait_for

IMAGE = "trainyard-test:latest"
SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "ADMIN_PASSWORD", "WORKER_TOKEN")
PASSED_ON = re.compile(r"PATH|HOME|DOCKER_\w+|BUILDKIT_\w+|TORCH_INDEX|\w+_proxy|\w+_PROXY")
"""Variables of the tests' own environment that are passed on. Any other could override this project's env file."""
UP_LIMIT_S = 120.0
COMMAND_LIMIT_S = 1500.0
"""The first build installs all dependencies."""
KILL_MAIN = "import psutil; [child.kill() for child in psutil.Process(1).children()]"


def engine() -> str:
    """Version of the Docker engine; '' if there is none."""
    if not shutil.which("docker"):
        return ""
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Compose(Web):
    """`docker compose` for this checkout under its own project name. `values` are added to the generated `.env`
    file.
    """

    def __init__(self, **values: str) -> None:
        self.folder: Path = fresh_folder("docker")
        self.port = free_port()
        self.secrets = {name: secrets.token_hex(24) for name in SECRETS}
        told = {**self.secrets, "PORT": str(self.port), **values}
        (self.folder / "env").write_text("".join(f"{name}={value}\n" for name, value in told.items()))
        ours = [name for name, of in self._services().items() if of["image"] == "trainyard:latest"]
        own = {"services": {name: {"image": IMAGE} for name in ours}}
        (self.folder / "image.yml").write_text(yaml.safe_dump(own))

    @staticmethod
    def _services() -> dict[str, Any]:
        return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])

    @property
    def project(self) -> str:
        return f"trainyard-test-{self.port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        return self.secrets["ADMIN_PASSWORD"]

    def compose(self, *words: str) -> str:
        """Output of `docker compose WORDS`; AssertionError with that output if the command fails."""
        files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(self.folder / "image.yml")]
        own = ["--project-name", self.project, "--env-file", str(self.folder / "env"), *files]
        return self.docker("compose", *own, *words)

    def docker(self, *words: str) -> str:
        done = subprocess.run(
            ["docker", *words],
            env=self._passed_on(),
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"docker {' '.join(words)}\n{done.stdout}{done.stderr}"[-8000:]
        return done.stdout

    def by_the_guide(self, heading: str) -> None:
        """Runs the commands below that heading of docs/deploy.md as they stand, with this project in place of the
        deployment that they speak of. Files that they write are in this project's folder."""
        section = (ROOT / "docs" / "deploy.md").read_text().split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]
        block = re.search(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        assert block, f"no commands below {heading}"
        files = os.pathsep.join([str(ROOT / "docker-compose.yml"), str(self.folder / "image.yml")])
        own = {"COMPOSE_PROJECT_NAME": self.project, "COMPOSE_FILE": files}
        script = "set -eu\n" + block[1].replace(" trainyard_", f" {self.project}_")
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=self.folder,
            env=self._passed_on() | own | {"COMPOSE_ENV_FILES": str(self.folder / "env")},
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{heading}\n{done.stdout}{done.stderr}"[-8000:]

    @staticmethod
    def _passed_on() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}

    def up(self) -> Compose:
        """Builds the image if it is missing, starts the services, and returns once the worker is online."""
        self.compose("up", "-d")
        wait_for("an answer of the web", self._answers, UP_LIMIT_S)
        with self.client() as client:
            wait_for("an online worker", lambda: self._online(client), UP_LIMIT_S)
        return self

    def _answers(self) -> bool:
        """Docker's own proxy takes connections before the web does, and resets them."""
        try:
            return httpx.get(f"{self.url}/accounts/login/").is_success
        except httpx.TransportError:
            return False

    def _online(self, client: httpx.Client) -> bool:
        return any(not worker["silent"] for worker in client.get("/api/v1/workers").json()["data"])

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "-aq", service).strip()
        return dict(json.loads(self.docker("inspect", container))[0])

    def kill_main(self, service: str) -> None:
        """Kills the service's main process from inside the container. `docker kill` would not do, because the engine
        does not restart a container that a user has killed. Detached: the killing process dies with the container.
        """
        self.compose("exec", "--detach", service, "python", "-c", KILL_MAIN)

    @contextlib.contextmanager
    def off_the_network(self, service: str) -> Iterator[None]:
        """The service's container is on no network inside this block, and on its own one again afterwards."""
        name, network = self.inspect(service)["Name"].lstrip("/"), f"{self.project}_default"
        self.docker("network", "disconnect", "--force", network, name)
        try:
            yield
        finally:
            self.docker("network", "connect", "--alias", service, network, name)

    def close(self) -> None:
        """Removes all containers, volumes, networks and the image."""
        self.compose("down", "--volumes", "--timeout", "20")
        subprocess.run(["docker", "image", "rm", IMAGE], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
