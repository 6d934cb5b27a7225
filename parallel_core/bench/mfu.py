"""How much of one device's peak a GPT gets: model FLOPs over time and peak (Chowdhery et al. 2022, appendix B).

On a GPU a size that fills the chip, in bf16, against its data sheet; on a CPU core one that fits its caches, in fp32,
against the best matrix product that was measured on the same core just before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.local import LocalYard, Outcome
from parallel_core.observe import host
from parallel_core.spec import RunSpec

CHIP: dict[str, Any] = {"layers": 8, "hidden": 4096, "heads": 32, "seq": 2048, "vocab": 32_768}
"""1.9 G parameters: 34 GB of state in mixed precision, and products of at least 16 384 x 4 096 x 4 096."""
BATCH = 8
"""Samples: 55 GB in all. Norm, clipping and update move 50 bytes a parameter whatever the batch, on an H100 some 28 ms:
of half as many samples that is a sixth of the step."""
CORE: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "seq": 128, "vocab": 4096}


def spec_of(gpu: bool, steps: int) -> RunSpec:
    train = {"global_batch": BATCH, "precision": "bf16", "device": "cuda"} if gpu else {"global_batch": 4}
    warmup = {"steps": steps + 2, "warmup_steps": 2}
    return RunSpec.model_validate({"model": CHIP if gpu else CORE, "train": {**train, **warmup}})


def run(rounds: int) -> dict[str, Any]:
    """Results: `mfu` (median over the steps, `rounds` of them), `hfu`, `tflops` and `peak` FLOP/s with its `source`;
    on a GPU `memory`, the meter's peak over the allocator's."""
    spec = spec_of(bool(host.cuda_devices()), max(2, rounds))
    with LocalYard() as yard, tempfile.TemporaryDirectory() as folder:
        done = yard.run(spec, Path(folder) / "run")
    if not done.ok:
        raise RuntimeError(done.failure())
    found = {name: float(np.median(done.series(name)["value"])) for name in ("mfu", "hfu", "tflops")}
    peak = (done.last(0, "summary") or {})["peak"]
    text = (
        f"MFU {found['mfu']:.3f}, HFU {found['hfu']:.3f}: {found['tflops']:.3g} of {peak['flops_per_s'] / 1e12:.3g} "
        f"TFLOP/s ({peak['source']})"
    )
    if spec.train.device == "cuda":
        found["memory"] = _memory(done)
        text += f"; the meter's peak is {found['memory']:.3f} of the allocator's"
    return {**found, "peak": peak["flops_per_s"], "source": peak["source"], "text": text}


def _memory(done: Outcome) -> float:
    memory = done.last(0, "memory") or {}
    return float(memory["peak_total"] / memory["rss_delta"])
