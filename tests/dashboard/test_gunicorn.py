"""The settings as gunicorn reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.utils.module_loading import import_string
from uvicorn.config import Config
from uvicorn.lifespan.off import LifespanOff

from dashboard import gunicorn
from dashboard.asgi import application
from tests.dashboard.database_file import ROOT, env_of


@pytest.mark.full
def test_no_web_process_retires_while_it_has_streams_open(tmp_path: Path) -> None:
    """A retiring process would accept nothing until the arbiter kills it, a minute later; a yard has only one."""
    command = [sys.executable, "-m", "gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application"]
    env = env_of(tmp_path, f"unix://{tmp_path}/none.sock")
    done = subprocess.run([*command, "--print-config"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    read = dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
    settings = {name.strip(): value for name, value in read.items()}
    assert settings["max_requests"] == "0" and settings["worker_class"] == gunicorn.worker_class


def test_how_many_web_processes_there_are_is_a_setting() -> None:
    """It was a word of the image's command: only a changed command started more."""
    assert gunicorn.processes({}) == gunicorn.processes({"TRAINYARD_WEB_WORKERS": ""}) == 1
    assert gunicorn.processes({"TRAINYARD_WEB_WORKERS": " 4"}) == 4
    for wrong in ("0", "-1", "auto", "1.5"):
        with pytest.raises(SystemExit, match="TRAINYARD_WEB_WORKERS is a whole number, 1 or more, not"):
            gunicorn.processes({"TRAINYARD_WEB_WORKERS": wrong})


def test_the_application_is_not_asked_for_events_that_it_has_not() -> None:
    """Django has no handler of start and end: the log would say at every start that the protocol is not supported."""
    config = Config(application, log_config=None, **import_string(gunicorn.worker_class).CONFIG_KWARGS)
    config.load()
    assert config.lifespan_class is LifespanOff
