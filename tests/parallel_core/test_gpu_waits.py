"""On a GPU the host queues work ahead: it waits neither for copies nor for the norm, and only at the end for totals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups
from parallel_core.engine.trainer import Trainer
from parallel_core.observe import host
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec
from tests.spies import noting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not host.cuda_devices(), reason="needs a GPU"),
]
MODEL = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128}
LLAMA = {"kv_heads": 2, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
UPLOADS = 8
CYCLES = 4_000_000_000
"""About two seconds of a GPU's clock."""


def busy() -> torch.cuda.Event:
    """Keeps the current stream busy; the event marks the end."""
    end = torch.cuda.Event()
    torch.cuda._sleep(CYCLES)
    end.record()
    return end


@pytest.mark.parametrize("model", [{"dropout": 0.1}, LLAMA], ids=["dropout", "Llama"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_operation_of_a_step_makes_the_host_wait(precision: str, model: dict[str, Any], tmp_path: Path) -> None:
    """PyTorch raises where one would; the wait for the totals is that for an event, which is allowed."""
    train = {"precision": precision, "device": "cuda", "global_batch": 8}
    told = {"model": {**MODEL, **model}, "parallel": {"micro_batches": 2, "recompute": "full"}, "train": train}
    trainer = Trainer(RunSpec.model_validate(told), 0, Groups(), open_device("cuda"), Progress(tmp_path, 0))
    trainer.step(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert trainer.step(1).loss > 0
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_totals_of_a_step_are_known_before_its_update_is_done(tmp_path: Path, monkeypatch: Any) -> None:
    spec = RunSpec.model_validate({"model": MODEL, "train": {"device": "cuda", "global_batch": 4}})
    trainer = Trainer(spec, 0, Groups(), open_device("cuda"), Progress(tmp_path, 0))
    want, ends = trainer.step(0).loss, list[torch.cuda.Event]()
    monkeypatch.setattr(trainer.optimizer, "step", noting(trainer.optimizer.step, ends, lambda *_: busy()))
    assert 0 < trainer.step(1).loss < 2 * want
    assert not ends[0].query()


def test_uploads_do_not_wait_for_the_gpu() -> None:
    """Not before every buffer is in use; and none is used again while it is still read."""
    upload = open_device("cuda").uploads(UPLOADS)
    given = [torch.full((1 << 20,), float(i)) for i in range(2 * UPLOADS)]
    upload(given[0])  # allocates the buffers
    torch.cuda.synchronize()
    end = busy()
    came = [upload(tensor) for tensor in given[: UPLOADS - 1]]
    assert not end.query()
    came += [upload(tensor) for tensor in given[UPLOADS - 1 :]]
    assert [float(tensor.mean()) for tensor in came] == [float(i) for i in range(2 * UPLOADS)]


def test_a_download_does_not_wait_for_what_is_queued_after_it() -> None:
    given = torch.arange(6.0, device="cuda")
    downloads = open_device("cuda").downloads(given, 6)
    begun = [downloads.begin(given * i, None) for i in range(6)]
    end = busy()
    with pytest.raises(AssertionError, match="more downloads"):
        downloads.begin(given, None)
    assert [download.wait().tolist() for download in begun] == [[float(i * j) for j in range(6)] for i in range(6)]
    assert not end.query()


def test_the_state_comes_to_the_host_whole_and_into_the_same_memory() -> None:
    """More than the ring of pinned buffers holds at once."""
    copies, places = open_device("cuda").copies(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        given = [torch.randn(50 << 20, device="cuda"), torch.randn(7, 5, device="cuda").bfloat16().t()]
        got = copies(given)
        assert all(torch.equal(one, other.cpu()) for one, other in zip(got, given, strict=True))
        places.append([copy.data_ptr() for copy in got])
    assert places[0] == places[1]
