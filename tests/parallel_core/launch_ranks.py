"""A fork server whose ranks run the functions below instead of the engine; what each rank does is read from its folder.

`behaviour.json` in the attempt's folder maps a rank to one of the names in BEHAVIOURS. Started by test_launch.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from parallel_core import processes
from parallel_core.engine.stop import Stopped, StopRequest
from parallel_core.launch import STOP_GRACE_S
from parallel_core.launch.rank import RankArgs
from parallel_core.launch.server import serve
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress, read
from parallel_core.observe.record_files import FileSink

FORK_ONCE = "--fork-once"
DIE_AFTER_FORK = "--die-after-fork"
FORKED = "forked"
"""File with the process id of the rank, in the folder that follows DIE_AFTER_FORK."""


def finish(args: RankArgs, sink: FileSink, page: Progress) -> None:
    sink.emit("phase", phase="done", step=3)


def raise_error(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Raises once all other ranks are under way."""
    _await_others(args)
    page.at(4, "1F3")
    raise ValueError("a fault of the rank's own code")


def _await_others(args: RankArgs) -> None:
    others = [rank for rank in range(args.spec.parallel.world) if rank != args.rank]
    while any((where := read(args.folder, rank)) is None or where.step < 1 for rank in others):
        time.sleep(0.01)


def run_out(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Allocates more than its cap once all other ranks are under way."""
    import torch

    _await_others(args)
    meter = MemoryMeter(cap=1000)
    with meter.measure():
        torch.zeros(4096)


def wait(args: RankArgs, sink: FileSink, page: Progress) -> None:
    page.at(1, "0F0")
    while True:
        time.sleep(0.05)


def not_join(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Stays before it has joined the others."""
    page.at(-1, "connecting")
    time.sleep(600)


def ignore_term(args: RankArgs, sink: FileSink, page: Progress) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait(args, sink, page)


def stop_slowly(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Emits a record, and another one at SIGTERM; then takes longer to save than a stop allows by default."""
    stop = StopRequest()
    stop.listen()
    sink.emit("phase", phase="timed", step=1)
    while not stop.asked:
        time.sleep(0.01)
    sink.emit("phase", phase="timed", step=2)
    time.sleep(STOP_GRACE_S + 1)
    raise Stopped(2)


def leave_a_child(args: RankArgs, sink: FileSink, page: Progress) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (args.folder / "child").write_text(str(child.pid))


def meet(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Rank 0 opens the store on the socket it was given; all ranks connect to it and add up their numbers."""
    from torch.distributed import TCPStore

    world = args.spec.parallel.world
    host, port = args.store["host"], args.store["port"]
    store = TCPStore(host, port, world, args.listen_fd is not None, master_listen_fd=args.listen_fd)
    store.add("sum", args.rank + 1)
    store.add("met", 1)
    while store.add("met", 0) < world:
        time.sleep(0.01)
    sink.emit("phase", phase="done", step=store.add("sum", 0))
    store.add("left", 1)
    while args.rank == 0 and store.add("left", 0) < world:
        time.sleep(0.01)


def describe(args: RankArgs, sink: FileSink, page: Progress) -> None:
    import torch

    print("to the log")
    sink.emit(
        "hello",
        cores=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        session=os.getsid(0) == os.getpid(),
        descriptors=sorted(int(fd.name) for fd in Path("/proc/self/fd").iterdir()),
        secrets=[name for name in os.environ if "SECRET" in name or "REDIS" in name],
        os_threads=processes.threads(),
    )


def fill_disk(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """Fails on a disk that takes no record any more, not even that of the failure."""
    _refuse(sink, errno.ENOSPC)


def fill_quota(args: RankArgs, sink: FileSink, page: Progress) -> None:
    """As `fill_disk` where only this user may have no more of the disk."""
    _refuse(sink, errno.EDQUOT)


def _refuse(sink: FileSink, number: int) -> None:
    def write(kind: str, blob: bytes = b"", **header: object) -> None:
        raise OSError(number, os.strerror(number))

    sink.emit = write  # type: ignore[method-assign]
    sink.emit("phase")


_ALL = (
    finish,
    raise_error,
    run_out,
    wait,
    not_join,
    ignore_term,
    stop_slowly,
    leave_a_child,
    meet,
    describe,
    fill_disk,
    fill_quota,
)
BEHAVIOURS = {f.__name__: f for f in _ALL}


def run(args: RankArgs, sink: FileSink, page: Progress) -> None:
    named = json.loads((args.folder / "behaviour.json").read_text())
    BEHAVIOURS[named[str(args.rank)]](args, sink, page)


def fork_once() -> None:
    """Makes the second fork of this process fail, as where the host has too many processes."""
    fork, forks = os.fork, iter((False, True))

    def limited() -> int:
        if next(forks, False):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    os.fork = limited


def die_after_fork() -> None:
    """Has this process killed as it has forked a rank, before it can say so."""
    fork = os.fork

    def last() -> int:
        if pid := fork():
            Path(sys.argv[sys.argv.index(DIE_AFTER_FORK) + 1], FORKED).write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return pid

    os.fork = last


if __name__ == "__main__":
    if FORK_ONCE in sys.argv:
        fork_once()
    if DIE_AFTER_FORK in sys.argv:
        die_after_fork()
    processes.die_with(int(sys.argv[-1]))
    serve(parent=int(sys.argv[-1]), run_rank=run)
