"""The data folder of an embedded yard and the secrets in it."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

ADMIN = "admin"


def default_home() -> Path:
    root = Path(__file__).resolve().parent.parent.parent
    return Path(os.environ.get("TRAINYARD_HOME", root / ".trainyard")).resolve()


@dataclass(frozen=True)
class Home:
    """Paths of everything that lasts. One folder: copying it copies the yard."""

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
        for folder in (self.path, self.logs, self.broker):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def secret(self, name: str) -> str:
        """The secret in the file `name`, made on first use; readable by its owner only from its first byte on."""
        path = self.path / name
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return path.read_text().strip()
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(48 if name == "secret-key" else 12) + "\n")
        return path.read_text().strip()

    def admin_password(self) -> str:
        return self.secret(self.password_file.name)

    def environment(self, port: int) -> dict[str, str]:
        """The environment of every process of this yard; what the person set wins."""
        ours = {
            "TRAINYARD_HOME": str(self.path),
            "SECRET_KEY": self.secret("secret-key"),
            "REDIS_URL": f"unix://{self.broker / 'redis.sock'}",
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "TRAINYARD_PORT": str(port),
            "PYTHONUNBUFFERED": "1",
        }
        return {**ours, **os.environ, "TRAINYARD_HOME": str(self.path)}
