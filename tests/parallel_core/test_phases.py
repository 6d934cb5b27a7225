"""A failure outside of a step's operations is said to be in what the rank was really doing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.data.sampler import Sampler
from parallel_core.engine import training_loop
from parallel_core.engine.checkpoint import Saver
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.reader import Reader
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.run import run_rank
from parallel_core.no_progress import place
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

TRAIN = {"steps": 4, "warmup_steps": 1, "global_batch": 2, "checkpoint_every": 2}
PLACES: dict[str, tuple[Any, str, int, str]] = {
    "data": (Sampler, "micro_batches", 2, " at step 2 in reading data"),
    "report": (Reporter, "step", 2, " at step 2 in work after the step"),
    "comparison": (Reader, "prints", 0, " at step 3 in comparing replicas"),
    "copy": (Saver, "_copied", 0, " at step 2 in saving"),
    "end": (training_loop, "finish", 0, " at step 3 in the end of the run"),
}
"""What fails, at which call, counted from 0, and where the rank is said to be."""


class _Spoilt(Exception):
    """The failure."""


def _failing(calls: int, does: Callable[..., Any]) -> Callable[..., Any]:
    left = [calls]

    def fails(*args: Any, **named: Any) -> Any:
        if not left[0]:
            raise _Spoilt
        left[0] -= 1
        return does(*args, **named)

    return fails


def _place(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, where: str) -> str:
    """Where the rank is said to have failed."""
    (of, name, calls, _), here = PLACES[where], ranks.scratch()
    saves = CheckpointConfig(here / "run")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Spoilt):
        patch.setattr(of, name, _failing(calls, getattr(of, name)))
        run_rank(spec, rank, FileSink(here, rank), meeting, Progress(here, rank), saves=saves)
    return place(here, rank)


def test_a_failure_between_operations_is_placed_there() -> None:
    model = {"layers": 1, "hidden": 16, "heads": 2, "seq": 8}
    spec = RunSpec.model_validate({"model": model, "train": TRAIN, "trace": {"reference": False}})
    found = ranks.run_each([(spec, partial(_place, where=where)) for where in PLACES])
    assert dict(zip(PLACES, found, strict=True)) == {where: [said] for where, (*_, said) in PLACES.items()}
