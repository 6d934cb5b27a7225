"""What ranks measured, brought to one pace of the devices.

A profile takes most of a minute, in which each core of a shared host runs faster and slower. The reference work between
the passes tells by how much: layers and fixed costs become what they would have taken at the mean pace. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallel_core.profile.curves import Curve
from parallel_core.profile.table import Layers, OwnShards

_MOST_SPELLS = 400

Header = Mapping[str, Any]
"""Of a record: its `rank`, and the seconds `reference` of the reference work while it was measured, 0 where unknown;
of layers also its `paces`, the same at moments that all ranks count alike."""


def reference(layers: Sequence[Header]) -> dict[int, float]:
    """Seconds of the reference work at the mean pace, by busy devices; none where it was not done.

    The mean is that of all ranks while all devices are busy. What one alone takes is told by those that measured both,
    in turns: cores differ, so means of some ranks and of all of them do not belong together.
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
    """How many times longer than on average each device took at each moment of all of them, by rank: cores drift one by
    one, and who waits for the slowest of them waits now for the one, now for the other."""
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
    """Rows of layers at the pace of `usual`. Ranks of a tensor group that talks wait for the slowest of them at every
    collective: all of its rows are at that one's pace, as a run's tensor group is predicted at its slowest."""
    slowest: dict[tuple[Any, ...], float] = {}
    for header in headers:
        where = _group(header)
        slowest[where] = max(slowest.get(where, 0.0), header["reference"])
    rows = ((Layers.model_validate(header["row"]), slowest[_group(header)]) for header in headers)
    return [row.times(_factor(usual, row.busy, took)) for row, took in rows]


def _group(header: Header) -> tuple[Any, ...]:
    """Equal for rows that ranks measured as one group."""
    row = header["row"]
    alone = None if row["joined"] else header["rank"]
    return *_condition(row), row["busy"], row["samples"], row["joined"], alone


def _condition(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["tp"], row["recompute"], row["tensor_split"]


def curves_at(usual: Mapping[int, float], header: Header) -> dict[str, Curve]:
    """The curves of a record of fixed costs at the pace of `usual`."""
    factor = _factor(usual, header["busy"], header["reference"])
    return {name: Curve.model_validate(curve).times(factor) for name, curve in header["curves"].items()}


def shards_at(usual: Mapping[int, float], headers: Sequence[Header]) -> list[OwnShards]:
    """What ZeRO adds at the pace of `usual`: of each condition the mean of the ranks that measured it."""
    same: dict[tuple[Any, ...], list[OwnShards]] = {}
    for header in headers:
        row = OwnShards.model_validate(header["row"]).times(_factor(usual, header["busy"], header["reference"]))
        same.setdefault((row.zero, row.recompute), []).append(row)
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
