"""Text generation from a checkpoint on this host, with a real worker and real ranks: output grows, can be stopped,
restarts.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from parallel_core.analysis.generated import Generated, together
from parallel_core.generation_request import inference
from parallel_core.observe import record_files
from parallel_core.spec import RunSpec
from tests.workers.harness import Bench

REQUEST = {"prompt": list(b"def "), "new": 6, "samples": 2, "temperature": 0.9, "top_k": 20, "seed": 3, "cached": True}
LONG = {**REQUEST, "new": 500, "samples": 64, "cached": False}


def trained() -> dict[str, Any]:
    return {
        "model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 512},
        "parallel": {"dp": 2},
        "train": {"steps": 3, "warmup_steps": 2, "global_batch": 2, "checkpoint_every": 3},
    }


def told(bench: Bench, attempt: int, rank: int) -> Generated | None:
    frames = record_files.decode(bench.received(attempt, "events", rank))
    return together(frame.header for frame in frames if frame.kind == "generated")


def test_a_run_generates_from_a_checkpoint_of_this_host(bench: Bench) -> None:
    """Both ranks report the same tokens; SIGKILL fails the run and a later attempt starts from scratch; a cancel ends
    it with the tokens generated so far.
    """
    first = bench.send(trained(), run=950)
    assert bench.wait_end(first)["outcome"] == "succeeded"
    spec = inference(RunSpec.model_validate(trained()).model_dump(mode="json"), 2).model_dump(mode="json")
    resume = {"run": 950, "step": 3}

    def generate(run: int, task: dict[str, Any], number: int = 1) -> int:
        return bench.send(spec, run=run, number=number, resume=resume, task=task)

    killed = generate(951, LONG)
    os.kill(bench.wait_running(killed, step=2)[1][0], signal.SIGKILL)
    assert bench.wait_end(killed)["cause"] == "killed_by_signal"
    again = generate(951, REQUEST, number=2)
    assert bench.wait_end(again)["outcome"] == "succeeded"
    one, other = told(bench, again, 0), told(bench, again, 1)
    assert one is not None and other is not None
    assert one["tokens"] == other["tokens"]
    assert [len(tokens) for tokens in one["tokens"]] == [6, 6]
    assert len(one["seconds"]) == 5
    # K and V, layers, samples, heads of a rank, positions, head dimension, bytes
    assert one["kv_bytes"] == 2 * 1 * 2 * 1 * (4 + 6) * 8 * 4

    stopped = generate(952, LONG)
    bench.wait_running(stopped, step=2)
    bench.control("cancel", stopped)
    assert bench.wait_end(stopped)["outcome"] == "cancelled"
    so_far = told(bench, stopped, 0)
    assert so_far is not None and 1 <= len(so_far["tokens"][0]) < 500


def test_what_cannot_be_generated_is_refused(bench: Bench) -> None:
    spec = inference(RunSpec.model_validate(trained()).model_dump(mode="json"), 2).model_dump(mode="json")
    no_checkpoint = bench.send(spec, run=960, resume={"run": 961, "step": 3}, task=REQUEST)
    assert "no checkpoint of run 961" in bench.wait_end(no_checkpoint)["detail"]
    nowhere = bench.send(spec, run=962, task=REQUEST)
    assert "the message names none" in bench.wait_end(nowhere)["detail"]
    unknown = bench.send(spec, run=963, resume={"run": 961, "step": 3}, task={**REQUEST, "prompt": [999]})
    assert "the model knows tokens 0 to 255" in bench.wait_end(unknown)["detail"]
