"""gunicorn's settings, the same for `./run` and the container."""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import django
from django.template import engines
from django.urls import reverse
from uvicorn_worker import UvicornWorker

from dashboard.yard import gate
from parallel_core.processes import die_with, die_with_told_parent
from parallel_core.version import version


class WebWorker(UvicornWorker):
    """uvicorn's, which does not ask Django for lifespan events: it has none, and the log would say so at each start."""

    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {**UvicornWorker.CONFIG_KWARGS, "lifespan": "off"}

    def load_wsgi(self) -> None:
        """Imports the pages before it waits until it may serve them; the static files are there only then."""
        gc.disable()  # nothing of what is imported ever becomes unused; `post_worker_init` enables it
        import_pages()
        gate.wait(self.notify)
        super().load_wsgi()


def import_pages() -> None:
    """Imports what the first request would otherwise wait for."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    reverse("accounts:login")  # imports all URLs, and indexes them


def processes(given: Mapping[str, str] = os.environ) -> int:
    """How many web processes TRAINYARD_WEB_WORKERS asks for: 1 without it. Raises SystemExit for what is no number."""
    told = given.get("TRAINYARD_WEB_WORKERS", "").strip() or "1"
    if not (told.isascii() and told.isdigit() and int(told) > 0):
        raise SystemExit(f"TRAINYARD_WEB_WORKERS is a whole number, 1 or more, not {told!r}.")
    return int(told)


workers = processes()
worker_class = "dashboard.gunicorn.WebWorker"
control_socket_disable = True
graceful_timeout = 2
"""Seconds that open event streams can delay a shutdown."""
timeout = 60
keepalive = 75
"""Seconds. With gunicorn's default of 2, a client that polls every two seconds can hit a connection that is closing."""
max_requests = 0
"""0: worker processes are never replaced. On reaching a limit, uvicorn would wait for event streams, which never end,
and accept nothing until gunicorn kills it after `timeout`. Memory does not require it: a process had 129 MiB after 480
requests of pages and streams, and the same after 960."""


def on_starting(server: Any) -> None:
    """Makes the arbiter end with the yard that started it, if one did."""
    die_with_told_parent()


def post_worker_init(worker: Any) -> None:
    """Freezes the objects loaded so far, so that no collection scans them during a request; starts `get_ready`."""
    gc.collect()
    gc.freeze()
    gc.enable()
    threading.Thread(target=get_ready, name="readiness", daemon=True).start()


def get_ready() -> None:
    """Does in the background what the first request of a page would otherwise wait for."""
    version()
    importlib.import_module("numpy.ma")  # NumPy loads it with the first median: 50 ms
    compile_templates()


def compile_templates() -> None:
    """Compiles all templates (0.7 s); otherwise the first request of each page would compile its own."""
    engine = engines["django"]
    for folder in map(Path, engine.template_dirs):
        for path in sorted(folder.rglob("*.html")):
            engine.get_template(str(path.relative_to(folder)))


def post_fork(server: Any, worker: Any) -> None:
    """Makes a worker process end with its arbiter; uvicorn's would otherwise live on and keep the port in use."""
    die_with(server.pid)
