"""A backward in two parts: the gradient of the input (B), and those of the weights (W)."""

from __future__ import annotations

from parallel_core.layout import Layout
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.units import unit_costs
from parallel_core.simulate.measured import Cost
from parallel_core.spec import DeviceKind, RunSpec

HALVES: dict[DeviceKind, float] = {"cpu": 1.06, "cuda": 1.0}
"""Work of B and W over that of BW. W reads again what B had at hand, which a core then fetches from memory: 1.02 to
1.10 with this engine, ZB-H1 against GPipe, 1F1B and interleaved 1F1B of a GPT 4 x 128 (`bench whatif`). A GPU reads the
factors of each product from its memory either way."""
LEAST_INPUT, MOST_INPUT = 0.5, 0.8
"""Bounds of the input gradient's share of a backward (see `halved`)."""


def parted(spec: RunSpec) -> list[float]:
    """Share of each stage's FLOPs in layers whose weight gradients are made in W. Convolutions and LSTMs make theirs in
    B: of a ResNet-50 W took 0.1 of 14 ms, of a stage of GNMT with the output layer 2.9 of 10 ms."""
    costs, flops = unit_costs(spec), flop_weights(spec.model)
    shares = []
    for own in Layout.of(spec).stage_units:
        whole = sum(flops[unit] for unit in own)
        shares.append(sum(flops[unit] for unit in own if costs[unit].weights) / whole if whole else 1.0)
    return shares


def halved(forward: Cost, backward: Cost, longer: float, share: float = 1.0) -> tuple[Cost, Cost]:
    """Input and weight gradient of a backward that was measured whole, of which `share` is divided; that share takes
    `longer` times its work.

    The input gradient takes as long as the forward: both compute what is not a product with a parameter (attention,
    norms, activations), and a product of the same size with each parameter. Measured on GPUs it took 0.98 to 1.00 of
    the forward's time, and 1.3 to 1.9 of the weight gradient's (Qi et al. 2024a, table 6). Messages and recomputation
    also belong to it: both come before the weight gradients.
    """
    part = share * backward.work
    work = min(max(share * forward.work, LEAST_INPUT * part), MOST_INPUT * part)
    return backward._replace(work=backward.work - part + work), Cost(longer * part - work)


def joined(first: Cost, second: Cost, longer: float, share: float = 1.0) -> Cost:
    """The whole backward of which `first` and `second` were measured: the reverse of `halved`."""
    return Cost(*(a + b for a, b in zip(first, second, strict=True)))._replace(
        work=(first.work + second.work) / (1 + share * (longer - 1))
    )
