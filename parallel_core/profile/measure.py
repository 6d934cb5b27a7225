"""Starts profiling ranks on this host and collects their CostTable."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.limits import NO_PROGRESS_S
from parallel_core.local import LocalRunner
from parallel_core.observe import host
from parallel_core.observe.cores import cores
from parallel_core.observe.record_files import log_path
from parallel_core.observe.records import REFERENCE_UNCOUNTED
from parallel_core.outline import outline_of
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut
from parallel_core.profile import normalize
from parallel_core.profile.curves import Curve
from parallel_core.profile.equal_layers import levelled
from parallel_core.profile.request import RECOMPUTES, SPLITS, ProfileRequest, other_kernels
from parallel_core.profile.table import CostTable, Layers
from parallel_core.spec import DeviceKind, ModelSpec, Precision, RunSpec

_STACK = 4_000
"""The most characters of a rank's stacks in an error."""
COMMAND = (sys.executable, "-m", "parallel_core.profile.server")


class ProfileFailed(RuntimeError):
    """A profiling rank failed, or all of them stood still; the message says how, `traceback` where ('' if it was
    killed)."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


def samples_up_to(model: ModelSpec, batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `batch`, between which other numbers are interpolated; without those that are too few for the
    model."""
    least = outline_of(model).least_samples
    return tuple(sorted({batch, *(2**k for k in range(16) if least <= 2**k < batch)}))


def tensor_widths(model: ModelSpec, most: int) -> tuple[int, ...]:
    """Widths of tensor groups, up to `most`, by which the model can be split: powers of two, ascending from 1."""
    return tuple(t for t in outline_of(model).tensor_widths() if t <= most and t & (t - 1) == 0)


def devices_of(kind: DeviceKind) -> int:
    """Number of devices of this host: cores that this process may use, or CUDA devices."""
    return len(cores() if kind == "cpu" else host.cuda_devices())


