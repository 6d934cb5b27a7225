"""The states of a run; only `dashboard.runs.states` moves a run from one to another."""

from __future__ import annotations

from django.db import models


class State(models.TextChoices):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


ACTIVE = (State.STARTING, State.RUNNING, State.CANCELLING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)


def ended_as(outcome: str, cause: str) -> str:
    """The state that an attempt which ended so has by itself: lost where its worker was, whatever its run became."""
    return State.LOST if cause == "worker_lost" else outcome
