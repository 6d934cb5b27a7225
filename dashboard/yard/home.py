"""The data folder of an embedded yard, and the secrets in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

ADMIN = "admin"
ROOT = Path(__file__).resolve().parent.parent.parent


def default_home() -> Path:
    return Path(os.environ.get("TRAINYARD_HOME", ROOT / ".trainyard")).resolve()


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
    def lock(self) -> Path:
        return self.path / "yard.lock"

    @property
    def password_file(self) -> Path:
        return self.path / "admin-password"

    def prepare(self) -> None:
        """Makes the folders, for the owner alone: the database in them has every password's hash and every token's."""
        for folder in (self.path, self.logs, self.broker):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        now = self.path.stat()
        shared = now.st_mode & stat.S_ISVTX  # such as /tmp, which others use too
        if now.st_uid == os.geteuid() and now.st_mode & 0o077 and not shared:
            self.path.chmod(0o700)

    def secret(self, name: str) -> str:
        """The secret in the file `name`, created on first use, and never readable by others than its owner.

        The file gets its name when it is complete: a process that dies half-way leaves none, and no reader sees a part
        of it.
        """
        path = self.path / name
        if not _said(path):
            aside = path.with_name(f".{name}.{secrets.token_hex(8)}")
            with open(aside, "w", opener=_for_the_owner) as file:
                file.write(secrets.token_urlsafe(48 if name == "secret-key" else 12) + "\n")
                file.flush()
                os.fsync(file.fileno())
            if path.exists() and not _said(path):  # never one that another process has just made
                path.unlink()  # empty after a power failure
            with contextlib.suppress(FileExistsError):  # another process was first: its secret counts
                os.link(aside, path)
            aside.unlink()
        return _said(path)

    def admin_password(self) -> str:
        return self.secret(self.password_file.name)

    def environment(self, port: int) -> dict[str, str]:
        """The environment of every process of this yard; variables that the user has set take precedence."""
        ours = {
            "TRAINYARD_HOME": str(self.path),
            "SECRET_KEY": self.secret("secret-key"),
            "REDIS_URL": f"unix://{self.broker / 'redis.sock'}",
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "TRAINYARD_PORT": str(port),
            "PYTHONUNBUFFERED": "1",
        }
        return {**ours, **os.environ, "TRAINYARD_HOME": str(self.path)}
