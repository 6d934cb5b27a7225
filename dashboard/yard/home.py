"""The data folder of an embedded yard, and the secrets in it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import sqlite3
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.settings import NAME_PATTERN, NAME_VARIABLE, socket_url

ADMIN = "admin"
ROOT = Path(__file__).resolve().parent.parent.parent
DATABASE = "trainyard.sqlite3"
"""File of the embedded database."""
WORKER_NAME = "worker-name"
"""File with the name of the embedded worker."""
PREFIX = "TRAINYARD_"
READ = (
    "ALLOWED_HOSTS",
    "CSRF_TRUSTED_ORIGINS",
    "DATABASE_URL",
    "DEBUG",
    "FORWARDED_ALLOW_IPS",
    "HTTPS",
    "LOG_LEVEL",
    "REDIS_URL",
    "SECRET_KEY",
    "WORKER_TOKEN",
)
"""Variables that a yard's processes read and that many other programs use, too: in a shell they may be another
project's, so `./run` takes them with PREFIX before the name only."""
FOREIGN = (
    "APP",
    "BROKER_URL",
    "CONFIG_MODULE",
    "DJANGO_SETTINGS_MODULE",
    "GUNICORN_CMD_ARGS",
    "LOADER",
    "PYTHONDONTWRITEBYTECODE",
    "RESULT_BACKEND",
    "SKIP_CHECKS",
)
"""Variables by which Celery, Django and gunicorn would take another program's broker, application, settings or options;
so would any that begins with CELERY_. And the one by which each process of each start would compile what was changed
since the set-up, or all if that is another user's: half of its time."""


def default_home() -> Path:
    return Path(os.environ.get("TRAINYARD_HOME", ROOT / ".trainyard")).resolve()


def own(given: Mapping[str, str]) -> dict[str, str]:
    """The variables in `given` without those that another program may have set: READ, FOREIGN and CELERY_*."""
    return {k: v for k, v in given.items() if k not in (*READ, *FOREIGN) and not k.startswith("CELERY_")}


def left_out(given: Mapping[str, str]) -> str:
    """A sentence about the variables of READ that `given` has without PREFIX alone, so that they do not count; '' if
    there is none."""
    names = [name for name in READ if _has(given, name) and not _has(given, PREFIX + name)]
    if not names:
        return ""
    instead = ", ".join(PREFIX + name for name in names)
    return f"Not used, since another program may have set it: {', '.join(names)}. For this yard, set {instead}."


def _has(given: Mapping[str, str], name: str) -> bool:
    return bool(given.get(name, "").strip())


