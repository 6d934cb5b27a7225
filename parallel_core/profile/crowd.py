"""Ranks that share a device, each with passes of its own: what they lose by it beside their turns.

Whoever comes on finds the other's tensors in the caches, and what a turn costs the system is paid by both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from parallel_core.engine.device import Device
from parallel_core.profile.layers import LayerBench, draw
from parallel_core.profile.repeats import expected
from parallel_core.profile.table import Curve
from parallel_core.spec import RunSpec

_ENOUGH_S, _LEAST, _MOST = 0.4, 3, 20
_ENDS = 2
"""The first pass and the last, which some ranks do while others are not at work."""


def passes(specs: Sequence[RunSpec], device: Device) -> Curve:
    """Seconds of a pass forward and backward through all layers, by the samples of `specs`; all ranks call it."""
    bench = LayerBench(specs[-1], [specs[-1].model.units()], device)
    seconds = []
    for spec in specs:
        bench.read(draw(spec, device))
        first = _pass(bench)
        repeats = min(_MOST, max(_LEAST, round(_ENOUGH_S / first)))
        told = torch.tensor(repeats, device=device.torch)
        dist.broadcast(told, 0)  # ranks that begin together, and repeat as often, are at work at the same time
        took = [_pass(bench) for _ in range(int(told) + _ENDS)]
        seconds.append(expected(took[1:-1]))
    return Curve(sizes=tuple(float(spec.train.global_batch) for spec in specs), seconds=tuple(seconds))


def _pass(bench: LayerBench) -> float:
    took = bench.run(split=False)
    return took["forward"][0] + took["backward"][0]