def measure(
    model: ModelSpec,
    request: ProfileRequest,
    *,
    ranks: int,
    precision: Precision = "fp32",
    device: DeviceKind = "cpu",
    deterministic: bool = False,
    no_progress_s: float = NO_PROGRESS_S,
    command: tuple[str, ...] = COMMAND,
) -> CostTable:
    """Profiles `model` with `ranks` ranks on devices 0, 1, ... of this host; `deterministic` as in TrainSpec. Raises
    ProfileFailed, also when no rank has moved for `no_progress_s` seconds."""
    kinds = {"precision": precision, "device": device, "deterministic": deterministic}
    spec = _replicas(model, ranks, kinds)
    with tempfile.TemporaryDirectory(prefix="trainyard-profile-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(asdict(request)))
        with LocalRunner(command) as runner:
            devices = [rank % request.devices for rank in range(ranks)]
            outcome = runner.run(spec, folder, devices=devices, no_progress_s=no_progress_s, links=True)
        if not outcome.ok:
            raise ProfileFailed(outcome.failure(), _stacks(folder, ranks) if outcome.stood else outcome.traceback())
        found = [header for rank in range(ranks) for header in outcome.headers(rank, "profile")]
    return _table(spec, request, found)


def _replicas(model: ModelSpec, ranks: int, train: Mapping[str, Any]) -> RunSpec:
    """The run of the profiling ranks: replicas of the model, each with the fewest samples that it takes."""
    outline = outline_of(model)
    told = {**train, "corpus": outline.profiled, "global_batch": ranks * outline.least_samples}
    return RunSpec.model_validate({"model": model.model_dump(), "parallel": {"dp": ranks}, "train": told})


def _stacks(folder: Path, ranks: int) -> str:
    """Returns the ends of the logs of ranks that stood still, which hold their stacks: the folder goes."""
    logs = {rank: log_path(folder, rank).read_text(errors="replace") for rank in range(ranks)}
    return "\n".join(f"rank {rank}: {log[-_STACK:]}" for rank, log in logs.items())


def _table(spec: RunSpec, request: ProfileRequest, found: list[dict[str, Any]]) -> CostTable:
    about: dict[str, list[dict[str, Any]]] = {}
    for header in found:
        about.setdefault(header["about"], []).append(header)
    first, usual = about["device"][0], normalize.reference(about["layers"])
    return CostTable.model_validate(
        {
            "device": spec.train.device,
            "device_name": first["name"],
            "host": socket.gethostname(),
            "software": f"torch {first['torch']}",
            "model": spec.model.model_dump(),
            "precision": spec.train.precision,
            "deterministic": other_kernels(spec),
            "devices": request.devices,
            "recorded": time.time(),
            "samples": request.samples[-1],
            "sizes": about["bytes"][0]["rows"],
            "layers": levelled(_mean_rows(normalize.layers_at(usual, about["layers"])), spec.model),
            "links": [header["row"] for header in about.get("link", ())],
            "fully_sharded": [header["row"] for header in about.get("fully_sharded", ())],
            "own_shards": normalize.shards_at(usual, about.get("own_shards", [])),
            "fixed": _fixed(about["fixed"], usual),
            "crowded": _crowded(about.get("crowd", [])),
            "reference": usual,
            "reference_uncounted": REFERENCE_UNCOUNTED,
            "leaves_out": True,
            "spells": normalize.spells(about["layers"]),
        }
    )


def _mean_rows(rows: Iterable[Layers]) -> list[dict[str, Any]]:
    """One row for each condition: the mean of the ranks that measured it at once."""
    same: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        same.setdefault((*row.key, row.samples), []).append(row.model_dump())
    return [{**group[0], **_means(group)} for group in same.values()]


def _means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    means: dict[str, Any] = {name: _mean([row[name] for row in rows]) for name in ("seconds", "spread", "whole")}
    return {**means, **{name: float(np.mean([row[name] for row in rows])) for name in ("jitter", "noise")}}


def _mean(values: list[dict[str, Any]]) -> dict[str, Any]:
    return {part: np.mean([value[part] for value in values], axis=0).tolist() for part in values[0]}


def _crowded(headers: list[dict[str, Any]]) -> dict[int, float]:
    """Width of tensor groups -> slowdown on shared devices, the mean over ranks, at least 1."""
    widths = {header["tp"] for header in headers}
    return {tp: max(1.0, float(np.mean([h["ratio"] for h in headers if h["tp"] == tp]))) for tp in sorted(widths)}


def _mean_curve(curves: list[Curve]) -> Curve:
    seconds = np.mean([curve.seconds for curve in curves], axis=0).tolist()
    return Curve(sizes=curves[0].sizes, seconds=tuple(seconds))


def _fixed(headers: list[dict[str, Any]], usual: Mapping[int, float]) -> dict[str, dict[int, Curve]]:
    """Name -> number of busy devices -> curve, the mean of the ranks that measured it at once."""
    same: dict[tuple[str, int], list[Curve]] = {}
    for header in headers:
        for name, curve in normalize.curves_at(usual, header).items():
            same.setdefault((name, header["busy"]), []).append(curve)
    out: dict[str, dict[int, Curve]] = {}
    for (name, busy), curves in same.items():
        out.setdefault(name, {})[busy] = _mean_curve(curves)
    return out


def measure_for(
    spec: RunSpec,
    *,
    ranks: int | None = None,
    seconds: float = 2.0,
    quick: bool = False,
    recompute: tuple[Recompute, ...] = RECOMPUTES,
    splits: tuple[Cut, ...] = SPLITS,
    no_progress_s: float = NO_PROGRESS_S,
) -> CostTable:
    """Profiles this host so that all splits of `spec`'s model, batch, precision, device and kernels can be predicted.

    `quick` leaves out tensor groups and recomputation. `recompute` and `splits` = the kinds of recomputation and of
    tensor splits to profile, in addition to those of `spec`; `no_progress_s` as in `measure`. Raises ProfileFailed.
    """
    kind = spec.train.device
    own = devices_of(kind)
    world = ranks or (own if kind == "cuda" else 4)
    request = ProfileRequest(
        samples=samples_up_to(spec.model, spec.train.global_batch),
        tps=(1,) if quick else tensor_widths(spec.model, world),
        splits=tuple(dict.fromkeys((*splits, spec.parallel.cut))),
        recompute=("none",) if quick else tuple(dict.fromkeys((*recompute, spec.parallel.recompute))),
        devices=min(own, world),
        seconds=seconds,
    )
    train: dict[str, Any] = spec.train.model_dump(include={"precision", "device", "deterministic"})
    return measure(spec.model, request, ranks=world, no_progress_s=no_progress_s, **train)
