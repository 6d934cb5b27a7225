"""The Celery app of a worker: one queue, one short task.

Early acknowledgement and no prefetch: the controller sends a message again that was lost with its worker, and a
duplicate is ignored because the attempt is already claimed. Celery neither waits for runs nor cancels them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from celery import Celery, bootsteps, signals
from celery.app.amqp import AMQP
from celery.worker.consumer import consumer
from kombu import Connection

from workers.contract import START_TASK, queue_of
from workers.outage import refusal
from workers.settings import Settings
from workers.worker import AlreadyRunning, Worker

settings = Settings.from_env()

RETRY_S = (1.0, 1.0, 3.0)
"""Seconds before the second try to reach an unreachable broker, the increase for each further try, and the longest
wait."""

SILENT_S = 5
"""Seconds for a connection, for an answer, and between looks whether the broker is still there. A network may drop
packets without closing a connection; without a limit Celery would wait for an answer on it for ever."""


class ShortRetryConnection(Connection):
    """A connection with shorter waits between tries: Celery waits up to 30 s, which no setting changes. Nor does it
    wait at all where Redis lets it in and then refuses what it writes: it is let in once in RETRY_S[0] seconds."""

    _next = float("-inf")

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        first, more, longest = RETRY_S
        time.sleep(max(0.0, ShortRetryConnection._next - time.monotonic()))
        ShortRetryConnection._next = time.monotonic() + first
        waits = {"interval_start": first, "interval_step": more, "interval_max": longest}
        return super().ensure_connection(*args, **{**waits, **kwargs})


class Broker(AMQP):
    """Celery's AMQP with that connection."""

    Connection = ShortRetryConnection


# No fixups: with DJANGO_SETTINGS_MODULE in the environment, Celery would load the whole web application.
app = Celery("workers", broker=settings.broker_url, fixups=[], amqp=Broker)
app.conf.update(
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,
    task_default_queue=queue_of(settings.name),
    worker_pool="threads",
    worker_concurrency=2,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_redirect_stdouts=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,  # Redis with a full disk refuses even to be read a queue; else Celery would end
    broker_transport_options={
        "socket_timeout": SILENT_S,
        "socket_connect_timeout": SILENT_S,
        "health_check_interval": SILENT_S,
    },
)

# In UTC, as the yard's other logs and its pages are, wherever this host is.
logging.Formatter.converter = time.gmtime


def _is_news(record: logging.LogRecord) -> bool:
    """False for what Celery would log every second or two of an outage; `Outage` logs its beginning and its end."""
    said = record.args if isinstance(record.args, tuple) else ()
    return record.msg != consumer.CONNECTION_ERROR and not any(
        isinstance(one, Exception) and refusal(one) for one in said
    )


logging.getLogger(consumer.__name__).addFilter(_is_news)

_worker: Worker | None = None


class WorkerStep(bootsteps.StartStopStep):
    """Starts the Worker with Celery's worker, and lets it leave before Celery's own parts are stopped."""

    def start(self, parent: Any) -> None:
        global _worker
        try:
            _worker = Worker(settings)
        except AlreadyRunning as error:
            sys.stderr.write(f"{error}\n")
            os._exit(1)  # nothing has started yet; Celery would exit with status 0
        _worker.start()

    def stop(self, parent: Any) -> None:
        if _worker is not None:
            _worker.leave()

    terminate = stop


app.steps["worker"].add(WorkerStep)


@signals.worker_shutting_down.connect
def _on_signal(**_: Any) -> None:
    """Runs in the handler of TERM or INT: ranks are stopped at once, whatever Celery waits for."""
    if _worker is not None:
        _worker.ask_to_leave()


@app.task(name=START_TASK)
def start(message: Any) -> None:
    """Hands an attempt to the supervisor and returns. `message` is a StartMessage; see `run_commands` for what is
    checked."""
    if _worker is None:
        raise RuntimeError("workers.start runs in a worker only")
    _worker.accept(message)
