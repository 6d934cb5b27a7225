"""An attempt over several hosts: what each host has reported so far, and the outcome of the whole.

`Attempt.report` then keeps `store`, where the first host's rendezvous store listens; `up`, the workers all of whose
ranks have a process; and `ends`, the AttemptBody of each worker (with its name as `worker`) in order of arrival. The
attempt is over when all its workers have reported their end. On a single host, that worker's AttemptBody becomes part
of the report itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from parallel_core.observe.progress import CONNECTING

Nodes = Sequence[Mapping[str, Any]]
Report = dict[str, Any]
MERGED = ("sizes", "exits")
"""Fields keyed by rank: those of different hosts do not collide."""
NONE_FAILED = "No rank failed by itself"
KEPT = ("sizes", "ends")
"""Fields that are still added to the report of an attempt that is already over."""


def worker_of(nodes: Nodes, rank: int) -> str:
    """The worker that has this rank."""
    first_ranks = sorted((node["first_rank"], node["worker"]) for node in nodes)
    return str(next(worker for first, worker in reversed(first_ranks) if first <= rank))


def is_up(report: Report, nodes: Nodes, worker: str) -> tuple[Report, bool]:
    """Returns the report with this worker added to `up`, and whether all workers now are."""
    if len(nodes) == 1:
        return report, True
    up = sorted({*report.get("up", ()), worker})
    return {**report, "up": up}, {node["worker"] for node in nodes} <= set(up)


def not_up(report: Report, nodes: Nodes) -> list[str]:
    """Workers that have not reported that all their ranks have a process, in rank order; for an attempt that is
    starting."""
    return [node["worker"] for node in nodes if node["worker"] not in report.get("up", ())]


def waits_for_store(report: Report, nodes: Nodes, worker: str) -> bool:
    """Whether this host has taken its share and can only begin once it is sent the address of the store."""
    return "store" in report and worker in not_up(report, nodes[1:])


def ended(report: Report, nodes: Nodes, worker: str, body: Mapping[str, Any]) -> Report:
    """Returns the report with what this worker reported at the end of its ranks; its first report of an end stays."""
    if len(nodes) == 1:
        return {**report, **body}
    ends = list(report.get("ends", ()))
    if worker not in (end["worker"] for end in ends):
        ends.append({"worker": worker, **{name: value for name, value in body.items() if name not in MERGED}})
    merged = {name: {**report.get(name, {}), **(body.get(name) or {})} for name in MERGED}
    return {**report, "ends": ends, **merged}


def silent(report: Report, nodes: Nodes) -> list[str]:
    """Workers that have not reported their end, in rank order."""
    if len(nodes) == 1:
        return [] if "sizes" in report else [nodes[0]["worker"]]
    heard = {end["worker"] for end in report.get("ends", ())}
    return [node["worker"] for node in nodes if node["worker"] not in heard]


def failing(report: Report) -> bool:
    """Whether a host's ranks have ended unsuccessfully: then the ranks on other hosts have lost their peers."""
    return any(end["outcome"] != "succeeded" for end in report.get("ends", ()))


def tells_why(report: Report) -> bool:
    """Whether a host has reported the cause of a failure, not only that it lost the others."""
    return any(end["outcome"] != "succeeded" and not end.get("peer") for end in report.get("ends", ()))


def verdict(report: Report, nodes: Nodes) -> Report:
    """The report with the outcome of the attempt, from the host that says most about it.

    That is the first to report whose ranks failed or were stopped by themselves; else one that only lost the others;
    else one that succeeded. If each host only lost the others, none is at fault, and the run is tried again as after
    the loss of a worker.
    """
    ends = report.get("ends")
    if not ends:
        return report
    ordered = sorted(ends, key=_weight)
    none_left = all(end.get("none_left", False) for end in ends) and not silent(report, nodes)
    ran = [end["ran_s"] for end in ends if "ran_s" in end]
    best = _standstill(ordered) if ordered[0].get("cause") == "no_progress" else ordered[0]
    if all(end.get("peer") for end in ends):
        best = {**best, "cause": "worker_lost", "detail": _unconnected(str(best.get("detail", "")), nodes)}
    longest = {"ran_s": max(ran)} if ran else {}
    return {**report, **best, **longest, "none_left": none_left, **{name: report.get(name, {}) for name in MERGED}}


def _unconnected(detail: str, nodes: Nodes) -> str:
    """The detail of an attempt of which no host's ranks failed by themselves, with what that means."""
    *others, last = (str(node["worker"]) for node in nodes)
    both = f"the network between {', '.join(others)} and {last} was interrupted"
    if detail.endswith(f" in {CONNECTING}."):
        both += ", or they do not reach each other: each needs an address that the others reach (TRAINYARD_ADDRESS)"
    return f"{detail} {NONE_FAILED}: {both}.".strip()


def _standstill(ends: Sequence[Mapping[str, Any]]) -> Report:
    """The first of the ends, with where the ranks of all hosts stood: which of them waits for which is seen only
    beside each other. Each detail is `No rank moved for 60 s: ` and its host's ranks."""
    still = [end for end in ends if end.get("cause") == "no_progress"]
    begin = str(still[0].get("detail", "")).partition(": ")[0]
    places = [str(end.get("detail", "")).partition(": ")[2].rstrip(".") for end in still]
    lines = dict.fromkeys(line for end in still for line in str(end.get("traceback", "")).splitlines())
    detail = f"{begin}: {'; '.join(place for place in sorted(places, key=_rank_in) if place)}."
    return {**still[0], "detail": detail, "traceback": "\n".join(sorted(lines, key=_rank_in))}


def _rank_in(text: str) -> int:
    """Sort key: the first number after `rank` or `ranks` at the beginning of the text; -1 where it begins otherwise."""
    found = re.match(r"ranks? (\d+)", text)
    return int(found[1]) if found else -1


def _weight(end: Mapping[str, Any]) -> int:
    """Sort key of `verdict`: the lower, the more an end says about the attempt."""
    return 2 if end["outcome"] == "succeeded" else 1 if end.get("peer") else 0
