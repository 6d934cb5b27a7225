"""`train.deterministic`: PyTorch's deterministic mode is on in every rank, and two runs end with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_trainer import series

KINDS: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "dropout": 0.1},
    "resnet50": {"kind": "resnet50", "width": 2},
    "gnmt": {"kind": "gnmt", "layers": 4, "hidden": 16, "seq": 8, "vocab": 64},
}


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[bool, bool]:
    run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    return torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic


@pytest.mark.parametrize("kind", ["gpt", "resnet50", pytest.param("gnmt", marks=pytest.mark.full)])
def test_two_runs_end_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "model": KINDS[kind],
            "parallel": {"pp": 2, "micro_batches": 2, "recompute": "full"},
            "train": {"steps": 4, "warmup_steps": 1, "global_batch": 8, "deterministic": True},
            "trace": {"memory": False},
        }
    )
    found = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        assert ranks.run(spec, _work, folder) == [(True, True)] * 2
        seen = read_file(events_path(folder, 0))
        (summary,) = [frame.header for frame in seen if frame.kind == "summary"]
        found.append((summary["fingerprint"]["parameters"], series(seen, "loss")["value"].tobytes()))
    assert found[0] == found[1]
