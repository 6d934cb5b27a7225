"""The application in a real server, for tests that need one: streams, and how they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.dashboard.database_file import ROOT, env_of, make_database
from tests.yard_process import wait_for

DEADLINE_S = 30.0
SIGN_IN = """
import django; django.setup()
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from dashboard.runs.models import Run
from parallel_core.spec import RunSpec
bob = User.objects.create_user("bob")
client = Client(); client.force_login(bob)
Run.objects.create(pk=1, owner=bob, name="r", spec=RunSpec().model_dump(mode="json"), queued_at=timezone.now())
(settings.HOME / "cookie").write_text(client.session.session_key)
"""


class Site:
    """A uvicorn server on a unix socket, with its own database, one signed-in viewer, and the queued run 1."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.socket = folder / "web.sock"
        env = env_of(folder, redis_url)
        make_database(folder, env, SIGN_IN)
        self.cookie = (folder / "cookie").read_text()
        command = [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--uds", str(self.socket)]
        self.process = subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT, env=env)
        wait_for("the server", self._answers, DEADLINE_S)

    def _answers(self) -> bool:
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket))) as client:
                return client.get("http://localhost/live/stream").status_code == 401
        except httpx.TransportError:
            return False

    @asynccontextmanager
    async def open(self, topics: str, signed_in: bool = True, resume_after: str = "") -> AsyncIterator[httpx.Response]:
        """Opens the live stream, after the message with the id `resume_after` if given."""
        headers = {"Last-Event-ID": resume_after} if resume_after else {}
        cookies = {"sessionid": self.cookie} if signed_in else {}
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with (
            httpx.AsyncClient(transport=transport, cookies=cookies, timeout=DEADLINE_S) as client,
            client.stream("GET", f"http://localhost/live/stream?topics={topics}", headers=headers) as response,
        ):
            yield response

    async def get(self, path: str) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        cookies = {"sessionid": self.cookie}
        async with httpx.AsyncClient(transport=transport, cookies=cookies, timeout=DEADLINE_S) as client:
            return await client.get(f"http://localhost{path}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)


async def next_message(lines: AsyncIterator[str]) -> dict[str, str]:
    """The fields of the next message; comments are skipped."""
    fields: dict[str, str] = {}
    async for line in lines:
        if not line and "data" in fields:
            return fields
        name, _, value = line.partition(": ")
        if name:
            fields[name] = value
    raise AssertionError("the stream ended")
