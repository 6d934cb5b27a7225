"""gunicorn's settings, the same for `./run` and the container."""

from __future__ import annotations

import gc
import importlib
import threading
from pathlib import Path
from typing import Any

from django.template import engines

from parallel_core.processes import die_with
from parallel_core.version import version

worker_class = "uvicorn_worker.UvicornWorker"
control_socket_disable = True
graceful_timeout = 2
"""Seconds: open event streams hold a shutdown for as long as this."""
timeout = 60
keepalive = 75
"""Seconds: with gunicorn's 2 a client that asks every two seconds meets a connection that is just being closed."""
max_requests = 0
"""No process retires: uvicorn would wait for event streams, which never end, and accept nothing until it is killed for
its silence. Nor is there a need: one had 129 MiB after 480 requests of pages and streams, and after 960."""


def post_worker_init(worker: Any) -> None:
    """What is loaded by now lives as long as the process: no collection looks through it again, in mid-request."""
    gc.collect()
    gc.freeze()
    threading.Thread(target=get_ready, name="readiness", daemon=True).start()


def get_ready() -> None:
    """What the first reader of a page would wait for else."""
    version()
    importlib.import_module("numpy.ma")  # NumPy loads it with the first median: 50 ms
    compile_templates()


def compile_templates() -> None:
    """All of them, 0.7 s in the background of a start: else the first reader of each page waits for its own."""
    engine = engines["django"]
    for folder in map(Path, engine.template_dirs):
        for path in sorted(folder.rglob("*.html")):
            engine.get_template(str(path.relative_to(folder)))


def post_fork(server: Any, worker: Any) -> None:
    """A worker process ends with its arbiter: uvicorn's would live on, hold the port and serve nobody's yard."""
    die_with(server.pid)
