"""The script `run`: what a shell with another project's variables, or a folder of another user, does to it."""

from __future__ import annotations

import json
import os
import platform
import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import version as of
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from parallel_core.version import version
from tests.yard_process import OF_ANOTHER_PROJECT, ROOT

FOREIGN = {name: value for name, value in OF_ANOTHER_PROJECT.items() if name != "http_proxy"}
PREFIXED = {"TRAINYARD_LOG_LEVEL": "debug", "TRAINYARD_NO_MISSING": "1"}


def script(**instead: Any) -> dict[str, Any]:
    """The functions of `run`, with some of them replaced."""
    functions = runpy.run_path(str(ROOT / "run"))
    functions["main"].__globals__.update(instead)
    return functions


@pytest.mark.parametrize("command", ["test", "bench"])
def test_tests_and_benchmarks_use_no_variable_of_another_project(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their databases would otherwise be made, and dropped, on the server of the other project."""
    for name, value in (FOREIGN | PREFIXED).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["run", command])
    became: dict[str, str] = {}
    script(set_up=lambda *_: None, become=lambda *_, env: became.update(env))["main"]()
    assert "PATH" in became and not FOREIGN.keys() & became.keys()
    assert became.items() >= PREFIXED.items()


@pytest.mark.parametrize("command", ["setup", "password", "compact"])
def test_arguments_that_a_command_has_not_are_refused_before_anything_is_done(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", command, "--port", "8001"])
    done: list[Any] = []
    run = script(set_up=lambda *_: done.append("set up"), become=lambda *_, **__: done.append("become"))
    with pytest.raises(SystemExit, match=f"./run {command} takes no arguments, but was given: --port 8001"):
        run["main"]()
    assert not done


def test_a_command_that_there_is_not_is_told_before_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told after it: a minute or two later, at the first start."""
    done: list[Any] = []
    run = script(set_up=lambda *_: done.append("set up"), become=lambda *words, **_: done.append(words))
    monkeypatch.setattr(sys, "argv", ["run", "pasword"])
    with pytest.raises(SystemExit, match=r"no command ./run pasword. The nearest: ./run password,"):
        run["main"]()
    assert not done
    monkeypatch.setattr(sys, "argv", ["run", "controller", "--take-over"])
    run["main"]()
    assert done == ["set up", ("-m", "dashboard.yard", "controller", "--take-over")]


@pytest.mark.parametrize("typed", ["--prot 8001", "--port ten", "up 8001"])
def test_an_option_that_cannot_be_is_told_before_the_set_up(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", *typed.split()])
    done: list[Any] = []
    run = script(set_up=lambda *_: done.append("set up"), become=lambda *words, **_: done.append(words))
    with pytest.raises(SystemExit) as ended:
        run["main"]()
    assert ended.value.code == 2 and not done and "./run: error:" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["run", "--port", "8001"])
    run["main"]()
    assert done == ["set up", ("-m", "dashboard.yard", "up", "--port", "8001")]


@pytest.mark.parametrize(("command", "said"), [("password", "No sign-in yet"), ("compact", "There is no yard in")])
def test_what_needs_a_yard_is_told_before_the_set_up_that_there_is_none(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two minutes later it was told the same."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["run", command])
    done: list[Any] = []
    with pytest.raises(SystemExit) as ended:
        script(set_up=lambda *_: done.append("set up"), become=lambda *_, **__: done.append("become"))["main"]()
    assert ended.value.code == 1 and not done
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize("asked", ["version", "--version", "-V"])
def test_the_version_is_that_of_trainyard_with_those_of_what_it_runs_on(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`./run version` said Django's alone, and `--version` was no option."""
    monkeypatch.setattr(sys, "argv", ["run", asked])
    script(PYTHON=Path(sys.executable))["main"]()
    own, below = capsys.readouterr().out.splitlines()
    assert own == f"Trainyard {version()}"
    assert below == f"Python {platform.python_version()}, PyTorch {of('torch')}, Django {of('Django')}"
    script(PYTHON=Path("/no/python"))["main"]()
    assert capsys.readouterr().out.splitlines()[1] == "Not set up yet: ./run setup does that."


def test_what_is_imported_beforehand_uses_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FOREIGN.items():
        monkeypatch.setenv(name, value)
    code = f"import json, os; open({str(tmp_path / 'env')!r}, 'w').write(json.dumps(dict(os.environ)))"
    with script(PYTHON=sys.executable)["importing"](code):
        pass
    env = json.loads((tmp_path / "env").read_text())
    assert FOREIGN.keys() & env.keys() == {"SECRET_KEY", "DJANGO_SETTINGS_MODULE"}
    assert not FOREIGN.items() & env.items()


def test_a_set_up_whose_lock_cannot_be_made_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path / "venv"))
    (tmp_path / "venv.lock").mkdir()  # cannot be opened, not by root either
    said: list[str] = []
    done: list[str] = []
    script(say=said.append, bring_up_to_date=lambda requirements, _: done.append(requirements))["set_up"]()
    assert done == ["requirements.txt"]
    assert len(said) == 1 and "venv.lock" in said[0] and "start none before it has ended" in said[0]


def test_an_environment_of_another_user_that_cannot_be_used_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one that root made with a Python in root's own folder: it was cleared, where the folder allowed that."""
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path))
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "lib" / "python3.12").mkdir(parents=True)
    asked: list[Sequence[str]] = []

    def make(command: Sequence[str], **_: Any) -> CompletedProcess[str]:
        asked.append(command)
        return CompletedProcess(command, 0)

    run = script(version=lambda: "", say=lambda _: None)
    monkeypatch.setattr(run["subprocess"], "run", make)
    run["make_venv"]()
    assert "--clear" in asked.pop(), "one's own is made anew"
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(SystemExit, match=r"its Python is gone, or is another version by now\. It was left"):
        run["make_venv"]()  # what root was told was that it may not run it
    assert asked.pop()[1] == "-c" and not asked, "it is looked at, not made"

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(run["subprocess"], "run", refused)
    with pytest.raises(SystemExit, match="you cannot run its Python"):
        run["make_venv"]()


def test_an_environment_of_another_user_that_cannot_be_read_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was a stack trace."""
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    monkeypatch.setattr(sys, "argv", ["run", "setup"])
    done: list[str] = []
    run = script(set_up=lambda requirements, _: done.append(requirements))
    run["main"]()
    assert done == ["requirements.txt"], "one of which all can be read is used"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SystemExit, match="is the environment of"):
        run["main"]()
    assert len(done) == 1


def test_an_environment_whose_python_cannot_be_looked_at_is_none() -> None:
    """As of one that root made with a Python in root's own folder; here because the path is too long."""
    assert not script(PYTHON=Path("p" * 300))["is_up_to_date"]("requirements.txt")


def test_an_environment_in_a_folder_that_may_not_be_entered_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was a stack trace; here because the path is too long, which root may not look at either."""
    monkeypatch.setattr(sys, "argv", ["run", "setup"])
    with pytest.raises(SystemExit, match=r"cannot be used: .+\. Set TRAINYARD_VENV to a folder of your own\."):
        script(VENV=Path("v" * 300), set_up=lambda *_: None)["main"]()
