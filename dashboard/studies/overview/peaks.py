"""One peak FLOP/s for runs that are compared; each run measures its devices' peak itself, under varying conditions.

With different peaks, MFU would differ where only the measurements of the devices did. So for runs on the same hosts
whose peak was measured in the same way, the highest peak counts for all: what a device has done once it can do. A peak
from the catalogue is the same for all anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.runs.models import Attempt, Run
from parallel_core.analysis.quantities import flops_text

SHARES = ("mfu", "hfu")
_Alike = tuple[str, tuple[str, ...]]


def over_one_peak(runs: Sequence[Run]) -> dict[int, dict[str, Any]]:
    """run id -> its summary's meters, with the common peak and MFU and HFU over it; without runs that have none."""
    own = {run.pk: dict(run.summary["meters"]) for run in runs if run.summary.get("meters")}
    devices = {run.pk: devices_of(run) for run in runs}
    highest: dict[_Alike, float] = {}
    alike = _alike(own)
    for pk, group in alike.items():
        highest[group] = max(highest.get(group, 0.0), own[pk]["peak_flops_per_s"] / devices[pk])
    for pk, group in alike.items():
        meters, peak = own[pk], highest[group] * devices[pk]
        scale = meters["peak_flops_per_s"] / peak
        shares = {name: meters[name] * scale for name in SHARES if meters.get(name) is not None}
        own[pk] = {**meters, **shares, "peak_flops_per_s": peak}
    return own


def devices_of(run: Run) -> int:
    """Number of devices whose peaks are summed in the run's meters: fewer than its ranks where some share one. Runs of
    earlier versions counted each rank."""
    return (run.summary.get("meters") or {}).get("peak_devices") or run.devices


def of_device(run: Run) -> float | None:
    """Peak FLOP/s of one device of the run, by its own summary; None if it is not known."""
    peak = (run.summary.get("meters") or {}).get("peak_flops_per_s")
    return peak / devices_of(run) if peak else None


def sentence(runs: Sequence[Run], meters: Mapping[int, Mapping[str, Any]]) -> str:
    """Says over which peak MFU is computed; '' if no run has it, or none measured its peak."""
    measured = [run for run in runs if run.pk in meters and _measured(run.summary["meters"])]
    each = {(meters[run.pk]["peak_flops_per_s"] / devices_of(run), _what(run)) for run in measured}
    if not each:
        return ""
    found = sorted(filter(None, map(of_device, measured)))
    several = len({what for _, what in each}) > 1
    told = " or ".join(flops_text(peak) + (f" ({what})" if several else "") for peak, what in sorted(each))
    spread = f" ({flops_text(found[0])} to {flops_text(found[-1])})" if len(found) > 1 and not several else ""
    which = "the highest that these runs measured" if len(each) == 1 else "the highest measured on the same hosts"
    return f"MFU and HFU are over {told} a device, {which}{spread}; a run's own page uses its own."


def _what(run: Run) -> str:
    """The precision of the computation that measured the peak: the first word of `fp32 matrix product, measured`."""
    return str(run.summary["meters"].get("peak_source", "")).partition(" ")[0]


def _measured(meters: Mapping[str, Any]) -> bool:
    return bool(meters.get("peak_flops_per_s")) and str(meters.get("peak_source", "")).endswith("measured")


def _alike(own: Mapping[int, Mapping[str, Any]]) -> dict[int, _Alike]:
    """run id -> what runs with a common peak share: how it was measured, and the hosts of the newest attempt."""
    pks = [pk for pk, meters in own.items() if _measured(meters)]
    newest = Attempt.objects.filter(run__in=pks).order_by("number").values_list("run", "devices")
    hosts = {run: tuple(sorted({node["worker"] for node in devices})) for run, devices in newest}
    return {pk: (str(own[pk]["peak_source"]), hosts.get(pk, ())) for pk in pks}
