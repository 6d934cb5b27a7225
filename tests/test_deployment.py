"""The deployment files: valid by the specification, secrets from the environment, Redis unreachable from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from tests.compose_process import interpolate

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = (ROOT / "docker-compose.yml").read_text()
SECRETS = {"SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "ADMIN_PASSWORD", "WORKER_TOKEN"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    data = yaml.safe_load(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret")))
    return dict(data["services"])


def parse(text: str) -> Any:
    options = compose_spec.PyOptions()
    options.apply_merge = True
    return options.from_yaml(text)


def test_compose_file_follows_the_specification() -> None:
    parse(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret"))).validate()


def test_an_unknown_key_would_be_refused() -> None:
    with pytest.raises(ValueError, match="portz"):
        parse(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret")).replace("ports:", "portz:"))


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_every_secret_is_asked_for(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        interpolate(COMPOSE, dict.fromkeys(SECRETS - {missing}, "secret"))


def test_redis_and_postgres_publish_no_port(services: dict[str, Any]) -> None:
    assert "ports" not in services["redis"]
    assert "ports" not in services["postgres"]
    assert "--requirepass" in " ".join(services["redis"]["command"])


def test_every_lasting_service_reaps_and_restarts(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["init"] is True, name
        assert service["restart"] == ("no" if name == "prepare" else "unless-stopped"), name


def test_workers_hold_neither_database_nor_signing_key(services: dict[str, Any]) -> None:
    for name in ("worker", "worker-gpu"):
        assert not {"DATABASE_URL", "SECRET_KEY", "ADMIN_PASSWORD"} & set(services[name]["environment"])
    assert services["worker-gpu"]["profiles"] == ["gpu"]


def test_settings_refuse_a_default_secret_without_debug() -> None:
    env = {k: v for k, v in os.environ.items() if k not in {"SECRET_KEY", "TRAINYARD_TESTING", "DEBUG"}}
    command = [sys.executable, "-c", "import dashboard.settings"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr
