"""The end of a run beside its last checkpoint: what fails, stops or kills it there loses nothing that was trained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import storage
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.shares import Share
from parallel_core.observe.memory import MemoryCapExceeded
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import FileSink
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.test_checkpoint import END, spec_of

SLOW_S = 0.5
"""What rank 0 takes longer to write: its peer is far into the metered step by then, if it does not wait."""


def _capped(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[int]:
    """The checkpoints that are there when the metered step, behind the last one, fails."""
    write = storage.write

    def slow(shares: Mapping[str, Share], file: Path, tell: Any) -> dict[str, Any]:
        time.sleep(SLOW_S)
        return write(shares, file, tell)

    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(storage, "write", slow)
        with pytest.raises(MemoryCapExceeded):
            order = CheckpointConfig(folder / "run")
            run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=order)
        return folders.steps(folder / "run")


def test_the_last_checkpoint_is_there_before_the_metered_step_can_fail(tmp_path: Path) -> None:
    """On every rank: the first one that fails ends the others, also that which publishes."""
    spec = RunSpec.model_validate(
        spec_of({}, {"checkpoint_every": END, "warmup_steps": 0}, dp=2).model_dump() | {"trace": {"memory_cap": 1000}}
    )
    assert ranks.run(spec, _capped, tmp_path) == [[END], [END]]
