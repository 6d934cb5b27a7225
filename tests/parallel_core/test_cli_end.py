"""The end of a command whose output nobody reads any more, and of a run whose terminal is lost."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from parallel_core import processes
from parallel_core.cli import main, stop, train
from parallel_core.cli.common import checkpoint_of
from parallel_core.cli.output import say
from parallel_core.observe import progress
from parallel_core.observe.record_files import Frame, log_path
from parallel_core.observe.records import POINT

LIMIT_S = 120.0
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""The environment of a command that flushes its output when Python does by default."""


@pytest.fixture
def closed() -> Iterator[TextIO]:
    """A stream into a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        yield stream


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts the handlers of signals back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Fails where the block is interrupted, which would end all tests."""
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("interrupted")


def loss_of(step: int, series: str = "loss") -> Frame:
    """The record with the loss of a step."""
    return Frame({"kind": "points", "series": [[series, 1]]}, np.array([(step, 0.0, 1.0)], POINT).tobytes(), 0)


def test_from_the_first_line_that_nobody_reads_all_are_dropped(closed: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", closed)
    assert not say("read by nobody", error=True)
    assert say("dropped", error=True)


def test_a_line_that_cannot_be_written_for_another_reason_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No space left"), Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        say("too much")


def test_a_command_ends_well_whose_output_was_closed_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["spec", "train"]) == 0
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["train", "no such file"]) == 2


def test_a_step_that_nobody_reads_ends_the_run_but_no_later_one(
    closed: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second KeyboardInterrupt would end ranks that are saving."""
    monkeypatch.setattr(sys, "stdout", closed)
    shown = train.Shown("tokens")
    with pytest.raises(KeyboardInterrupt):
        shown.show(loss_of(1))
    shown.stopping = True
    with uninterrupted():
        shown.show(loss_of(2))


def test_a_run_that_is_stopping_stays_so_though_its_output_breaks_only_then(
    closed: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", closed)
    shown = train.Shown("tokens")
    shown.stopping = True
    with uninterrupted():
        shown.show(loss_of(1))


def test_each_step_is_there_at_once_for_who_reads_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdout", stream)
        train.Shown("tokens").show(loss_of(3))
        os.set_blocking(reading, False)
        assert pipe.readline().startswith("step      3  loss 1.000000")


def test_a_checkpoint_is_told_once_though_its_record_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    shown, about = train.Shown("tokens"), {"kind": "checkpoint", "bytes": 1000, "seconds": 0.5}
    for step, held_out in ((1, 1.5), (20, None), (20, 1.25)):
        shown.show(Frame({**about, "step": step, "held_out": held_out}, b"", 0))
    said = capsys.readouterr().out
    assert said == "".join(f"checkpoint of {done}: 1,000 bytes in 0.50 s\n" for done in ("1 step", "20 steps"))


def test_a_checkpoint_that_found_no_room_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    shown, full = train.Shown("tokens"), {"kind": "left_out", "why": "No space left on device", "last": False}
    shown.show(Frame({**full, "step": 10}, b"", 0))
    shown.show(Frame({"kind": "checkpoint", "step": 20, "bytes": 1000, "seconds": 0.5}, b"", 0))
    shown.show(Frame({**full, "step": 30}, b"", 0))
    first, _, third = capsys.readouterr().out.splitlines()
    assert first == "no checkpoint of 10 steps: No space left on device; there is none yet"
    assert third == "no checkpoint of 30 steps: No space left on device; that of 20 steps stays"


@pytest.mark.parametrize(
    ("resumed", "left"),
    [(0, "there is none, and the run was ending"), (8, "that of 8 steps, from which it went on, stays")],
)
def test_a_run_that_ends_without_room_for_its_checkpoint_says_what_there_is(
    capsys: pytest.CaptureFixture[str], resumed: int, left: str
) -> None:
    full = {"kind": "left_out", "step": 10, "why": "No space left on device", "last": True}
    train.Shown("tokens", resumed).show(Frame(full, b"", 0))
    assert capsys.readouterr().out == f"no checkpoint of 10 steps: No space left on device; {left}\n"


def test_a_lost_terminal_is_as_ctrl_c_once(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop.listen()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
    with uninterrupted():
        signal.raise_signal(signal.SIGHUP)


def test_a_terminal_that_is_lost_during_a_stop_does_not_end_it(
    handlers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop.listen()
    stop.announce(60.0)
    assert "stopping: the ranks save first" in capsys.readouterr().err
    with uninterrupted():
        signal.raise_signal(signal.SIGHUP)


def test_under_nohup_a_lost_terminal_changes_nothing(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop.listen()
    with uninterrupted():
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("fields", ["", "train.lr"], ids=["much", "a line"])
def test_a_pipe_that_is_closed_ends_a_command_without_a_traceback(fields: str, closed: TextIO) -> None:
    """What is longer than a buffer fails while it is printed, a line only at the end."""
    line = [sys.executable, "-m", "parallel_core", "spec", fields]
    done = subprocess.run(line, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, env=BUFFERED)
    assert (done.stderr, done.returncode) == ("", 128 + signal.SIGPIPE)


@pytest.fixture
def long(tmp_path: Path) -> list[str]:
    """The command of a run that does not end by itself, with its records in `out`."""
    model = {"layers": 2, "hidden": 16, "heads": 2, "seq": 16}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"model": model, "train": {"steps": 1_000_000, "global_batch": 4}}))
    return [sys.executable, "-m", "parallel_core", "train", str(path), "--out", str(tmp_path / "out")]


@pytest.mark.full
def test_a_run_saves_after_its_pipe_was_closed(long: list[str], tmp_path: Path) -> None:
    with subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=BUFFERED) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline().startswith("step      0")
        running.stdout.close()
        said = running.stderr.read()
        assert running.wait(LIMIT_S) == 130
    assert "saved after" in said and "Traceback" not in said
    assert checkpoint_of(tmp_path / "out")[1].step > 0


@pytest.mark.full
@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
def test_a_run_saves_after_its_terminal_was_lost(long: list[str], tmp_path: Path) -> None:
    """The command leads the session of a terminal whose other end is closed, as by a lost connection."""
    other, terminal = pty.openpty()

    def lead() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    running = subprocess.Popen(
        long, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, preexec_fn=lead
    )
    os.close(terminal)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not ((where := progress.read(tmp_path / "out", 0)) and where.step > 2):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.close(other)
        assert running.wait(LIMIT_S) == 130
    finally:
        running.kill()
        running.wait()
    assert not processes.alive(where.pid)
    assert checkpoint_of(tmp_path / "out")[1].step > 2


def test_a_held_out_loss_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    train.Shown("tokens").show(loss_of(3, "eval_loss"))
    assert capsys.readouterr().out == "step      3  held-out loss 1.000000\n"


def test_a_rank_that_chose_to_end_says_so_in_its_log_without_a_traceback(tmp_path: Path) -> None:
    """Nine lines of our own code stood where a run's page shows what the rank said last."""
    small = {"kind": "mlp", "layers": 1, "hidden": 8}
    diverges = {"steps": 300, "lr": 100, "global_batch": 4, "optimizer": "sgd"}
    (tmp_path / "spec.json").write_text(json.dumps({"model": small, "train": diverges}))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "parallel_core", "train", str(tmp_path / "spec.json"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode and "The loss is not finite since step" in done.stdout
    assert "Lower train.lr, to " in done.stdout, "only a run that ended well was diagnosed"
    said = log_path(out, 0).read_text()
    assert "The loss is not finite since step" in said.splitlines()[-1] and "Traceback" not in said
