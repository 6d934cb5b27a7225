"""`./run`: starts the embedded yard with `up` (the default), prints its `password`, compacts its database, or runs a
command of manage.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from dashboard.yard import sign_in
from dashboard.yard.commands import wanted_port
from dashboard.yard.home import ADMIN, ROOT, Home, default_home, left_out
from parallel_core.file_lock import FileLock


def password(home: Home) -> int:
    """Prints the admin's password, or that it no longer signs in; returns the exit status."""
    if why := home.lacks("password"):
        print(why)
        return 1
    told = sign_in.now(home)
    print(sign_in.words(home, told) if told else f"user: {ADMIN}\npassword: {home.admin_password()}")
    return 0


def compact(home: Home) -> int:
    """Gives the free space of the database back to the disk while no yard is up; returns the exit status."""
    if why := home.lacks("compact"):
        print(why)
        return 1
    home.prepare()
    lock = FileLock(home.lock)  # as long as this process lives: no yard starts meanwhile
    if not lock.hold():
        print("This yard is up, and would wait for that all the time: stop it first, then ./run compact.")
        return 1
    env = home.environment(port=0) | sign_in.scratch(home)
    return subprocess.run([sys.executable, "-m", "dashboard.yard.compact"], env=env, cwd=ROOT, check=False).returncode


def up(home: Home, arguments: Sequence[str]) -> int:
    """Parses the options of `up` and runs the yard; returns the exit status."""
    from dashboard.yard.up import Yard

    if (port := wanted_port(arguments)) is not None:
        os.environ["TRAINYARD_PORT"] = str(port)
    try:
        yard = Yard(home)
    except ValueError as error:  # a setting cannot be used
        raise SystemExit(str(error)) from None
    return yard.run()


def main(arguments: list[str]) -> int:
    command, *rest = arguments or ["up"]
    home = Home(default_home())
    if words := left_out(os.environ):
        print(words, file=sys.stderr)
    home.check_database()
    if command == "password":
        return password(home)
    if command == "compact":
        return compact(home)
    if command == "up":
        return up(home, rest)
    home.prepare()
    env = home.environment(port=0)
    os.execve(sys.executable, [sys.executable, "-m", "dashboard.yard.command", command, *rest], env)


if __name__ == "__main__":
    os.umask(0o077)  # nobody else on this host reads what a yard writes
    sys.exit(main(sys.argv[1:]))
