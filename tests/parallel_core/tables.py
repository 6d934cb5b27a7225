"""Made-up cost tables for tests: layers cost in proportion to their FLOPs, messages in proportion to their bytes."""

from __future__ import annotations

from typing import Any

from parallel_core.observe.records import REFERENCE_UNCOUNTED
from parallel_core.plan.partition import flop_weights
from parallel_core.profile.table import CostTable
from parallel_core.spec import ModelSpec

SAMPLES = (1, 2, 4, 8, 16)
FLOP_S, ALPHA_S, BYTE_S = 1e-9, 1e-4, 1e-9


def table(model: ModelSpec, **changes: Any) -> CostTable:
    """Forward takes FLOP_S per FLOP, backward twice that (half of it for the weights); messages take ALPHA_S, and
    BYTE_S a byte.

    With `slower`, layers take that many times longer while two devices are busy.
    """
    slower, tps, hows = changes.pop("slower", 1.0), changes.pop("tps", (1, 2)), changes.pop("recompute", ("none",))
    cuts = changes.pop("splits", ("pairs",))
    units = model.units()
    links = [
        {"what": what, "ranks": ranks, "time": curve(ALPHA_S, BYTE_S)}
        for what, ranks in (("all_reduce", 2), ("all_gather", 2), ("reduce_scatter", 2), ("send", 2))
    ]
    given = {
        "device": "cpu",
        "software": "made up",
        "model": model.model_dump(),
        "precision": "fp32",
        "devices": 2,
        "samples": SAMPLES[-1],
        "sizes": [{"unit": unit, "parameters": 4, "saved": 8, "boundary": 4} for unit in units],
        "layers": [
            row(model, tp, how, samples, busy, slower if busy > 1 else 1.0) | {"tensor_split": cut}
            for tp in tps
            for cut in (cuts if tp > 1 else cuts[:1])
            for how in hows
            for samples in SAMPLES
            for busy in (1, 2)
        ],
        "links": links,
        "reference_uncounted": REFERENCE_UNCOUNTED,
        "leaves_out": True,
    }
    return CostTable.model_validate({**given, **changes})


def curve(alpha: float, beta: float) -> dict[str, Any]:
    """A straight line from 0 to 1 MB."""
    return {"sizes": [0, 1e6], "seconds": [alpha, alpha + 1e6 * beta]}


def row(model: ModelSpec, tp: int, how: str, samples: int, busy: int, slower: float) -> dict[str, Any]:
    forward = [FLOP_S * flops * samples / tp * slower for flops in flop_weights(model)]
    again = 1.0 if how == "full" else 0.0
    share = {"forward": 1.0, "backward": 2.0 + again, "input": 1.0 + again, "weights": 1.0}
    seconds = {part: [factor * each for each in forward] for part, factor in share.items()}
    messages = {way: [[4 * samples] for _ in forward] for way in ("forward", "backward")} if tp > 1 else {}
    return {
        "tp": tp,
        "recompute": how,
        "samples": samples,
        "busy": busy,
        "seconds": seconds,
        "spread": seconds,
        "whole": {part: sum(each) for part, each in seconds.items()},
        "messages": messages,
    }
