"""The command line as users run it: real processes, their output, their exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_core import file_lock, processes
from parallel_core.cli import train
from parallel_core.cli.common import CommandError, checkpoint_of
from parallel_core.file_lock import FileLock
from parallel_core.launch import EXIT_STOPPED
from parallel_core.local import Interrupted, LocalRunner
from parallel_core.observe import progress
from parallel_core.observe.cores import core_of
from parallel_core.observe.record_files import Frame, events_path, last_of, log_path
from parallel_core.outcome import points
from parallel_core.schedule.table import from_json
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import read_file

MODEL = {"layers": 2, "hidden": 16, "heads": 2, "seq": 16}
LIMIT_S = 120.0


def spec(**parallel: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "parallel": {"micro_batches": 2, **parallel},
        "train": {"steps": 4, "warmup_steps": 2, "global_batch": 4},
    }


def command(*arguments: str, **popen: Any) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "parallel_core", *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)


def finished(*arguments: str, **run: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "parallel_core", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S, check=False, **run)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The file of a spec with two pipeline stages."""
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec(pp=2)))
    return path


def test_train_says_what_is_wrong_with_a_run_that_was_broken(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec()))
    done = finished("train", str(path), "--out", str(tmp_path / "out"), "--inject", "high_lr:factor=1e30,step=1")
    assert done.returncode == 0, done.stderr
    assert "broken on purpose. Learning rate too high: " in done.stdout
    assert "The loss is not a number from step 2 on." in done.stdout


def test_train_prints_each_step_and_leaves_the_records_of_every_rank(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = finished("train", str(written), "--out", str(out))
    assert done.returncode == 0, done.stderr
    steps = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert steps == [0, 1, 2, 3]
    assert re.search(r"mean of \d timed steps: \S+ % bubble, \S+ % communication not hidden, ", done.stdout), (
        done.stdout
    )
    assert re.search(r"MFU .+: .+ a device of .+ \(", done.stdout), done.stdout
    peaks = [frame.header["peak"] for frame in read_file(events_path(out, 0)) if frame.kind == "summary"]
    assert [peak["devices"] for peak in peaks] == [len({core_of(0), core_of(1)})]
    for rank in (0, 1):
        log = log_path(out, rank).read_text()
        assert f"rank {rank}: stage {rank}, replica 0" in log and "step 0:" in log and "step 3:" in log
        kinds = [frame.kind for frame in read_file(events_path(out, rank))]
        assert {"hello", "phase", "points", "spans", "memory", "summary"} <= set(kinds)


def test_a_run_that_ends_before_its_timed_steps_says_nothing_of_them(tmp_path: Path) -> None:
    """`mean of 6 timed steps`, it said of six warm-up steps."""
    limits = {"steps": 1_000_000, "warmup_steps": 1000, "max_minutes": 1e-3, "global_batch": 4}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"model": {"kind": "mlp", "layers": 1, "hidden": 8}, "train": limits}))
    done = finished("train", str(path), "--out", str(tmp_path / "out"))
    assert "Ended after " in done.stdout and "timed step" not in done.stdout


def test_a_script_reads_the_end_of_a_run_from_stdout(written: Path, tmp_path: Path) -> None:
    done = finished("train", str(written), "--out", str(tmp_path / "out"), "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["ok"], said["failure"], said["steps_done"]) == (0, True, None, 4)
    assert said["records"] == str(tmp_path / "out") and said["timed"]["n"] == 2 and said["meters"]["mfu"] > 0
    assert f"{said['final_loss']:.6f}" in done.stderr and all(line in done.stderr for line in said["findings"])
    refused = finished("train", str(written), "--out", str(tmp_path / "out"), "--json")
    assert (refused.returncode, refused.stdout) == (2, "") and "holds the records of a run already" in refused.stderr


@pytest.mark.full
def test_a_step_of_a_pipeline_that_stays_full_is_told_with_its_own_time(tmp_path: Path) -> None:
    """The loss of a step is known only some steps later; the printed time must be the step's own."""
    path, out = tmp_path / "spec.json", tmp_path / "out"
    full = spec(pp=2, schedule="1f1b-stash")
    path.write_text(json.dumps({**full, "train": {**full["train"], "clip": "stage"}}))
    done = finished("train", str(path), "--out", str(out))
    assert done.returncode == 0, done.stderr
    told = [float(line.split()[4]) for line in done.stdout.splitlines() if line.startswith("step")]
    took = points(list(read_file(events_path(out, 0))), "step_time")
    assert list(took["step"]) == [0, 1, 2, 3]
    assert told == [round(float(value) * 1e3, 1) for value in took["value"]]


@pytest.mark.full
def test_the_same_spec_trains_the_same_through_the_yard(tmp_path: Path) -> None:
    """Several runs through one fork server; the layout does not change the loss."""
    with LocalRunner() as runner:
        runs = [
            runner.run(RunSpec.model_validate(spec(**split)), tmp_path / str(i), corpora=tmp_path / "corpora")
            for i, split in enumerate(({}, {"dp": 2, "micro_batches": 1}, {"tp": 2}, {"pp": 2}))
        ]
    assert [run.failure() for run in runs] == [""] * 4
    losses = [run.series("loss")["value"] for run in runs]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)


