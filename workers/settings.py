"""A worker's configuration from its environment: its name, its broker, its folder and its limits."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from parallel_core.limits import NO_PROGRESS_S, SPOOL_BYTES

ROOT = Path(__file__).resolve().parent.parent
NAME_VARIABLE = "TRAINYARD_WORKER_NAME"
NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$")
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What a bearer token may consist of (RFC 6750, section 2.1)."""
SAVE_S = 2.0
SEND_S = 1.0
"""Seconds for attempts that have saved and ended to send their last data; the rest is published at the next start."""
CORPORA_BYTES = 8 << 30
TELL_S = 0.5
"""Seconds to report that this worker leaves, before any of its attempts ends: else they would be placed here again."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Settings:
    """`home` is this worker's own folder; all it writes is there. `boot` identifies this life of the process."""

    name: str
    redis_url: str
    home: Path
    shared: Path
    """The yard's data folder: on the host of the web server, it has the uploaded corpora."""
    cpu_devices: int | None = None
    gpu_shares: int = 1
    """Devices that each GPU counts as. Ranks on one GPU communicate through the host: use it to try a split, not to
    time one."""
    no_progress_s: float = NO_PROGRESS_S
    save_s: float = SAVE_S
    """Seconds in which ranks may end their step and save it when the worker is asked to leave; then they are killed."""
    spool_bytes: int = SPOOL_BYTES
    """Bytes that the records of all attempts may take on this host's disk; above them, spans are dropped."""
    corpora_bytes: int = CORPORA_BYTES
    """Bytes that uploaded texts may take on this host's disk; above them, those used longest ago are removed."""
    url: str = ""
    token: str = ""
    address: str = ""
    """Name or address at which the other hosts of a run reach this one; empty: what `address.own_address` finds."""
    across_hosts: bool = True
    """Whether other hosts reach this one, so that it can have a part of a run over several hosts."""
    shared_checkpoints: Path | None = None
    """A folder that is the same on every host that names it, so that runs over several hosts can save there."""
    boot: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Reads REDIS_URL and TRAINYARD_*; an empty value counts as not set. Raises ValueError for an invalid value."""
        env = {key: value for key, value in (os.environ if env is None else env).items() if value.strip()}
        name = env.get(NAME_VARIABLE, socket.gethostname())
        if not NAME_PATTERN.match(name):
            raise ValueError(f"{NAME_VARIABLE}={name!r}: use letters, digits, '.', '_' and '-', at most 120.")
        shared = Path(env.get("TRAINYARD_HOME", str(ROOT / ".trainyard"))).resolve()
        cpus, shares = env.get("TRAINYARD_CPU_DEVICES"), env.get("TRAINYARD_GPU_SHARES", "1")
        return cls(
            name=name,
            redis_url=_broker(env.get("REDIS_URL", socket_url(shared / "redis.sock"))),
            home=shared / "workers" / name,
            shared=shared,
            cpu_devices=_number("TRAINYARD_CPU_DEVICES", cpus, int) if cpus else None,
            gpu_shares=_number("TRAINYARD_GPU_SHARES", shares, int),
            no_progress_s=_number(
                "TRAINYARD_NO_PROGRESS_S", env.get("TRAINYARD_NO_PROGRESS_S", str(NO_PROGRESS_S)), float
            ),
            save_s=_number("TRAINYARD_SAVE_S", env.get("TRAINYARD_SAVE_S", str(SAVE_S)), float),
            spool_bytes=_number("TRAINYARD_SPOOL_BYTES", env.get("TRAINYARD_SPOOL_BYTES", str(SPOOL_BYTES)), int),
            corpora_bytes=_number(
                "TRAINYARD_CORPORA_BYTES", env.get("TRAINYARD_CORPORA_BYTES", str(CORPORA_BYTES)), int
            ),
            url=_web(env.get("TRAINYARD_URL", "")),
            token=_token(env.get("TRAINYARD_TOKEN", "")),
            address=env.get("TRAINYARD_ADDRESS", ""),
            across_hosts=_switch("TRAINYARD_ACROSS_HOSTS", env.get("TRAINYARD_ACROSS_HOSTS", "1")),
            shared_checkpoints=_folder(env, "TRAINYARD_CHECKPOINTS"),
        )

    @property
    def broker_url(self) -> str:
        """The same server as a Celery URL."""
        return self.redis_url.replace("unix://", "redis+socket://")

    @property
    def leave_s(self) -> float:
        """Seconds in which the worker leaves in order: it says so, ranks save, and their last data is sent."""
        return TELL_S + self.save_s + SEND_S

    @property
    def attempts(self) -> Path:
        return self.home / "attempts"

    @property
    def checkpoints(self) -> Path:
        """Has one folder for each run (see `run_folders` and parallel_core.checkpoint)."""
        return self.shared_checkpoints or self.home / "checkpoints"

    @property
    def corpora(self) -> Path:
        """Cache of corpora, each named by the sha256 of its bytes."""
        return self.home / "corpora"


def socket_url(path: Path) -> str:
    """The URL of a Redis server that listens on the Unix socket `path`, whatever characters are in it."""
    return f"unix://{quote(str(path))}"


def address_of(url: str) -> str:
    """Of a Redis server's URL: host and port, or the socket's path; never a password."""
    there = urlsplit(url)
    return unquote(there.path) if there.scheme == "unix" else f"{there.hostname}:{there.port or 6379}"


def _broker(url: str) -> str:
    """Checks the URL. Raises ValueError if no client could use it; the message never has its password."""
    begins = url.partition("://")[0]
    if "://" not in url or begins not in {"redis", "rediss", "unix"}:
        raise ValueError("REDIS_URL must begin with redis://, rediss:// (TLS) or unix://.")
    try:
        there = urlsplit(url)
        complete = bool(there.path if begins == "unix" else there.hostname) and (there.port or True)
    except ValueError:  # the port is not a number
        complete = False
    if not complete:
        raise ValueError(f"REDIS_URL must name a {'path' if begins == 'unix' else 'host, and a port by its number'}.")
    return url


def _web(url: str) -> str:
    if url and urlsplit(url).scheme not in {"http", "https"}:
        raise ValueError(f"TRAINYARD_URL={url!r} must begin with http:// or https://.")
    return url.rstrip("/")


def _token(text: str) -> str:
    """Raises ValueError for what no request can carry, such as a token that was copied in part; it is not shown."""
    token = text.strip()
    if token and not TOKEN_PATTERN.fullmatch(token):
        raise ValueError("TRAINYARD_TOKEN has characters that no token has: copy it whole, as API tokens shows it.")
    return token


def _folder(env: Mapping[str, str], name: str) -> Path | None:
    """Makes the folder if it does not exist. Raises ValueError if that is impossible."""
    if name not in env:
        return None
    path = Path(env[name]).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{name}={env[name]!r} is no folder: {error.strerror}.") from None
    return path


def _switch(name: str, text: str) -> bool:
    if text.strip() not in {"0", "1"}:
        raise ValueError(f"{name}={text!r} must be 0 (no) or 1 (yes).")
    return text.strip() == "1"


def _number(name: str, text: str, kind: type[Number]) -> Number:
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number.") from None
    if not value > 0:
        raise ValueError(f"{name}={text!r} must be above 0.")
    return value
