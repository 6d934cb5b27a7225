"""Benchmark of model FLOPs utilization (MFU) of a GPT on one device (Chowdhery et al. 2022, appendix B).

On a GPU: a size that fills the chip, in bf16, relative to its data sheet; on a CPU core: a size that fits its caches,
in fp32, relative to the best matrix product measured on the same core just before.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.local import LocalRunner
from parallel_core.observe import host
from parallel_core.observe.gpus import gpus, open_nvml
from parallel_core.outcome import Outcome
from parallel_core.plan.memory import worst_stage
from parallel_core.spec import RunSpec

CHIP: dict[str, Any] = {"hidden": 6144, "heads": 48, "seq": 2048, "vocab": 32_768, "bias": False}
"""With 4 layers 2.2 G parameters: 40 GB of state in mixed precision, and products of at least 24 576 x 6 144 x 6 144.
The wider the layers, the smaller the share of element-wise operations in a step."""
SIZES = ((4, 12), (4, 8), (4, 4), (2, 8), (2, 4), (1, 4), (1, 1))
"""(layers, samples of a micro-batch), the largest first, which needs 65 GB in all."""
MICRO_BATCHES = 8
"""Per step. Norm, clipping and update move 46 bytes per parameter regardless of the batch, on an H100 about 30 ms by
count: a sixteenth of a step of 12 samples, less than a hundredth of one of 96, still a small batch for such a model."""
FILLED = 0.85
"""Share of a GPU's memory that the predicted model may take; libraries and the allocator need the rest."""
CORE: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "seq": 128, "vocab": 4096}


def spec_of(gpu: bool, steps: int, memory: float = math.inf) -> RunSpec:
    """Returns the run: on a GPU with `memory` bytes the largest of SIZES that fits."""
    sizes = {"steps": steps + 2, "warmup_steps": 2}
    if not gpu:
        return RunSpec.model_validate({"model": CORE, "train": {"global_batch": 4, **sizes}})
    train = {"precision": "bf16", "device": "cuda", **sizes}
    specs = [
        RunSpec.model_validate(
            {
                "model": {"layers": layers, **CHIP},
                "parallel": {"micro_batches": MICRO_BATCHES},
                "train": {"global_batch": samples * MICRO_BATCHES, **train},
            }
        )
        for layers, samples in SIZES
    ]
    return next((spec for spec in specs if worst_stage(spec).total <= FILLED * memory), specs[-1])


def _gpu_memory() -> float:
    """Returns the bytes of the first GPU; infinity where the driver does not report them."""
    nvml = open_nvml()
    handle = next((gpu.handle for gpu in gpus(nvml)), None)
    if handle is None:
        return math.inf
    try:
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # a GPU that shares the processor's memory
        return math.inf


def run(rounds: int) -> dict[str, Any]:
    """Returns `mfu` (median over `rounds` steps, at least 2), `hfu`, `tflops` and `peak` FLOP/s with its `source`; on a
    GPU also `memory`, the memory meter's peak relative to the allocator's. Raises
    RuntimeError if the run fails."""
    gpu = bool(host.cuda_devices())
    spec = spec_of(gpu, max(2, rounds), _gpu_memory() if gpu else math.inf)
    with LocalRunner() as runner, tempfile.TemporaryDirectory() as folder:
        done = runner.run(spec, Path(folder) / "run")
        if not done.ok:
            raise RuntimeError(done.failure())
        found = {name: float(np.median(done.series(name)["value"])) for name in ("mfu", "hfu", "tflops")}
        peak = (done.last(0, "summary") or {})["peak"]
        memory = _memory(done) if gpu else None
    text = (
        f"MFU {found['mfu']:.3f}, HFU {found['hfu']:.3f}: {found['tflops']:.3g} of {peak['flops_per_s'] / 1e12:.3g} "
        f"TFLOP/s ({peak['source']})"
    )
    if memory is not None:
        found["memory"] = memory
        text += f"; the meter's peak is {found['memory']:.3f} of the allocator's"
    return {**found, "peak": peak["flops_per_s"], "source": peak["source"], "text": text}


def _memory(done: Outcome) -> float:
    memory = done.last(0, "memory") or {}
    return float(memory["peak_total"] / memory["rss_delta"])
