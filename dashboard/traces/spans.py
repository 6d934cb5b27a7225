"""Reads the stored spans of an imported trace."""

from __future__ import annotations

import numpy as np
from django.http import Http404
from numpy.typing import NDArray

from dashboard.charts.timeline import Step, kept
from dashboard.traces.models import Trace
from parallel_core.analysis.export import About
from parallel_core.analysis.meetings import last_to_come
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.spec import DeviceKind
from parallel_core.traces.job_trace import world_size

Spans = dict[int, NDArray[np.void]]


def spans(trace: Trace, step: int) -> Spans:
    """rank -> SPAN rows of a step of the trace. Raises Http404 if there are none: it has been deleted since it was
    read."""
    rows = trace.spans.filter(step=step).order_by("rank").defer("names")
    found = {row.rank: np.frombuffer(bytes(row.data), SPAN) for row in rows}
    if not found:
        raise Http404(f"trace {trace.pk} was deleted")
    return found


def groups(trace: Trace, step: int) -> dict[int, list[str]] | None:
    """rank -> process group of each of its collectives in a step, by start; '' or [] where it is not named. None for a
    trace of which an older version did not keep them."""
    rows = list(trace.spans.filter(step=step).values_list("rank", "names__groups"))
    return None if any(named is None for _, named in rows) else dict(rows)


def step_of(trace: Trace, step: int) -> Step:
    """A step of the trace, with the run's layout if its spec was exported with it."""
    return kept(("trace", trace.pk, step), lambda: _read(trace, step))


def _read(trace: Trace, step: int) -> Step:
    found = spans(trace, step)
    if trace.trained:
        return Step(found, Layout.of(trace.trained))
    return Step(found, met=last_to_come(found, groups(trace, step)))


def device_of(trace: Trace) -> DeviceKind:
    """The kind of device on which its kernels or operations ran."""
    return "cuda" if any(rank["device"] == "cuda" for rank in trace.ranks.values()) else "cpu"


def world_of(trace: Trace) -> int:
    """Number of the job's ranks, of which some may have no trace here; at least one more than the highest rank."""
    return world_size({int(rank): own.get("world", 0) for rank, own in trace.ranks.items()})


def about(trace: Trace, step: int) -> About:
    """What a file of a step contains in addition to its spans, so that it can be imported again."""
    recorded = trace.recorded
    return About(
        step,
        trace.spec.model_dump(mode="json") if trace.spec else None,
        recorded.get("run") or f"trace {trace.pk}",
        recorded.get("spans", {}).get(str(step), 0),
        recorded.get("others"),
        device_of(trace),
        trace.counted(step),
    )
