"""Real ranks for engine tests: forked from the test process, so nothing is imported twice, and connected through
gloo.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from parallel_core import processes
from parallel_core.data import corpus
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import describe_exit
from parallel_core.launch_server import imports_compiler, prewarm, prewarm_compiler
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec
from tests.scratch import fresh_folder

prewarm()  # as in the fork server: imports what each rank would import
corpus.open("stdlib")  # read the corpus once, since ranks get no folder for it
torch.set_num_threads(1)  # a thread pool in the parent would not survive the fork

Work = Callable[[RunSpec, int, Rendezvous, Path], Any]
Turn = tuple[RunSpec, Work]


def run(spec: RunSpec, work: Work, folder: Path) -> list[Any]:
    """The results of `work` on each rank of `spec`. A rank that raises fails the test with its own traceback."""
    return run_many([spec], work, folder)[0]


def run_many(specs: Sequence[RunSpec], work: Work, folder: Path) -> list[list[Any]]:
    """`run` for several specs with the same world size, one after the other in the same processes: results by spec,
    then rank.
    """
    results, error = _launch([(spec, work) for spec in specs], folder)
    assert not error, error
    return results


def run_each(turns: Sequence[Turn]) -> list[list[Any] | str]:
    """As `run_many`, each with its own work. For one that fails: the tracebacks of its ranks; the others run in new
    processes.
    """
    out: list[list[Any] | str] = []
    while len(out) < len(turns):
        results, error = _launch(turns[len(out) :], scratch())
        out += [*results, *([error] if error else [])]
    return out


def _launch(turns: Sequence[Turn], folder: Path) -> tuple[list[list[Any]], str]:
    """The results of the turns that all ranks have ended, by turn, then rank; and the tracebacks of the next one, ''
    where all have ended.
    """
    (world,) = {spec.parallel.world for spec, _ in turns}
    if any(imports_compiler(spec) for spec, _ in turns):
        prewarm_compiler()
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in turns]
        pids = {}
        for rank in range(world):
            meetings = [
                Rendezvous("127.0.0.1", at.getsockname()[1], world, rank == 0, None if rank else at.fileno())
                for at in listeners
            ]
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                processes.die_with(parent)
                _be(list(zip(turns, meetings, strict=True)), rank, folder)
            pids[rank] = pid
    _wait(pids)
    seen = [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in pids]
    errors = [text for _, text in seen if text]
    ended = min(len(results) for results, _ in seen)
    by_turn = zip(*(results[:ended] for results, _ in seen), strict=True)
    return [list(of_ranks) for of_ranks in by_turn], "\n".join(errors)


def _wait(pids: dict[int, int]) -> None:
    """Waits for every rank to end; none goes on if this is interrupted. AssertionError for one that left no result."""
    ends: dict[int, int] = {}
    try:
        for rank, pid in pids.items():
            ends[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        for rank in pids.keys() - ends.keys():
            os.kill(pids[rank], signal.SIGKILL)
            os.waitpid(pids[rank], 0)
    died = [f"rank {rank}: {describe_exit(end)}" for rank, end in ends.items() if end]
    assert not died, f"ended without a result: {', '.join(died)}"


def _be(turns: list[tuple[Turn, Rendezvous]], rank: int, folder: Path) -> None:
    gc.freeze()  # keeps the collector from traversing, and so copying, the parent's objects
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    tempfile.tempdir = str(folder)  # temporary files vanish with the folder, since no exit handler runs here
    results: list[Any] = []
    error = ""
    try:
        for (spec, work), meeting in turns:
            results.append(work(spec, rank, meeting, folder))
    except BaseException:
        (spec, _), _ = turns[len(results)]
        error = f"rank {rank} of {json.dumps(spec.model_dump())}:\n{traceback.format_exc()}"
    (folder / f"result-{rank}").write_bytes(pickle.dumps((results, error)))
    os._exit(0)


def with_trainer(
    spec: RunSpec,
    rank: int,
    meeting: Rendezvous,
    folder: Path,
    use: Callable[[Trainer], Any],
    corpora: Path | None = None,
) -> Any:
    """Calls `use(trainer)` on a rank that has joined its groups, and returns its result."""
    device = open_device(spec.train.device)
    groups = connect(meeting, rank, Layout.of(spec), device.backend, spec.model.tied)
    try:
        return use(Trainer(spec, rank, groups, device, Progress(folder, rank), corpora))
    finally:
        disconnect()


def scratch() -> Path:
    """A temporary folder for the ranks of one run."""
    return fresh_folder("ranks")
