"""Draws random runs: any model under any split that the rules allow, on few ranks, to test untypical combinations."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from pydantic import ValidationError

from parallel_core.outline import KINDS
from parallel_core.schedule.traits import CUSTOM, TRAITS, takes_early_gradients
from parallel_core.spec import RunSpec

MOST_RANKS = 4
_GPT_WEIGHT = 12
"""How often a GPT is drawn where any other kind is drawn once."""
_EARLY = 0.4
"""Share of the pipelines that use early gradients, of those that can. Drawn from a separate generator, so that the
other draws of a seed do not depend on it."""


def draw(seed: int, steps: int = 3, warmup_steps: int = 2) -> Iterator[RunSpec]:
    """Yields valid specs endlessly, the same ones for the same seed; invalid draws are discarded."""
    chance, early = Random(seed), Random(f"early {seed}")
    while True:
        train = _train(chance) | {"steps": steps, "warmup_steps": warmup_steps}
        model = _model(chance)
        split = _parallel(chance, model.get("layers", 4))
        if early.random() < _EARLY and split.get("schedule") in takes_early_gradients():
            split["early_gradients"] = True
        told = {"model": model, "parallel": split, "train": train}
        try:
            spec = RunSpec.model_validate({**told, "trace": {"fingerprint_every": 0, "trace_every": 0}})
        except ValidationError:
            continue
        if 1 < spec.parallel.world <= MOST_RANKS:
            yield spec


def _model(chance: Random) -> dict[str, Any]:
    (kind,) = chance.choices([*KINDS], [_GPT_WEIGHT if kind == "gpt" else 1 for kind in KINDS])
    layers = chance.randint(2, 6)
    if kind == "gpt":
        return {"kind": kind, "layers": layers, "vocab": 256, **_gpt(chance)}
    if kind == "gnmt":
        return {"kind": kind, "layers": layers, "hidden": 64, "seq": 24, "vocab": 512}
    return {"kind": kind} | ({"width": 8} if "width" in KINDS[kind].fields else {})


def _gpt(chance: Random) -> dict[str, Any]:
    heads = chance.choice((2, 4))
    return {
        "heads": heads,
        "hidden": heads * chance.choice((16, 32)),
        "seq": chance.choice((32, 64)),
        "kv_heads": chance.choice((None, None, None, 1, 2)),
        "positions": chance.choice(("learned", "learned", "rope")),
        "activation": chance.choice(("gelu", "gelu", "swiglu")),
        "norm": chance.choice(("layernorm", "layernorm", "rmsnorm")),
        "attention": chance.choice(("fused", "plain")),
        "bias": chance.random() < 0.7,
        "tied": chance.random() < 0.3,
        "dropout": chance.choice((0.0, 0.0, 0.0, 0.1)),
    }


def _parallel(chance: Random, layers: int) -> dict[str, Any]:
    pp = chance.choice((1, 2, 2, 3, 4))
    zero = chance.choice((0, 0, 0, 1, 2, 3))
    split: dict[str, Any] = {
        "dp": chance.choice((1, 1, 2, 3, 4)),
        "tp": chance.choice((1, 1, 2)),
        "pp": pp,
        "micro_batches": chance.choice((1, 2, 4)),
        "sequence": chance.random() < 0.3,
        "tensor_split": chance.choice(("pairs", "pairs", "pairs", "columns")),
        "recompute": chance.choice(("none", "none", "selective", "full")),
        "zero": zero,
    }
    if zero == 3 and chance.random() < 0.5:
        split["zero_backend"] = "fully_shard"
    if split["recompute"] != "none" and chance.random() < 0.3:
        split["recompute_layers"] = sorted(chance.sample(range(layers), chance.randint(1, layers)))
    return split | (_pipeline(chance, layers, pp) if pp > 1 else {})


def _pipeline(chance: Random, layers: int, pp: int) -> dict[str, Any]:
    name = chance.choice([name for name in TRAITS if name != CUSTOM])
    split: dict[str, Any] = {"schedule": name, "micro_batches": chance.choice((1, 2, 3, 4, 6, 8))}
    stages = pp * TRAITS[name].chunks
    if chance.random() < 0.2 and 2 * layers + 1 >= stages:
        split["cuts"] = sorted(chance.sample(range(1, 2 * layers + 2), stages - 1))
    if chance.random() < 0.15:
        split |= {"replicas": [chance.choice((1, 2, 3)) for _ in range(pp)], "dp": 1}
    if chance.random() < 0.15:
        split |= {"widths": [chance.choice((1, 2)) for _ in range(pp)], "tp": 1}
    return split


def _train(chance: Random) -> dict[str, Any]:
    return {
        "global_batch": chance.choice((12, 16, 24, 48)),
        "precision": chance.choice(("fp64", "fp32", "fp32", "bf16", "fp16")),
        "clip": chance.choice(("global", "global", "stage")),
        "lr": 1e-3,
    }