def test_a_folder_with_records_is_not_written_into(written: Path, tmp_path: Path) -> None:
    events_path(tmp_path, 0).touch()
    done = finished("train", str(written), "--out", str(tmp_path))
    assert done.returncode == 2 and "another --out" in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_a_run_needs_no_lock_where_the_mount_has_none(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    before = len(list(Path("/proc/self/fd").iterdir()))
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output"), train._claimed(tmp_path):
            pass
    else:
        with train._claimed(tmp_path):
            events_path(tmp_path, 0).touch()
        with pytest.raises(CommandError, match="holds the records"), train._claimed(tmp_path):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_two_runs_do_not_write_into_one_folder(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do two that begin in the same second and name none."""
    lock = FileLock(tmp_path / ".lock")
    assert lock.hold()
    done = finished("train", str(written), "--out", str(tmp_path))
    assert done.returncode == 2 and f"another run is writing into {tmp_path}; give another --out" in done.stderr
    lock.release()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train.time, "strftime", lambda form: "run-now")
    assert [str(train._new_folder()) for _ in range(3)] == ["run-now", "run-now-2", "run-now-3"]


def test_a_wrong_spec_is_told_field_by_field(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"model": {"heads": 3}, "surprise": 1}))
    done = finished("train", str(wrong))
    assert done.returncode == 2
    assert "surprise" in done.stderr and "Traceback" not in done.stderr


def test_a_failing_run_says_which_rank_where_and_why(tmp_path: Path) -> None:
    path, out = tmp_path / "spec.json", tmp_path / "out"
    path.write_text(json.dumps({**spec(), "trace": {"memory_cap": 1000}}))
    done = finished("train", str(path), "--out", str(out))
    assert done.returncode == 1
    assert "Rank 0 failed at step" in done.stdout and "MemoryCapExceeded" in done.stdout
    fault = last_of(out, 0, "fault")
    assert fault and fault["cause"] == "out_of_memory"
    assert "MemoryCapExceeded" in log_path(out, 0).read_text()


def test_schedule_prints_picture_grid_and_csv(written: Path) -> None:
    done = finished("schedule", str(written))
    assert done.returncode == 0 and "0SEND_ACT0" in done.stdout and "rank 1 |" in done.stdout
    assert "50 % idle over busy on the worst rank" in done.stdout
    assert finished("schedule", str(written), "--csv").stdout.count("\n") == 2
    assert from_json(finished("schedule", str(written), "--json").stdout).stages == 2


@pytest.fixture
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, int]]]:
    """A running two-stage run with the requested options: its command, and the pid of each rank."""
    path, out = tmp_path / "spec.json", tmp_path / "out"
    path.write_text(json.dumps({**spec(pp=2), "train": {"steps": 1_000_000, "global_batch": 4}}))
    more = getattr(request, "param", ())
    running = command("train", str(path), "--out", str(out), *more, start_new_session=True)
    deadline = time.monotonic() + LIMIT_S
    try:
        while not all((where := progress.read(out, rank)) and where.step > 2 for rank in (0, 1)):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield running, {rank: where.pid for rank in (0, 1) if (where := progress.read(out, rank))}
    finally:
        running.kill()
        running.wait()


@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_ctrl_c_and_term_save_and_leave_no_process(
    endless: tuple[subprocess.Popen[str], dict[int, int]], number: int, tmp_path: Path
) -> None:
    running, pids = endless
    os.kill(running.pid, number)
    _, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130 and "no process is left" in errors
    assert not any(processes.alive(pid) for pid in pids.values())
    found, manifest = checkpoint_of(tmp_path / "out")
    assert found.is_dir() and manifest.step > 2
    assert "Ctrl-C again ends them at once" in errors and f"saved after {manifest.step} steps: {found}" in errors


@pytest.mark.full
@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
@pytest.mark.parametrize(("interrupts", "code"), [(1, EXIT_STOPPED), (2, -signal.SIGKILL)])
def test_ranks_that_save_slowly_get_the_time_that_is_set_unless_ctrl_c_comes_again(
    interrupts: int, code: int, tmp_path: Path
) -> None:
    (tmp_path / "behaviour.json").write_text(json.dumps({"0": "stop_slowly"}))
    left = [KeyboardInterrupt()] * interrupts

    def interrupt(frame: Frame) -> None:
        if frame.kind == "phase" and left:
            raise left.pop()

    command = [sys.executable, "-m", "tests.parallel_core.launch_ranks"]
    with LocalRunner(command, save_s=LIMIT_S) as runner, pytest.raises(Interrupted) as end:
        runner.run(RunSpec(), tmp_path, on_frame=interrupt)
    assert [(one.rank, one.code) for one in end.value.outcome.exits] == [(0, code)]


@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
@pytest.mark.parametrize("endless", [("--no-progress", "4")], indirect=True)
def test_a_run_that_stands_still_is_ended_with_the_place_of_every_rank(
    endless: tuple[subprocess.Popen[str], dict[int, int]], tmp_path: Path
) -> None:
    running, pids = endless
    os.kill(pids[1], signal.SIGSTOP)
    told, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 1
    assert re.search(r"No rank moved for 4 s: rank 0 at step \d+ in .*; rank 1 at step \d+ in ", told)
    grid = told[told.index("1f1b: operations ") :].splitlines()
    for rank, line in enumerate(grid[1:3]):
        assert re.match(rf"rank {rank}, step \d+ \| (.*>\w+<|between operations: \w)", line)
    assert not any(processes.alive(pid) for pid in pids.values())
    assert "most recent call first" in log_path(tmp_path / "out", 0).read_text()


@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
def test_a_killed_rank_is_named_not_its_peer(endless: tuple[subprocess.Popen[str], dict[int, int]]) -> None:
    running, pids = endless
    os.kill(pids[1], signal.SIGKILL)
    told, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 1 and re.search(r"Rank 1 failed at step \d+ in .*: signal 9 \(SIGKILL\)", told)
    assert not any(processes.alive(pid) for pid in pids.values())


@pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
def test_ranks_do_not_outlive_a_killed_command(endless: tuple[subprocess.Popen[str], dict[int, int]]) -> None:
    running, pids = endless
    running.kill()
    assert processes.wait_gone([(pid, 0) for pid in pids.values()], LIMIT_S) == []
