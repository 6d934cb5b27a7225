"""An attempt over several hosts: what each host has told so far, and what became of the whole.

The report of an attempt keeps `store`, where the first host's rendezvous store listens, `up`, the workers whose ranks
all have a process, and `ends`, the AttemptBody of each worker (with its name as `worker`) in the order in which they
told.
An attempt is over when all have told their end; one on a single host is when that one has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Nodes = Sequence[Mapping[str, Any]]
Report = dict[str, Any]
MERGED = ("sizes", "exits")
"""By rank, so that those of several hosts never meet."""
KEPT = ("sizes", "ends")
"""What an attempt learns that is over already."""


def is_up(report: Report, nodes: Nodes, worker: str) -> tuple[Report, bool]:
    """The report with this worker's ranks running; whether now all are."""
    if len(nodes) == 1:
        return report, True
    up = sorted({*report.get("up", ()), worker})
    return {**report, "up": up}, {node["worker"] for node in nodes} <= set(up)


def not_up(report: Report, nodes: Nodes) -> list[str]:
    """Workers that have not told that all their ranks have a process, in rank order, of an attempt that is starting."""
    return [node["worker"] for node in nodes if node["worker"] not in report.get("up", ())]


def waits_for_store(report: Report, nodes: Nodes, worker: str) -> bool:
    """Whether this host, which has taken its share, can begin only once it knows where the store is."""
    return "store" in report and worker in not_up(report, nodes[1:])


def ended(report: Report, nodes: Nodes, worker: str, body: Mapping[str, Any]) -> Report:
    """The report with what this worker told at the end of its ranks; a first telling stays."""
    if len(nodes) == 1:
        return {**report, **body}
    ends = list(report.get("ends", ()))
    if worker not in (end["worker"] for end in ends):
        ends.append({"worker": worker, **{name: value for name, value in body.items() if name not in MERGED}})
    merged = {name: {**report.get(name, {}), **(body.get(name) or {})} for name in MERGED}
    return {**report, "ends": ends, **merged}


def silent(report: Report, nodes: Nodes) -> list[str]:
    """Workers that have not told their end, in rank order."""
    if len(nodes) == 1:
        return [] if "sizes" in report else [nodes[0]["worker"]]
    told = {end["worker"] for end in report.get("ends", ())}
    return [node["worker"] for node in nodes if node["worker"] not in told]


def failing(report: Report) -> bool:
    """Whether a host's ranks have ended, and not well: those on the others have nobody to talk to."""
    return any(end["outcome"] != "succeeded" for end in report.get("ends", ()))


def tells_why(report: Report) -> bool:
    """Whether a host has told why the attempt fails, not only that it lost the others."""
    return any(end["outcome"] != "succeeded" and not end.get("peer") for end in report.get("ends", ()))


def verdict(report: Report, nodes: Nodes) -> Report:
    """What became of the attempt, told by the host that says most about it: first one whose ranks failed or were
    stopped by themselves, in the order in which hosts told; then one that only lost the others; then one that did well.
    """
    ends = report.get("ends")
    if not ends:
        return report
    told = sorted(ends, key=_weight)
    none_left = all(end.get("none_left", False) for end in ends) and not silent(report, nodes)
    return {**report, **told[0], "none_left": none_left, **{name: report.get(name, {}) for name in MERGED}}


def _weight(end: Mapping[str, Any]) -> int:
    return 2 if end["outcome"] == "succeeded" else 1 if end.get("peer") else 0
