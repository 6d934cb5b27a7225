"""What `./run` says about the admin's sign-in: the password that it made, unless another was chosen since."""

from __future__ import annotations

import subprocess
import sys

from dashboard.yard.home import ADMIN, ROOT, Home

CHOSEN = "The admin signs in with a password that was chosen later."
"""What `prepare` prints if the password that it was given is no longer the admin's."""


def prepare(home: Home, env: dict[str, str]) -> tuple[int, bool]:
    """Runs `dashboard.yard.prepare`; returns its exit status, and whether the password of the data folder holds."""
    done = _run(home, env)
    said = done.stdout.splitlines()
    if others := [line for line in said if line != CHOSEN]:
        print("\n".join(others), flush=True)
    return done.returncode, CHOSEN not in said


def holds(home: Home) -> bool:
    """Whether the password of the data folder is still the admin's; True if that cannot be found out."""
    return CHOSEN not in _run(home, home.environment(port=0), "--check", stderr=subprocess.DEVNULL).stdout.splitlines()


def _run(
    home: Home, env: dict[str, str], *arguments: str, stderr: int | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dashboard.yard.prepare", *arguments]
    given = home.admin_password()
    return subprocess.run(
        command, input=given, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False
    )


def words(home: Home, known: bool) -> str:
    """How to sign in, where `known` says whether the password of the data folder still does."""
    if not known:
        return f"Sign in as {ADMIN} with the password you chose   (to set another: ./run changepassword {ADMIN})"
    return f"Sign in as {ADMIN} with {home.admin_password()}   (again: ./run password)"
