"""Which runs may go over several hosts, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.control.placement import Request, spread
from dashboard.fleet.selectors import hosts, reporting
from dashboard.runs.models import Attempt, Run
from parallel_core.analysis.quantities import plural_text

MOST_HOSTS = 64


def alone_because(
    spec: Mapping[str, Any], *, resumes: bool = False, generates: bool = False, over_hosts: int = 0
) -> str:
    """Why all ranks of a run must be on one host, as a clause; '' where they need not be."""
    train = spec.get("train", {})
    if over_hosts == 1:
        return "one was asked for"
    if generates:
        return "text is generated on one"
    if str(train.get("corpus", "")).startswith("tokens:"):
        return "its token file lies on one"
    if (resumes or train.get("checkpoint_every")) and not checkpoints_shared():
        return "its checkpoints lie on one (the workers share no folder for them)"
    return ""


def why_alone(run: Run) -> str:
    """`alone_because` of a run."""
    resumes, generates = run.resume_run_id is not None, run.generates
    return alone_because(run.spec, resumes=resumes, generates=generates, over_hosts=run.over_hosts)


def checkpoints_shared() -> bool:
    """Whether every worker that reports keeps checkpoints in a folder that others have, too."""
    shared = list(reporting().values_list("shared_checkpoints", flat=True))
    return bool(shared) and all(shared)


def hosts_error(over: int, devices: int, kind: str, word: str, alone: str) -> str:
    """What speaks against spreading `devices` ranks evenly over `over` hosts; '' where nothing does."""
    if over < 2:
        return ""
    if alone:
        return f"All ranks must be on one host, because {alone}."
    if devices % over:
        fitting = [str(n) for n in range(2, min(devices, MOST_HOSTS) + 1) if devices % n == 0]
        choose = f"choose {' or '.join(fitting)}, or as few as it takes" if fitting else "choose as few as it takes"
        return f"{devices} {word}s cannot be spread evenly over {over} hosts; {choose}."
    counts = [_count(listed, kind) for listed in reporting().values_list("devices", flat=True)]
    enough = sum(count >= devices // over for count in counts)
    if counts and enough < over:
        each = plural_text(devices // over, word)
        return f"{over} hosts with {each} each are needed; the fleet has {enough}."
    return ""


def expected(devices: int, kind: str, over_hosts: int, unit: int) -> list[str]:
    """The worker of each rank, as an idle fleet would place them; [] on one host, or where the fleet has too few."""
    usable = [host for host in hosts() if host.open]
    if over_hosts < 2 and any(host.count(kind) >= devices for host in usable):
        return []
    request = Request(0, devices, kind, hosts=over_hosts, unit=unit)
    counts = spread(request, usable, lambda host: host.count(kind))
    return [name for name, count in counts.items() for _ in range(count)]


def _count(devices: list[dict[str, Any]], kind: str) -> int:
    return sum(device["kind"] == kind for device in devices)


def hosts_of(attempt: Attempt | None) -> list[str]:
    """The worker of each rank, in rank order; [] where all ranks are on one."""
    if attempt is None or len(attempt.devices) < 2:
        return []
    nodes = sorted(attempt.devices, key=lambda node: node["first_rank"])
    return [str(node["worker"]) for node in nodes for _ in node["devices"]]
