"""Normalizes the measurements of all ranks to one pace of the devices.

A profile takes most of a minute, during which each core of a shared host becomes faster and slower. The reference
work done between the passes measures this: times of layers and fixed costs are converted to what they would be at the
mean pace. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallel_core.profile.curves import Curve
from parallel_core.profile.table import Layers, OwnShards

_MOST_SPELLS = 400

Header = Mapping[str, Any]
"""Header of a record: its `rank`, and `reference`: seconds of the reference work during the measurement, 0 if unknown.
Records of layers also have `paces`: the same for each turn, which all ranks count alike."""


def reference(layers: Sequence[Header]) -> dict[int, float]:
    """Returns the seconds of the reference work at the mean pace, by number of busy devices; {} where it was not done.

    The mean is over all ranks while all devices are busy. For fewer busy devices it is scaled by the ratio on the
    ranks that measured both, in turns: as cores differ, a mean over some ranks cannot be compared with that over all.
    """
    known: dict[int, dict[tuple[Any, ...], float]] = {}
    for header in layers:
        row = header["row"]
        if header["reference"] > 0 and not row["joined"]:
            where = header["rank"], *_condition(row)
            known.setdefault(row["busy"], {})[where] = header["reference"]
    if not known:
        return {}
    full = known[max(known)]
    mean = float(np.mean(list(full.values())))
    return {
        busy: mean * float(np.mean([took / full[where] for where, took in taken.items() if where in full] or [1.0]))
        for busy, taken in sorted(known.items())
    }


def spells(layers: Sequence[Header]) -> list[tuple[float, ...]]:
    """Slowdown of each device (by rank) relative to the mean, for each sampling moment; at most _MOST_SPELLS moments.

    Cores drift independently, so a rank that waits for the slowest of them waits for different ones at different times.
    """
    full = max((header["row"]["busy"] for header in layers), default=0)
    known: dict[tuple[Any, ...], dict[int, Sequence[float]]] = {}
    for header in layers:
        row = header["row"]
        if row["busy"] == full and not row["joined"]:
            known.setdefault(_condition(row), {})[header["rank"]] = header.get("paces", ())
    complete = [[of[rank] for rank in sorted(of)] for of in known.values() if len(of) == full]
    moments = [moment for each in complete for moment in zip(*each, strict=True)]
    kept = moments[:: -(-len(moments) // _MOST_SPELLS) or 1]
    return [tuple((np.array(moment) / np.mean(kept)).tolist()) for moment in kept]


def layers_at(usual: Mapping[int, float], headers: Sequence[Header]) -> list[Layers]:
    """Returns the rows of layers at the pace `usual`.

    The ranks of a communicating tensor-parallel group wait for the slowest of them at every collective, so all its
    rows are converted from the slowest one's pace; a run's group is also predicted at its slowest rank's pace.
    """
    slowest: dict[tuple[Any, ...], float] = {}
    for header in headers:
        where = _group(header)
        slowest[where] = max(slowest.get(where, 0.0), header["reference"])
    rows = ((Layers.model_validate(header["row"]), slowest[_group(header)]) for header in headers)
    return [row.times(_factor(usual, row.busy, took)) for row, took in rows]


def _group(header: Header) -> tuple[Any, ...]:
    """Returns a key that is equal for rows measured by ranks as one group."""
    row = header["row"]
    alone = None if row["joined"] else header["rank"]
    return *_condition(row), row["busy"], row["samples"], row["joined"], alone


def _condition(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["tp"], row["recompute"], row["tensor_split"]


def curves_at(usual: Mapping[int, float], header: Header) -> dict[str, Curve]:
    """Returns the curves of a record of fixed costs at the pace `usual`."""
    factor = _factor(usual, header["busy"], header["reference"])
    return {name: Curve.model_validate(curve).times(factor) for name, curve in header["curves"].items()}


def shards_at(usual: Mapping[int, float], headers: Sequence[Header]) -> list[OwnShards]:
    """Returns the cost of ZeRO at the pace `usual`: for each condition the mean over the ranks that measured it."""
    same: dict[tuple[Any, ...], list[OwnShards]] = {}
    for header in headers:
        row = OwnShards.model_validate(header["row"]).times(_factor(usual, header["busy"], header["reference"]))
        same.setdefault((row.zero, row.recompute, row.samples), []).append(row)
    return [
        rows[0].model_copy(
            update={
                "forward": float(np.mean([row.forward for row in rows])),
                "backward": float(np.mean([row.backward for row in rows])),
            }
        )
        for rows in same.values()
    ]


def _factor(usual: Mapping[int, float], busy: int, took: float) -> float:
    return usual[busy] / took if took > 0 and busy in usual else 1.0
