"""Joins the files of one process: a profiler whose schedule repeats writes a file for each cycle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parallel_core.traces.kineto import TOP, RankTrace

Part = tuple[str, int | None, RankTrace]
"""File name, the rank that it says or None, and its contents."""
_WORKER = re.compile(r"(.+)\.\d{6,}\.pt\.trace\b")
"""Name of the process in a file name of torch.profiler.tensorboard_trace_handler."""


def merged(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts, with files of the same process joined if they have no step in common: those of one rank and
    host, or, where they say no rank, of one worker name.

    Files with a step in common are of different processes: at least one of them says a wrong rank.
    """
    out: list[Part] = []
    for name, told, trace in parts:
        process = _process(name, told)
        same = (i for i, (first, rank, own) in enumerate(out) if _process(first, rank) == process and _fits(own, trace))
        at = next(same, None) if process is not None else None
        if at is None:
            out.append((name, told, trace))
        else:
            out[at] = out[at][0], told, _joined(out[at][2], trace)
    return out


def summed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the sums of rows of `RankTrace.top` with the same name, by their total time."""
    total: dict[str, dict[str, Any]] = {}
    for row in rows:
        kept = total.setdefault(row["name"], {"name": row["name"], "family": row["family"], "count": 0, "ns": 0})
        kept["count"] += row["count"]
        kept["ns"] += row["ns"]
    return sorted(total.values(), key=lambda row: -int(row["ns"]))


def _process(name: str, told: int | None) -> int | str | None:
    found = _WORKER.match(name)
    return told if told is not None else found[1] if found else None


def _fits(trace: RankTrace, other: RankTrace) -> bool:
    """Whether the two may be cycles of one process."""
    return trace.host == other.host and not trace.steps.keys() & other.steps.keys()


def _joined(trace: RankTrace, other: RankTrace) -> RankTrace:
    return replace(
        trace,
        device="cuda" if "cuda" in (trace.device, other.device) else trace.device,
        steps=trace.steps | other.steps,
        raw=trace.raw + other.raw,
        top=summed([*trace.top, *other.top])[:TOP],
        files=trace.files + other.files,
        stages=max(trace.stages, other.stages),
        micro_batches=max(trace.micro_batches, other.micro_batches),
        counted=trace.counted + other.counted,
        windows={**trace.windows, **other.windows},
        world=max(trace.world, other.world),
        operations=trace.operations | other.operations,
        kernels=trace.kernels | other.kernels,
        begun=trace.begun | other.begun,
        groups=trace.groups | other.groups,
        partial=trace.partial or other.partial,
    )
