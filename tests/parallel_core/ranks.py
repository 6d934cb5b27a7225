"""Real ranks for engine tests: forked from the test process, so nothing is imported twice, and connected through
gloo.
"""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import select
import signal
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from parallel_core import processes
from parallel_core.data import corpus
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import describe_exit
from parallel_core.launch.prewarm import imports_compiler, prewarm, prewarm_compiler
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec
from tests.scratch import fresh_folder

prewarm()  # as in the fork server: imports what each rank would import
corpus.open("stdlib")  # read the corpus once, since ranks get no folder for it
torch.set_num_threads(1)  # a thread pool in the parent would not survive the fork

Work = Callable[[RunSpec, int, Rendezvous, Path], Any]
Turn = tuple[RunSpec, Work]
TURN_S = 240.0
"""The longest turn of `run_each`: several times what the slowest takes on a busy host."""
MOST_HUNG = 3
"""How many turns of one `run_each` may hang. A fault that hangs every turn would otherwise take hours to be told."""
LOOK_S = 1.0


class Launched(NamedTuple):
    """What one launch brought: `results` of the turns that all ranks have ended, by turn, then rank; the tracebacks of
    the next one, '' where all have ended; whether its ranks `hung`, and were killed.
    """

    results: list[list[Any]]
    error: str
    hung: bool


def run(spec: RunSpec, work: Work, folder: Path) -> list[Any]:
    """The results of `work` on each rank of `spec`. A rank that raises fails the test with its own traceback."""
    return run_many([spec], work, folder)[0]


def run_many(specs: Sequence[RunSpec], work: Work, folder: Path) -> list[list[Any]]:
    """`run` for several specs with the same world size, one after the other in the same processes: results by spec,
    then rank.
    """
    launched = _launch([(spec, work) for spec in specs], folder)
    assert not launched.error, launched.error
    return launched.results


def run_each(turns: Sequence[Turn], limit_s: float = TURN_S) -> list[list[Any] | str]:
    """As `run_many`, each with its own work. For one that fails: the tracebacks of its ranks, or how they ended; the
    others run in new processes. Ranks that end no turn in `limit_s` seconds are killed; behind MOST_HUNG such turns no
    other is run.
    """
    out: list[list[Any] | str] = []
    hung = 0
    while len(out) < len(turns) and hung < MOST_HUNG:
        launched = _launch(turns[len(out) :], scratch(), limit_s)
        out += [*launched.results, *([launched.error] if launched.error else [])]
        hung += launched.hung
    return [
        *out,
        *[f"not run: {hung} of the turns before it ended nothing in {limit_s:.0f} s"] * (len(turns) - len(out)),
    ]


def _launch(turns: Sequence[Turn], folder: Path, limit_s: float = math.inf) -> Launched:
    (world,) = {spec.parallel.world for spec, _ in turns}
    if any(imports_compiler(spec) for spec, _ in turns):
        prewarm_compiler()
    folder.mkdir(parents=True, exist_ok=True)
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
                try:
                    processes.die_with(parent)
                    _be(list(zip(turns, meetings, strict=True)), rank, folder)
                finally:  # else a rank whose folder is full or gone would go on as a second test process
                    os._exit(1)
            pids[rank] = pid
    ends, hung = _wait(pids, folder, limit_s)
    seen = [_results(folder, rank) for rank in pids]
    ended = min(map(len, seen))
    by_turn = zip(*(results[:ended] for results in seen), strict=True)
    error = "" if ended == len(turns) else _error(folder, ends)
    return Launched([list(of_ranks) for of_ranks in by_turn], error, hung)


def _results(folder: Path, rank: int) -> list[Any]:
    """What a rank has returned, by turn, as far as it came."""
    out: list[Any] = []
    while (path := _result(folder, rank, len(out))).exists():
        out.append(pickle.loads(path.read_bytes()))
    return out


def _result(folder: Path, rank: int, turn: int) -> Path:
    return folder / f"result-{rank}-{turn}"


def _error(folder: Path, ends: Mapping[int, int]) -> str:
    """The tracebacks of ranks that raised, and how the others ended that did not end by themselves."""
    raised = [path.read_text() for rank in ends if (path := folder / f"error-{rank}").exists()]
    died = [f"rank {rank} ended without a result: {describe_exit(end)}" for rank, end in ends.items() if end]
    return "\n".join([*raised, *died])


def _wait(pids: Mapping[int, int], folder: Path, limit_s: float) -> tuple[dict[int, int], bool]:
    """Waits for every rank to end, and returns the exit codes, and whether ranks hung: they are killed where they end
    no turn in `limit_s` seconds. None goes on if this is interrupted.
    """
    waiting, ended, since = select.poll(), 0, time.monotonic()
    with ExitStack() as stack:
        left = {stack.enter_context(_pidfd(pid)): rank for rank, pid in pids.items()}
        for fd in left:
            waiting.register(fd, select.POLLIN)
        try:
            while left and time.monotonic() - since < limit_s:
                for fd, _ in waiting.poll(1000 * min(limit_s, LOOK_S)):
                    waiting.unregister(fd)
                    del left[fd]
                if (now := len(list(folder.glob("result-*")))) != ended:
                    ended, since = now, time.monotonic()
        finally:
            for rank in left.values():
                os.kill(pids[rank], signal.SIGKILL)
            ends = {rank: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for rank, pid in pids.items()}
    return ends, bool(left)


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _be(turns: list[tuple[Turn, Rendezvous]], rank: int, folder: Path) -> None:
    gc.freeze()  # keeps the collector from traversing, and so copying, the parent's objects
    warnings.simplefilter("default")  # as deployed; those of the test process raise
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    tempfile.tempdir = str(folder)  # temporary files vanish with the folder, since no exit handler runs here
    given = dict(os.environ)
    for number, ((spec, work), meeting) in enumerate(turns):
        os.environ.clear()
        os.environ.update(given)
        torch.set_deterministic_debug_mode("default")  # use_deterministic_algorithms would import PyTorch's compiler
        try:
            out = pickle.dumps(work(spec, rank, meeting, folder))
        except BaseException:
            text = f"rank {rank} of {json.dumps(spec.model_dump())}:\n{traceback.format_exc()}"
            (folder / f"error-{rank}").write_text(text)
            break
        part = folder / f"part-{rank}"  # renamed when it is whole, as a rank may be killed at any time
        part.write_bytes(out)
        part.rename(_result(folder, rank, number))
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
