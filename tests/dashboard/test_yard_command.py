"""`./run` with a command of manage.py, or with one that there is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands

from dashboard.yard.command import Command
from dashboard.yard.commands import OTHERS, OWN
from dashboard.yard.home import own
from tests.yard_process import ROOT


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("pasword", " The nearest: ./run password,"),
        ("migrat", " The nearest: ./run migrate,"),
        ("stop", " The nearest: ./run setup."),
        ("zzz", ""),
    ],
)
def test_a_command_that_there_is_not_is_told_with_the_nearest_ones(typed: str, near: str) -> None:
    with pytest.raises(SystemExit) as refused:
        Command([typed]).execute()
    said = str(refused.value)
    assert said.startswith(f"There is no command ./run {typed}.{near}")
    assert said.endswith(" ./run help says what there is.") and "manage.py" not in said
    assert ("nearest" in said) is bool(near)


def test_the_list_that_needs_no_django_has_all_commands_of_django() -> None:
    """A command that it lacked would be refused."""
    assert set(get_commands()) == {*OTHERS, "test"} and "test" in OWN


@pytest.mark.parametrize(("typed", "code"), [("chek", 1), ("check", 0)])
def test_run_answers_in_its_own_words(tmp_path: Path, typed: str, code: int) -> None:
    """It was `Unknown command: 'chek'. Did you mean check? Type 'manage.py help' for usage.`"""
    env = {**own(os.environ), "TRAINYARD_HOME": str(tmp_path)}
    asked = [sys.executable, "-m", "dashboard.yard", typed]
    done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    if code:
        assert done.stderr.startswith("There is no command ./run chek. The nearest: ./run check")
    else:
        assert "System check identified no issues" in done.stdout
