"""How much memory a rank of a run may hold, or had: hosts may be changed, or forgotten, after a run has ended."""

from __future__ import annotations

from dashboard.fleet.selectors import device_memory as listed_device_memory
from dashboard.runs.models import Attempt, Run


def memory_limit(run: Run, attempt: Attempt | None) -> int | None:
    """Bytes that a rank may hold: the run's own cap, else the memory of the smallest of its devices; None if neither is
    known."""
    cap = run.spec.get("trace", {}).get("memory_cap")
    return int(cap) if cap else device_memory(run, attempt)


def device_memory(run: Run, attempt: Attempt | None) -> int | None:
    """Bytes of the smallest device of the attempt: as it was when the run ended, if that was kept in its summary, which
    earlier versions did not; None if it is not known."""
    kept: int | None = (run.summary.get("memory") or {}).get("device") if run.summary else None
    return kept or (listed_device_memory(attempt) if attempt else None)
