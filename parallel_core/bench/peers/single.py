"""A plain PyTorch training loop on one device."""

from __future__ import annotations

from pathlib import Path

from parallel_core.bench.peers.common import Batches, adamw, layers, mean_loss
from parallel_core.bench.turns import Contestant, metered
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    model, batches = layers(spec), Batches(spec, cache)
    optimizer = adamw(model, spec.train)

    def step(number: int) -> float:
        tokens, targets = batches(number)
        loss = mean_loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Contestant(step, metered(step, model))
