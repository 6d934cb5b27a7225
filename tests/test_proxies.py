"""An HTTP proxy that the engine tells its containers is not asked for the yard's own services; nginx, set up as
docs/deploy.md says, serves a real web process.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dashboard.accounts.throttling import MOST
from parallel_core.limits import MAX_CORPUS_BYTES, MAX_TRACE_BYTES
from tests.answering import answering
from tests.compose_process import interpolate
from tests.dashboard.database_file import ROOT, env_of, make_database
from tests.scratch import fresh_folder
from tests.test_deployment import COMPOSE, GUIDE, SECRETS
from tests.yard_process import free_port, wait_for

NAME, PASSWORD = "yard.example.org", "the-right-one-1"
MIB = 1024 * 1024
SEED = f"""
import django; django.setup()
from datetime import timedelta
from django.contrib.auth import get_user_model
from django.utils import timezone
from dashboard.api.models import ApiToken
user = get_user_model().objects.create_superuser("admin", password={PASSWORD!r})
print(ApiToken.make(user=user, name="t", scope="submit", expires_at=timezone.now() + timedelta(days=1))[1])
"""
AROUND = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


def server_block() -> str:
    found = re.search(r"^```nginx\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert found, "the guide has no block for nginx"
    return found[1]


def proxy_settings() -> dict[str, str]:
    """What the guide's section on proxies puts into .env."""
    found = re.search(r"^### Behind a proxy\n.*?^```\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert found
    return dict(line.split("=", 1) for line in found[1].splitlines())


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret")))["services"])


def test_the_guides_proxy_lets_every_upload_through() -> None:
    size = re.search(r"client_max_body_size (\d+)m;", server_block())
    assert size and int(size[1]) * MIB > MAX_TRACE_BYTES + MIB and MAX_TRACE_BYTES > MAX_CORPUS_BYTES
    text = interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret") | proxy_settings())
    web = yaml.safe_load(text)["services"]["web"]["environment"]
    assert str(web["HTTPS"]) == "1" and NAME in web["ALLOWED_HOSTS"] and web["FORWARDED_ALLOW_IPS"] != "127.0.0.1"


@pytest.mark.parametrize("name", ["web", "controller", "worker", "worker-gpu"])
def test_a_proxy_that_the_engine_tells_every_container_is_not_asked_for_the_others(
    name: str, services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {f"{kind}_proxy": "http://proxy.example:3128" for kind in ("http", "https")} | {"no_proxy": ".example"}
    for variable, value in (told | {key.upper(): value for key, value in told.items()}).items():
        monkeypatch.setenv(variable, str(services[name]["environment"].get(variable, value)))
    for host in ("web:8000", "redis:6379", "postgres:5432", "127.0.0.1:8000"):
        assert urllib.request.proxy_bypass(host), host
    assert not urllib.request.proxy_bypass("elsewhere.example.org")


def test_the_health_check_of_the_web_asks_no_proxy(services: dict[str, Any]) -> None:
    _, python, *words = services["web"]["healthcheck"]["test"]
    assert python == "python"
    with answering() as port:
        command = [sys.executable, *(word.replace("127.0.0.1:8000", f"127.0.0.1:{port}") for word in words)]
        env = {"http_proxy": "http://127.0.0.1:9"}
        assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode != 0, "nobody answers now"


class BehindNginx:
    """A web process, with nginx in front of it; both have this host's loopback addresses alone."""

    def __init__(self, stack: ExitStack) -> None:
        self.folder = fresh_folder("nginx")
        self.folder.chmod(0o711)  # nginx stores uploads as a user of its own
        web, self.port = free_port(), free_port()
        env = env_of(self.folder, f"unix://{self.folder}/none.sock") | proxy_settings()
        env |= {"FORWARDED_ALLOW_IPS": "127.0.0.1", "SECRET_KEY": secrets.token_hex()}
        self.token = make_database(self.folder, env, SEED).split()[-1]
        (self.folder / "static").mkdir(exist_ok=True)
        serve = [sys.executable, "-m", "gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application"]
        self._start(stack, [*serve, "--bind", f"127.0.0.1:{web}"], env)
        self._configure(web)
        self._start(stack, ["nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")], dict(os.environ))
        wait_for("an answer through nginx", self._answers)

    def _configure(self, web: int) -> None:
        key, certificate = self.folder / "yard.key", self.folder / "yard.crt"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={NAME}"]
        subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
        here = {"listen 443": f"listen 127.0.0.1:{self.port}", "http://127.0.0.1:8000": f"http://127.0.0.1:{web}"}
        here |= {"/etc/nginx/yard.crt": str(certificate), "/etc/nginx/yard.key": str(key)}
        block = server_block()
        for told, ours in here.items():
            assert told in block
            block = block.replace(told, ours)
        (self.folder / "nginx.conf").write_text(AROUND.format(folder=self.folder, server=block))

    def _start(self, stack: ExitStack, command: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{Path(command[0]).name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)

    def _answers(self) -> bool:
        try:
            with self.visitor() as client:
                return client.get("/accounts/login/").status_code == 200
        except httpx.TransportError:
            return False

    def visitor(self, address: str = "127.0.0.1") -> httpx.Client:
        """A browser of that address. Like one on the default port, it names the host without a port."""
        transport = httpx.HTTPTransport(local_address=address, verify=False)
        own = {"Host": NAME, "Origin": f"https://{NAME}", "X-Forwarded-For": "203.0.113.7"}
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", transport=transport, headers=own, timeout=30)


@pytest.fixture(scope="module")
def nginx() -> Iterator[BehindNginx]:
    if not shutil.which("nginx"):
        pytest.skip("missing: nginx")
    with ExitStack() as stack:
        yield BehindNginx(stack)


def sign_in(client: httpx.Client, password: str) -> httpx.Response:
    page = client.get("/accounts/login/")
    match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert match
    form = {"username": "admin", "password": password, "csrfmiddlewaretoken": match[1]}
    cookies = f"csrftoken={client.cookies['csrftoken']}"  # a secure one, of another name than the address
    return client.post("/accounts/login/", data=form, headers={"Referer": f"https://{NAME}/", "Cookie": cookies})


@pytest.mark.full
def test_a_strangers_wrong_passwords_keep_only_him_out(nginx: BehindNginx) -> None:
    with nginx.visitor("127.0.0.2") as stranger, nginx.visitor("127.0.0.3") as admin:
        for _ in range(MOST):
            assert "failed sign-ins" not in sign_in(stranger, "wrong").text
        assert "failed sign-ins for this name" in sign_in(stranger, "wrong").text
        answer = sign_in(admin, PASSWORD)
        assert answer.status_code == 302 and "Secure" in answer.headers["set-cookie"], answer.text[:500]


@pytest.mark.full
def test_a_text_of_more_than_a_mebibyte_arrives(nginx: BehindNginx) -> None:
    with nginx.visitor() as client:
        own = {"Authorization": f"Bearer {nginx.token}"}
        text = b"To be, or not to be.\n" * (10 * MIB // 21)
        answer = client.post("/api/v1/corpora", files={"upload": ("long.txt", text)}, headers=own)
        assert answer.status_code in {200, 201}, answer.text[:500]
