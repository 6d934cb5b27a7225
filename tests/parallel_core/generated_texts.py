"""Small models that generate text, trained for some steps, and what real ranks generate from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parallel_core.analysis.generated import Generated
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import checkpoint
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, connect, disconnect, wait_for_all
from parallel_core.engine.generator import Generator
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Layout
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

SIZE = {"layers": 2, "hidden": 32, "heads": 4, "seq": 48, "vocab": 256}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SIZE,
    "llama": SIZE | {"positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False, "kv_heads": 2},
    "plain": SIZE | {"attention": "plain", "positions": "rope", "tied": True},
}
PROMPT, NEW = list(b"def sum("), 24
REQUEST: GenerationRequest = {"prompt": PROMPT, "new": NEW, "samples": 1, "temperature": 0.0, "seed": 7, "cached": True}


def spec_of(model: str, precision: str = "fp64", **parallel: Any) -> RunSpec:
    train = {"precision": precision, "global_batch": 4, "steps": 30, "warmup_steps": 1, "lr": 1e-2}
    return RunSpec.model_validate({"model": MODELS[model], "parallel": parallel, "train": train})


def train(spec: RunSpec, folder: Path) -> Path:
    def use(trainer: Trainer) -> None:
        for step in range(20):
            trainer.step(step)
        saver = checkpoint.Saver(trainer, CheckpointConfig(folder), FileSink(folder, 0))
        saver.save(20)
        saver.wait()

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, scratch: Path) -> None:
        ranks.with_trainer(spec, rank, meeting, scratch, use)

    ranks.run(spec, work, ranks.scratch())
    return folders.path_of(folder, 20)


def generated(spec: RunSpec, path: Path, *requests: GenerationRequest) -> list[list[Generated]]:
    """The results of each request, by rank."""

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[Generated]:
        device = open_device("cpu")
        groups = connect(meeting, rank, Layout.of(spec), device.backend)
        try:
            made = Generator(spec, rank, groups, device, path)
            found = [made.generate(request) for request in requests]
            wait_for_all(groups.store, rank, spec.parallel.world)  # which would end with rank 0
            return found
        finally:
            disconnect()

    return ranks.run(spec, work, ranks.scratch())
