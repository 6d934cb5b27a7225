"""A fork server for a test: ranks train as usual, but rank 1 fails in the middle of a step, with messages in flight, or
of a save where there is one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parallel_core.engine import storage
from parallel_core.engine.executor import BaseExecutor
from parallel_core.launch.rank import RankArgs, engine
from parallel_core.launch.server import main
from parallel_core.local import LocalRunner
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.outcome import Outcome
from parallel_core.schedule.ir import Op
from parallel_core.spec import RunSpec

STEP = 2
MODEL = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}


def be_rank(args: RankArgs, sink: FileSink, page: Progress) -> None:
    backward = BaseExecutor._backward

    def fails(self: BaseExecutor, op: Op) -> int:
        if self._parts.chunks.stages[op.stage]._batches[0].step == STEP and op.micro_batch == 1:
            raise ValueError("a fault of the code")
        return backward(self, op)

    def cut_short(shares: object, file: Path, tell: object) -> None:
        file.write_bytes(b"a part")
        raise ValueError("a fault of the code")

    if args.rank == 1 and args.spec.train.checkpoint_every:
        storage.write = cut_short  # type: ignore[assignment]
    elif args.rank == 1:
        BaseExecutor._backward = fails  # type: ignore[method-assign]
    engine()(args, sink, page)


def failed(folder: Path, device: str, checkpoint_every: int = 0) -> Outcome:
    """The outcome of a two-rank run in which rank 1 fails with messages in flight, or in its first save."""
    train = {"global_batch": 8, "steps": 6, "warmup_steps": 1, "device": device, "checkpoint_every": checkpoint_every}
    spec = RunSpec.model_validate(
        {"model": MODEL, "parallel": {"pp": 2, "schedule": "1f1b", "micro_batches": 4}, "train": train}
    )
    with LocalRunner((sys.executable, "-m", "tests.parallel_core.failing_ranks")) as runner:
        outcome = runner.run(spec, folder)
    assert not outcome.ok and len(outcome.exits) == 2
    return outcome


if __name__ == "__main__":
    main(be_rank)
