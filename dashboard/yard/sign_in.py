"""What `./run` says about the admin's sign-in: the password that it made, unless another was chosen since."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from dashboard.yard.home import ADMIN, ROOT, Home

CHECK = "--check"
PREPARE_AND_CHECK = "--and-check"
"""Options of `prepare`: to verify the password alone, or after the rest."""
PREPARED = "prepared"
"""What `prepare` prints with `--and-check` once the other processes may start."""
CHOSEN = "The admin signs in with a password that was chosen later."
NO_ADMIN = "No account that may sign in has the admin's first name."
"""What `prepare` prints if the password that it was asked to verify no longer signs in: another was chosen, or the
account was renamed, deleted or deactivated."""


def prepare(home: Home, env: dict[str, str]) -> subprocess.Popen[str] | None:
    """Runs `dashboard.yard.prepare` until the other processes may start; None if it failed. The process that is
    returned verifies the password meanwhile, which takes a while: see `verified`."""
    command = _command(PREPARE_AND_CHECK)
    env = scratch(home) | env
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(home.admin_password())
        for line in process.stdout:
            if line.rstrip("\n") == PREPARED:
                return process
            print(line, end="", flush=True)
    except BaseException:
        stop(process)
        raise
    stop(process)
    return None


def scratch(home: Home) -> dict[str, str]:
    """Where SQLite copies a database that it rewrites: /var/tmp may be on another disk, a small one."""
    return {"SQLITE_TMPDIR": str(home.path)}


def verified(process: subprocess.Popen[str]) -> str:
    """CHOSEN or NO_ADMIN if the password of the data folder no longer signs in, else ''; waits until the process has
    found out."""
    assert process.stdout is not None
    with process:
        return _told(process.stdout.read())


def _told(printed: str) -> str:
    return next((line for line in printed.splitlines() if line in (CHOSEN, NO_ADMIN)), "")


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:
        pass  # waits, and closes the pipes


def now(home: Home) -> str:
    """CHOSEN or NO_ADMIN if the password of the data folder no longer signs in; '' if it does, or if that is not
    known."""
    done = subprocess.run(
        _command(CHECK),
        input=home.admin_password(),
        env=home.environment(port=0),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return _told(done.stdout)


def _command(option: str) -> list[str]:
    return [sys.executable, "-m", "dashboard.yard.prepare", option]


def words(home: Home, told: str) -> str:
    """How to sign in, where `told` is CHOSEN, NO_ADMIN, or '' if the password of the data folder still does."""
    if told == CHOSEN:
        return f"Sign in as {ADMIN} with the password you chose   (to set another: ./run changepassword {ADMIN})"
    if told == NO_ADMIN:
        return f"Sign in with your own account: none is named {ADMIN} now   (to make one more: ./run createsuperuser)"
    return f"Sign in as {ADMIN} with {home.admin_password()}   (again: ./run password)"