def _said(path: Path) -> str:
    """The content of the file; '' if there is none."""
    return path.read_text().strip() if path.exists() else ""


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@dataclass(frozen=True)
class Home:
    """Paths of all persistent data. It is one folder: copying it copies the yard."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def broker(self) -> Path:
        return self.path / "redis"

    @property
    def socket(self) -> Path:
        """Where the broker listens."""
        return self.broker / "redis.sock"

    @property
    def lock(self) -> Path:
        return self.path / "yard.lock"

    @property
    def password_file(self) -> Path:
        return self.path / "admin-password"

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    def check_database(self, given: Mapping[str, str] = os.environ) -> None:
        """Raises SystemExit if this yard was started with a database that only an unprefixed DATABASE_URL names, as
        earlier versions took it: a new one would begin without the runs that are there, and give their numbers to
        others."""
        if not _has(given, "DATABASE_URL") or _has(given, f"{PREFIX}DATABASE_URL"):
            return
        if self.database.exists() and self.database.stat().st_size:  # empty: one that was opened and never filled
            strange = self._newest_kept() > self._newest_numbered()
        else:
            strange = any(any(self.path.glob(f"workers/*/{kept}")) for kept in ("checkpoints", "attempts"))
        if strange:
            raise SystemExit(
                f"Not started: {self.path} has runs that are in no {DATABASE} there. It would begin without them, and "
                f"give their numbers to new runs. DATABASE_URL is not used without {PREFIX} before it: set "
                f"{PREFIX}DATABASE_URL to the database of these runs, or {PREFIX}HOME to another folder."
            )

    def _newest_kept(self) -> int:
        """The highest number of a run that has checkpoints in this folder; 0 if there are none."""
        names = (path.name.partition("-")[0] for path in self.path.glob("workers/*/checkpoints/*"))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _newest_numbered(self) -> int:
        """The highest number that the database in this folder gave to a run, also to one that was deleted since."""
        with contextlib.closing(sqlite3.connect(f"{self.database.resolve().as_uri()}?mode=ro", uri=True)) as database:
            try:
                found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'runs_run'").fetchone()
            except sqlite3.DatabaseError:  # no database, or one without tables
                found = None
        return int(found[0]) if found else 0

    def prepare(self) -> None:
        """Makes the folders, for the owner alone: the database in them has every password's hash and every token's.
        Raises SystemExit where there can be none."""
        try:
            for folder in (self.path, self.logs, self.broker):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise self._unusable(error) from None
        now = self.path.stat()
        shared = now.st_mode & stat.S_ISVTX  # such as /tmp, which others use too
        if now.st_uid == os.geteuid() and now.st_mode & 0o077 and not shared:
            self.path.chmod(0o700)

    def secret(self, name: str) -> str:
        """The secret in the file `name`, created on first use, and never readable by others than its owner."""
        return self._kept(name, secrets.token_urlsafe(48 if name == "secret-key" else 12))

    def worker_name(self) -> str:
        """The name of this yard's own worker, in the file WORKER_NAME from the first use on: what it has on this disk
        stays its own whatever the host is called later, and wherever this folder is moved.

        First it is that of the only worker that has a folder here, if the yard has been up here before: else that is
        another yard's. Without one it is the hostname; a name that no worker may have is not kept, so that whoever
        starts the worker refuses it.
        """
        there = [path.name for path in self.path.glob("workers/*") if path.is_dir() and NAME_PATTERN.match(path.name)]
        own = len(there) == 1 and self.password_file.exists()
        first = there[0] if own else socket.gethostname()
        return self._kept(WORKER_NAME, first) if NAME_PATTERN.match(first) else first

    def _kept(self, name: str, first: str) -> str:
        """The content of the file `name`, which gets the content `first` if there is none.

        The file gets its name when it is complete: a process that dies half-way leaves none, and no reader sees a part
        of it.
        """
        path = self.path / name
        if not _said(path):
            aside = path.with_name(f".{name}.{secrets.token_hex(8)}")
            with open(aside, "w", opener=_for_the_owner) as file:
                file.write(first + "\n")
                file.flush()
                os.fsync(file.fileno())
            if path.exists() and not _said(path):  # never one that another process has just made
                path.unlink()  # empty after a power failure
            with contextlib.suppress(FileExistsError):  # another process was first: its content counts
                os.link(aside, path)
            aside.unlink()
        return _said(path)

    def lacks(self, command: str, given: Mapping[str, str] = os.environ) -> str:
        """Why `./run password` or `./run compact` has nothing to tell or to do before the first `./run`; '' after that,
        and of any other command. Raises SystemExit where the folder may not be looked into, as another user's."""
        try:
            if command == "password" and not self.password_file.exists():
                return "No sign-in yet: it is made at the first ./run."
            if command == "compact" and not (self.database.exists() or given.get(f"{PREFIX}DATABASE_URL")):
                return f"There is no yard in {self.path}: it is made at the first ./run."
        except OSError as error:
            raise self._unusable(error) from None
        return ""

    def _unusable(self, error: OSError) -> SystemExit:
        why = f"The data folder {self.path} cannot be used: {error.strerror}."
        return SystemExit(f"{why} Set {PREFIX}HOME to one that can.")

    def admin_password(self) -> str:
        return self.secret(self.password_file.name)

    def environment(self, port: int, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of every process of this yard. Of the variables in `given` that name a database, a broker or
        another setting of a web application, only those that begin with PREFIX count."""
        ours = {"SECRET_KEY": self.secret("secret-key"), "REDIS_URL": socket_url(self.socket)}
        told = {name: value for name in READ if (value := given.get(PREFIX + name, "").strip())}
        fixed = {
            "TRAINYARD_HOME": str(self.path),
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "PYTHONUNBUFFERED": "1",
        }
        named = {} if _has(given, NAME_VARIABLE) else {NAME_VARIABLE: self.worker_name()}
        return {"TRAINYARD_PORT": str(port), **own(given), **ours, **told, **fixed, **named}
