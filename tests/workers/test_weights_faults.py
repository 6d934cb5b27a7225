"""What hits a run that begins from Llama weights: a rank dies while it loads them, their folder is gone at a retry."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.checkpoint import llama_weights, safetensors
from parallel_core.observe import progress
from tests.parallel_core.test_llama import CONFIGURED
from tests.workers.harness import PATIENCE_S, Bench, none_alive, paced
from tests.workers.test_checkpoints import begins
from tests.workers.test_weights import weights_in

pytestmark = pytest.mark.faults
LAYERS = 400


def deep_in(folder: Path) -> dict[str, Any]:
    """Puts weights of many small layers there, which take a rank some time; returns a spec that begins from them."""
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = {**CONFIGURED, **sizes, **heads}
    model = llama_weights.model_of(config, 16)
    shapes = llama_weights.expected(llama_weights.ModelSpec.model_validate(model))
    path = folder / "deep"
    path.mkdir(parents=True, exist_ok=True)
    about = {name: ("F32", shape) for name, shape in shapes.items()}
    data = (torch.full(shape, 0.01).numpy().tobytes() for shape in shapes.values())
    safetensors.write(path / safetensors.SINGLE, about, data)
    (path / llama_weights.CONFIG).write_text(json.dumps(config))
    train = {"steps": 1000, "warmup_steps": 1, "global_batch": 2, "weights": "deep"}
    return {"model": model, "parallel": {"dp": 2}, "train": train}


def loading(bench: Bench, attempt: int, rank: int) -> int:
    """Waits until the rank loads; returns its pid. Looks closely: it does so for a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        place = progress.read(bench.folder / "attempts" / str(attempt), rank)
        if place is not None and place.op == "loading":
            return place.pid
        assert place is None or place.step < 0, "it trains already"
        time.sleep(0.001)
    raise AssertionError(f"rank {rank} loaded nothing; the worker's log:\n{bench.log()}")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_it_loads_weights_is_named(victim: int, bench: Bench) -> None:
    attempt = bench.send(deep_in(bench.folder / "corpora"))
    os.kill(loading(bench, attempt, victim), signal.SIGKILL)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["rank"], end["none_left"]) == ("failed", "killed_by_signal", victim, True)
    assert end["detail"] == f"Rank {victim} was killed by signal 9 (SIGKILL) before its first step in loading."
    assert none_alive(bench.recorded(attempt))


def test_a_retry_says_that_the_weights_are_gone(bench: Bench) -> None:
    spec = weights_in(bench.folder / "corpora", "passing")
    spec |= {"train": {**spec["train"], "steps": 1000, "checkpoint_every": 0}, "inject": paced(1)["inject"]}
    first = bench.send(spec, run=980)
    os.kill(bench.wait_running(first)[1][0], signal.SIGKILL)
    assert bench.wait_end(first)["cause"] == "killed_by_signal"
    gone = bench.folder / "corpora" / "passing"
    shutil.rmtree(gone)
    end = bench.wait_end(bench.send(spec, run=980, number=2))
    assert (end["outcome"], end["cause"]) == ("failed", "refused")
    assert f"cannot begin from the weights in {gone}: " in end["detail"] and "is no folder" in end["detail"]


def test_a_retry_from_a_checkpoint_needs_the_weights_no_more(bench: Bench) -> None:
    spec = weights_in(bench.folder / "corpora", "passing")
    spec |= {"train": {**spec["train"], "steps": 60, "checkpoint_every": 20}, "inject": paced(1)["inject"]}
    first = bench.send(spec, run=981)
    os.kill(bench.wait_running(first, step=30)[0][0], signal.SIGKILL)
    assert bench.wait_end(first)["cause"] == "killed_by_signal"
    shutil.rmtree(bench.folder / "corpora" / "passing")
    second = bench.send(spec, run=981, number=2)
    assert bench.wait_end(second)["outcome"] == "succeeded"
    assert begins(bench, second)["step"] >= 20
