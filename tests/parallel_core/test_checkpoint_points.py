"""No checkpoint is ahead of the written points: if a rank is killed after a save, no step is missing that nobody will
repeat.
"""

from __future__ import annotations

from pathlib import Path

from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.outcome import points
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file

SPEC = RunSpec.model_validate(
    {
        "model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 8, "vocab": 64},
        "train": {"steps": 40, "global_batch": 2, "checkpoint_every": 5, "keep": 99},
    }
)


def _run(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    run_rank(
        spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=CheckpointConfig(folder / "run")
    )


def test_the_points_of_all_steps_stand_before_their_checkpoint(tmp_path: Path) -> None:
    ranks.run(SPEC, _run, tmp_path)
    written: list[int] = []
    saved = []
    for frame in read_file(events_path(tmp_path, 0)):
        if frame.kind == "points":
            written += points([frame], "rank_step_time")["step"].tolist()
        elif frame.kind == "checkpoint":
            saved.append(frame.header["step"])
            assert len(written) >= saved[-1], "a checkpoint before its points"
    assert saved == list(range(5, 41, 5))
    assert written == list(range(40))
