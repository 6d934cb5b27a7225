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


def run(spec: RunSpec, work: Work, folder: Path) -> list[Any]:
    """The results of `work` on each rank of `spec`. A rank that raises fails the test with its own traceback."""
    return run_many([spec], work, folder)[0]


def run_many(specs: Sequence[RunSpec], work: Work, folder: Path) -> list[list[Any]]:
    """`run` for several specs with the same world size, one after the other in the same processes: results by spec,
    then rank.
    """
    (world,) = {spec.parallel.world for spec in specs}
    if any(map(imports_compiler, specs)):
        prewarm_compiler()
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in specs]
        pids = {}
        for rank in range(world):
            meetings = [
                Rendezvous("127.0.0.1", at.getsockname()[1], world, rank == 0, None if rank else at.fileno())
                for at in listeners
            ]
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                processes.die_with(parent)
                _be(list(zip(specs, meetings, strict=True)), rank, work, folder)
            pids[rank] = pid
    _wait(pids)
    results = [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in pids]
    errors = [text for ok, text in results if not ok]
    assert not errors, errors[0]
    return [list(of_ranks) for of_ranks in zip(*(values for _, values in results), strict=True)]


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


def _be(turns: list[tuple[RunSpec, Rendezvous]], rank: int, work: Work, folder: Path) -> None:
    gc.freeze()  # keeps the collector from traversing, and so copying, the parent's objects
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    tempfile.tempdir = str(folder)  # temporary files vanish with the folder, since no exit handler runs here
    results: list[Any] = []
    try:
        for spec, meeting in turns:
            results.append(work(spec, rank, meeting, folder))
        result: tuple[bool, Any] = (True, results)
    except BaseException:
        spec, _ = turns[len(results)]
        result = (False, f"rank {rank} of {json.dumps(spec.model_dump())}:\n{traceback.format_exc()}")
    (folder / f"result-{rank}").write_bytes(pickle.dumps(result))
    os._exit(0)


def with_trainer(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, use: Callable[[Trainer], Any]) -> Any:
    """Calls `use(trainer)` on a rank that has joined its groups, and returns its result."""
    device = open_device(spec.train.device)
    groups = connect(meeting, rank, Layout.of(spec), device.backend, spec.model.tied)
    try:
        return use(Trainer(spec, rank, groups, device, Progress(folder, rank)))
    finally:
        disconnect()


def scratch() -> Path:
    """A temporary folder for the ranks of one run."""
    return fresh_folder("ranks")
