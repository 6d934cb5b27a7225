"""The suite itself: it leaves no folder and no process behind, and no test may be left out unnoticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from parallel_core import processes
from tests import __main__ as suite
from tests import conftest, scratch
from tests.families import killed_after
from tests.yard_process import ROOT, YardProcess, wait_for

KILLED = """
import os
from tests import scratch
print(scratch.fresh_folder("killed"), flush=True)
os._exit(1)
"""
STEPS = """
import signal, sys
from tests import __main__ as suite
signal.signal(signal.SIGTERM, suite.terminated)
note = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
suite.together([(str(i), [sys.executable, "-c", note, f"{sys.argv[1]}/{i}"]) for i in range(suite.AT_A_TIME + 1)])
"""
LEFT_OUT = """
import pytest
pytest.importorskip("no_such_module_at_all", reason="missing: it")
"""


def test_the_folder_of_a_killed_process_is_removed_by_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True, check=False)
    left, own = Path(done.stdout.strip()), scratch.fresh_folder("own")
    assert left.is_dir()
    scratch.remove_left()
    assert not left.exists() and own.is_dir()


def test_sigterm_ends_the_steps_that_run_and_begins_no_other(tmp_path: Path) -> None:
    steps = subprocess.Popen([sys.executable, "-c", STEPS, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        noted = [tmp_path / str(i) for i in range(suite.AT_A_TIME)]
        wait_for("the first steps", lambda: all(note.exists() and note.read_text() for note in noted))
        steps.send_signal(signal.SIGTERM)
        assert steps.wait(60) == 128 + signal.SIGTERM
    finally:
        steps.kill()
    assert not any(processes.alive(int(note.read_text())) for note in noted)
    assert not (tmp_path / str(suite.AT_A_TIME)).exists()


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_that_does_not_end_in_order_is_killed_with_its_family() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    child = int(process.stdout.readline())
    with pytest.raises(subprocess.TimeoutExpired), killed_after(process):
        process.terminate()
        process.wait(0.1)
    assert process.wait(0) == -signal.SIGKILL
    wait_for("end of its child", lambda: not processes.alive(child))


class _Yard:
    """What the report of a failed test asks of a yard."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble, self.restored = trouble, 0

    def tails(self) -> Iterator[tuple[str, str]]:
        yield "log", "words of the log"

    def restore(self) -> None:
        self.restored += 1
        assert not self.trouble, self.trouble


@pytest.mark.parametrize("failed", [True, False])
def test_each_yard_is_made_ready_again_behind_a_failed_test(failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    yards: list[Any] = [_Yard("no web"), _Yard()]
    monkeypatch.setattr(YardProcess, "open", yards)
    report: Any = SimpleNamespace(failed=failed, sections=[])
    hook = conftest.pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)
    assert [yard.restored for yard in yards] == [int(failed)] * 2
    titles = ["the yard's log", "the yard could not be restored", "the yard's log"]
    assert [title for title, _ in report.sections] == (titles if failed else [])


@pytest.mark.parametrize(
    ("chosen", "does"),
    [
        ([], True),
        (["-k", "study", "-x"], True),
        (["tests"], True),
        (["tests/parallel_core/test_layout.py", "tests/browser/test_metrics.py::test_any[a::b]"], True),
        (["tests/browser/"], True),
        (["tests/parallel_core/test_layout.py"], False),
        (["-x", "tests/dashboard", "tests/test_suite.py::test_any"], False),
    ],
)
def test_a_part_without_browser_tests_wants_no_browser(chosen: list[str], does: bool) -> None:
    assert suite.selects(chosen, suite.BROWSER) == does


@pytest.mark.parametrize("name", ["", "chromium-headless-shell", "chromium"])
def test_root_installs_a_browser_only_where_there_is_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell is not asked for again where only the whole browser is packaged."""
    for program in filter(None, ("apt-get", name)):
        (tmp_path / program).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    suite.chromium.bring()
    assert (tmp_path / "asked").exists() == (not name)


@pytest.mark.parametrize("chosen", ["tests/test_suite.py", "tests/browser"])
def test_a_browser_is_brought_for_its_tests(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[str] = []
    monkeypatch.setattr(suite.chromium, "bring", lambda: brought.append(chosen))
    monkeypatch.setattr(suite, "step", lambda title, command: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["tests", chosen])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # main removes it
    assert suite.main() == 0
    assert brought == ([chosen] if chosen == suite.BROWSER else [])


@pytest.mark.parametrize("full", [False, True])
def test_each_engine_test_is_in_one_part_and_all_pairs_begin_first(full: bool) -> None:
    parts = [command for _, command in suite.suite("", full)]
    engine = [part for command in parts for part in command if part.startswith("tests/parallel_core/")]
    assert sorted(engine) == suite.files(suite.ENGINE)
    alone = [part for part in parts[0] if part.startswith("tests/")] == [suite.PAIRS]
    assert alone == full


def test_a_warning_fails_a_test() -> None:
    """pytest reports an exception of a thread, and a coroutine that nobody awaits, as warnings only."""
    with pytest.raises(UserWarning, match="raised"):
        warnings.warn("raised", stacklevel=1)


def test_only_the_long_suite_looks_for_new_examples(pytestconfig: pytest.Config) -> None:
    short = "not full" in pytestconfig.getoption("markexpr")
    found = settings()
    assert found.derandomize == short
    assert found.print_blob or short
    assert found.deadline is None


def test_a_module_that_is_skipped_for_want_of_something_fails_where_nothing_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "test_left_out.py").write_text(LEFT_OUT)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    env = {**os.environ, "TRAINYARD_NO_MISSING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, str(tmp_path)], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "skipped for want of something" in done.stdout
