"""The parts of `./run`: secrets, the lock, restarts with back-off, and a shutdown that leaves no process behind."""

from __future__ import annotations

import errno
import io
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dashboard.yard import sign_in
from dashboard.yard.__main__ import main
from dashboard.yard.home import Home
from dashboard.yard.processes import Part, last_line, stop_in_order
from dashboard.yard.up import web_socket
from parallel_core import processes

DEADLINE_S = 30.0
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def part(folder: Path, code: str, stop_after: float = 3.0) -> Part:
    return Part("part", [sys.executable, "-c", code], folder / "part.log", stop_after)


def test_secrets_are_made_once_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = home.admin_password()
    assert Home(tmp_path).admin_password() == first
    assert len(first) >= 12
    assert home.password_file.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_was_being_made_when_its_maker_died_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty secret file left by a dead process would keep the yard from ever starting again."""
    home = Home(tmp_path)
    with monkeypatch.context() as dying:
        dying.setattr("dashboard.yard.home.secrets.token_urlsafe", lambda length: os._exit(1))
        child = os.fork()
        if child == 0:
            try:
                home.admin_password()
            finally:  # a child that went on would be a second pytest
                os._exit(0)
    assert os.waitpid(child, 0)[1]
    assert not home.password_file.exists()
    assert len(home.admin_password()) >= 12


def test_a_secret_that_a_loss_of_power_took_is_made_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.password_file.touch()
    first = home.admin_password()
    assert len(first) >= 12
    assert (home.admin_password(), [path.name for path in tmp_path.iterdir()]) == (first, [home.password_file.name])


def test_a_secret_that_another_process_made_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, other = Home(tmp_path), Home(tmp_path)
    made: list[str] = []

    def late(_bytes: int) -> str:
        monkeypatch.undo()
        made.append(other.admin_password())
        return "too-late"

    monkeypatch.setattr("dashboard.yard.home.secrets.token_urlsafe", late)
    assert home.admin_password() == made[0] == other.admin_password()
    assert [path.name for path in tmp_path.iterdir()] == [home.password_file.name]


def test_only_the_owner_reads_a_folder_that_was_there_before(tmp_path: Path) -> None:
    home = Home(tmp_path / "yard")
    home.path.mkdir(mode=0o755)
    home.prepare()
    assert home.path.stat().st_mode & 0o777 == 0o700
    home.path.chmod(0o1777)  # such as /tmp
    home.prepare()
    assert home.path.stat().st_mode & 0o7777 == 0o1777


def test_a_setting_that_cannot_be_used_is_named_without_a_stack_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("é" * 50) / ("d" * 40)
    for name, value, said in (
        ("TRAINYARD_SAVE_S", "long", "TRAINYARD_SAVE_S='long' is not a number."),
        ("TRAINYARD_HOME", str(deep), "set TRAINYARD_HOME to a shorter one."),
    ):
        with monkeypatch.context() as patch:
            patch.setenv("TRAINYARD_HOME", str(tmp_path))
            patch.setenv(name, value)
            with pytest.raises(SystemExit, match=re.escape(said)):
                main(["up"])


def test_a_broker_that_does_not_come_up_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dashboard.yard import up

    def silent(url: str) -> None:
        raise TimeoutError(f"The broker at {url} did not answer within 10 s.")

    monkeypatch.setattr(up.broker, "wait_ready", silent)
    yard = up.Yard(Home(tmp_path))
    yard.broker.log.write_text("Can't open the append-only file: Permission denied\n")
    with pytest.raises(SystemExit, match=r"did not answer within 10 s\. It said last: Can't open the append-only file"):
        yard._wait_for_broker()
    yard.lock.release()


def test_the_broker_logs_in_utc_as_all_parts_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard.yard import up

    home = Home(tmp_path)
    home.prepare()
    monkeypatch.setenv("TZ", "Asia/Kolkata")  # 5:30 h ahead
    yard = up.Yard(home)
    begun = datetime.now(UTC)
    yard.broker.start(yard.env, tmp_path)
    up.broker.wait_ready(yard.env["REDIS_URL"])
    stop_in_order([[yard.broker]])
    yard.listener.close()
    yard.lock.release()
    times = re.findall(r"(\d+ \w+ \d{4} [\d:]{8})", yard.broker.log.read_text())
    assert times
    for text in times:
        at = datetime.strptime(text, "%d %b %Y %H:%M:%S").replace(tzinfo=UTC)
        assert abs(at - begun) < timedelta(hours=1), text


def test_a_process_that_ends_on_a_full_disk_is_told_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is on that disk, too: its last line was of hours before, and said nothing of why the process ends."""
    from dashboard.yard import up

    yard = up.Yard(Home(tmp_path))
    yard.lock.release()
    for free, full in ((up.LEAST_FREE, False), (0, True)):
        left = os.statvfs_result((4096, 4096, 100, free // 4096, free // 4096, 9, 9, 9, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _, left=left: left)
        assert yard.worker.on_exit is not None
        yard.worker.on_exit("worker", 1)
        said = capsys.readouterr().out
        assert "worker ended (1); starting it again." in said
        assert (f"The disk of {tmp_path} is full: free some of it." in said) is full


@pytest.mark.parametrize(("free", "said"), [(0, "the disk of {} is full. Free some"), (1 << 40, "the reason stands")])
def test_a_start_on_a_full_disk_is_refused_with_that(
    free: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself says no more than "disk I/O error"."""
    from dashboard.yard import up

    yard = up.Yard(Home(tmp_path))
    for part in (yard.broker, yard.web):
        monkeypatch.setattr(part, "start", lambda *_: None)
    monkeypatch.setattr(up.sign_in, "prepare", lambda *_: None)
    left = os.statvfs_result((4096, 4096, 100, free // 4096, free // 4096, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: left)
    try:
        with pytest.raises(SystemExit, match=said.format(tmp_path)):
            yard._start()
    finally:
        yard.lock.release()


def test_a_worker_gets_the_time_that_its_ranks_may_take_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dashboard.yard.up import Yard

    monkeypatch.setenv("TRAINYARD_SAVE_S", "30")
    yard = Yard(Home(tmp_path))
    yard.lock.release()
    assert yard.worker.stop_after > 31


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard.yard.up import say

    class Gone(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sys, "stdout", Gone())
    say("worker ended (1); starting it again.")


@pytest.mark.parametrize(
    ("told", "words"),
    [("", ""), (sign_in.CHOSEN, "./run changepassword admin"), (sign_in.NO_ADMIN, "none is named admin now")],
)
def test_a_password_that_no_longer_signs_in_is_not_shown(
    told: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path)
    secret = home.admin_password()
    said = f"Applied one migration.\nprepared\n{told}"
    code = f"import sys; assert sys.stdin.read() == {secret!r}; print({said!r})"
    monkeypatch.setattr(sign_in, "_command", lambda option: [sys.executable, "-c", code])
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    process = sign_in.prepare(home, dict(os.environ))
    assert process is not None and sign_in.verified(process) == told
    assert capsys.readouterr().out == "Applied one migration.\n"
    main(["password"])
    shown = capsys.readouterr().out
    assert (secret in shown, words in shown) == (not told, True)
    assert (secret in sign_in.words(home, told)) == (not told)


def test_a_preparation_that_fails_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "_command", lambda option: [sys.executable, "-c", "raise SystemExit(1)"])
    assert sign_in.prepare(Home(tmp_path), dict(os.environ)) is None


def test_the_yards_own_process_loads_nothing_that_only_its_parts_need() -> None:
    code = "import sys, dashboard.yard.up; print(sorted({'numpy', 'pydantic', 'django', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_two_homes_have_different_secrets(tmp_path: Path) -> None:
    homes = [Home(tmp_path / name) for name in "ab"]
    for home in homes:
        home.prepare()
    assert homes[0].admin_password() != homes[1].admin_password()


def test_a_second_yard_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    from dashboard.yard.up import Yard

    first = Yard(Home(tmp_path))
    with pytest.raises(SystemExit, match="already up"):
        Yard(Home(tmp_path))
    first.lock.release()
    Yard(Home(tmp_path)).lock.release()


@pytest.mark.parametrize("wanted", ["eight", "0", "65536", "8O80", "-1", "9" * 9])
def test_a_port_that_is_none_is_refused_with_the_ports_that_are(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PORT", wanted)
    with pytest.raises(SystemExit, match=r"TRAINYARD_PORT: a port is a whole number from 1 to 65535, not"):
        web_socket()


def test_options_of_up_are_read_and_others_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    for arguments, said in (["up", "--port=ten"], "--port: a port is"), (["up", "81"], "unrecognized arguments: 81"):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("TRAINYARD_PORT", str(other.getsockname()[1]))
        with pytest.raises(SystemExit, match=r"is taken\. Name a free one: \./run --port NUMBER"):
            web_socket()


def test_yards_that_are_started_together_take_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_PORT", raising=False)
    with web_socket() as first, web_socket() as second:
        ports = [one.getsockname()[1] for one in (first, second)]
    assert ports[0] != ports[1]


ANSWERS = """
import os, socket, sys
with socket.socket(fileno=int(sys.argv[1])) as listener:
    while True:
        with listener.accept()[0] as client:
            client.sendall(f"{os.getpid()}\\n".encode())
"""


def test_whoever_asks_while_the_web_is_started_again_waits_for_it(tmp_path: Path) -> None:
    """The port stays the yard's: no other program can take it in between."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", ANSWERS, str(listener.fileno())]
        subject = Part("web", command, tmp_path / "web.log", pass_fds=(listener.fileno(),))
        subject.start(dict(os.environ), tmp_path)
        first = subject.process
        assert first is not None
        first.kill()
        first.wait()
        with socket.create_connection(listener.getsockname(), DEADLINE_S) as client, client.makefile() as answer:

            def again() -> bool:
                subject.watch(dict(os.environ), tmp_path)
                return subject.process not in (None, first)

            wait_for(again)
            assert subject.process is not None and int(answer.readline()) == subject.process.pid
        stop_in_order([[subject]])


def test_the_last_line_of_a_log_is_the_last_that_says_anything(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("x" * 9000 + "\nbegun\nended: no such device \n\n  \n")
    assert last_line(log) == "ended: no such device"
    log.write_text("")
    assert last_line(log) == ""
    assert last_line(tmp_path / "gone.log") == ""


def test_a_part_starts_although_the_folder_of_its_log_is_gone(tmp_path: Path) -> None:
    subject = part(tmp_path / "logs", "pass")
    subject.start(dict(os.environ), tmp_path)
    assert subject.process is not None and subject.process.wait(DEADLINE_S) == 0


def test_a_dead_part_is_started_again(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    subject = part(tmp_path, "import time; time.sleep(600)")
    subject.on_exit = lambda name, code: told.append((name, code))
    subject.start(dict(os.environ), tmp_path)
    first = subject.process
    assert first is not None
    first.kill()
    first.wait()

    def again() -> bool:
        subject.watch(dict(os.environ), tmp_path)
        return subject.process is not None

    wait_for(again)
    assert subject.process is not None and subject.process.pid != first.pid
    assert told == [("part", -9)]
    stop_in_order([[subject]])


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "no process left"), subprocess.SubprocessError("preexec_fn")])
def test_a_part_that_cannot_be_started_now_is_tried_again(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other parts, and the runs that they look after, go on meanwhile."""

    def refused(*_: Any, **__: Any) -> Any:
        raise error

    told: list[tuple[str, Exception]] = []
    subject = part(tmp_path, "import time; time.sleep(600)")
    subject.on_failure = lambda name, why: told.append((name, why))
    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", refused)
        for _ in range(3):
            subject.retry_at = 0.0
            subject.watch(dict(os.environ), tmp_path)
    assert (subject.process, subject.failures, told) == (None, 3, [("part", error)])
    assert subject.retry_at > 0.0, "it does not wait"
    subject.retry_at = 0.0
    subject.watch(dict(os.environ), tmp_path)
    assert subject.process is not None
    stop_in_order([[subject]])


def test_a_part_that_ignores_term_is_killed(tmp_path: Path) -> None:
    subject = part(tmp_path, STUBBORN, stop_after=0.2)
    subject.start(dict(os.environ), tmp_path)
    wait_for(lambda: (tmp_path / "part.log").read_text().startswith("up"))
    assert subject.process is not None
    stop_in_order([[subject]])
    assert not processes.alive(subject.process.pid)
