"""The life of one rank, from the fork to its exit code: device, log, records, and error reports."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import host_memory
from parallel_core.engine.stop import LossNotFinite, Stopped
from parallel_core.launch import (
    EXIT_FAULT,
    EXIT_MEMORY,
    EXIT_PEER,
    EXIT_STOPPED,
    StartCommand,
    Store,
    describe_exit,
)
from parallel_core.launch.gpu import take_gpu
from parallel_core.observe import host, progress
from parallel_core.observe.cores import core_of
from parallel_core.observe.record_files import FileSink, log_path
from parallel_core.plan.room import FRAMEWORK
from parallel_core.spec import RunSpec

if TYPE_CHECKING:
    from parallel_core.engine.distributed import Rendezvous

_MEMORY_WORDS = (
    "can't allocate memory",
    *("cuda error: out of memory", "cuda driver error: out of memory"),  # the latter with expandable segments
    *("cublas_status_alloc_failed", "cudnn_status_alloc_failed"),
    *(f"cudnn_status_internal_error_{where}_allocation_failed" for where in ("device", "host")),  # since cuDNN 9
    *("cuda failure 2 'out of memory'", "cuda failure 'out of memory'"),  # NCCL's buffers
)
_PEER_WORDS = (
    *("connection closed by peer", "connection reset by peer", "broken pipe", "socket timeout", "nccl"),
    "connection was likely closed",  # that to the store, which rank 0 holds
    "connection refused",  # by a rank that ended before its peers had connected
)
_OWN_WORDS = (
    *("ncclinvalidusage", "ncclinvalidargument", "ncclunhandledcudaerror", "ncclinternalerror"),
    "creating shared memory segment",  # in an ncclSystemError, as which refused connections are reported, too
)
"""Messages of NCCL about faults of the rank itself or its host, not caused by the end of another rank."""


@dataclass(frozen=True)
class RankArgs:
    """The arguments of one rank. `listen_fd`: listening socket of the store, in rank 0 if this host opens it."""

    command: StartCommand
    spec: RunSpec
    rank: int
    device: int
    store: Store
    listen_fd: int | None
    alone: bool  # all ranks of the run are on this host
    sharing: int = 1  # ranks on the fullest GPU of this host

    @property
    def folder(self) -> Path:
        return Path(self.command["folder"])

    def rendezvous(self) -> Rendezvous:
        """Returns how to join the other ranks. Raises ValueError where ranks share a GPU and others are on another
        host, since either all ranks or none use NCCL."""
        from parallel_core.engine.distributed import Rendezvous

        if self.sharing > 1 and not self.alone:
            raise ValueError("ranks that share a GPU exchange through its host, so all ranks must be on that host.")
        world, is_host = self.spec.parallel.world, self.listen_fd is not None
        node = None if self.alone else self.command["first_rank"]
        return Rendezvous(self.store["host"], self.store["port"], world, is_host, self.listen_fd, self.sharing, node)

    @property
    def saves(self) -> CheckpointConfig | None:
        """Where checkpoints go and which one to resume from; None without checkpoints."""
        told = self.command.get("saves")
        if not told:
            return None
        resume = Path(told["resume"]) if told["resume"] else None
        return CheckpointConfig(Path(told["folder"]), resume, told["run"], told["attempt"])


BEFORE_IT_JOINS = ((-1, progress.STARTING), (-1, progress.CONNECTING))
"""What a rank does until it has joined the others, as its page tells."""
TELL_S = 60.0
"""For so many seconds it is tried to reach the store: its host may still have to open it."""
RunRank = Callable[[RankArgs, FileSink, progress.Progress], None]
"""The program of a rank: trains, emits its records, and returns when it is done."""


def engine() -> RunRank:
    """Returns the engine as a RunRank; its imports happen here, in the fork server, so that ranks need none."""
    from parallel_core.engine import generate
    from parallel_core.engine.run import run_rank
    from parallel_core.profile import host_link_bench

    platform.processor()  # starts a process the first time

    def run(args: RankArgs, sink: FileSink, page: progress.Progress) -> None:
        connect = args.rendezvous()
        if args.command.get("links"):
            host_link_bench.run_rank(args.spec, args.rank, sink, connect, page)
            return
        request, saves, cache = args.command.get("request"), args.saves, Path(args.command["corpus_cache"])
        expects = args.command.get("expects") or {}
        begins = saves.resume if saves is not None else None
        if request is not None and begins is None and args.spec.train.weights:
            begins = llama_weights.path_of(args.spec.train.weights, cache)
        if request is not None and begins is not None:
            generate.run_rank(args.spec, args.rank, sink, connect, page, begins, request, expects)
            return
        run_rank(args.spec, args.rank, sink, connect, page, cache, args.saves, expects)

    return run


def is_awaited(command: StartCommand, rank: int) -> bool:
    """Whether ranks on other hosts may wait for this one to join, and only hear from its host that it has ended."""
    where = progress.read(Path(command["folder"]), rank)
    return command.get("store") is not None and (where is None or (where.step, where.op) in BEFORE_IT_JOINS)


def tell_waiting(command: StartCommand, rank: int, code: int) -> None:
    """Tells the ranks on other hosts that this one has ended with that exit code, and will not join. In a process of
    its own, as their store may have to be waited for; without the pipes of the server, which are to end with it."""
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 65536))
    from parallel_core.engine.distributed import Rendezvous
    from parallel_core.engine.meeting import tell_failed
    from parallel_core.spec import RunSpec

    store = command.get("store")
    if store is None:
        return
    world = RunSpec.model_validate(command["spec"]).parallel.world
    there = Rendezvous(store["host"], store["port"], world, is_host=False, node=command["first_rank"])
    with contextlib.suppress(OSError, RuntimeError):  # they have ended, too
        tell_failed(there.open_store(timedelta(seconds=TELL_S)), rank, describe_exit(code))


def be_rank(args: RankArgs, run_rank: RunRank) -> NoReturn:
    """Runs the rank and exits with an exit code of `launch`. Never returns, and skips the clean-up handlers of the
    server."""
    os.setsid()
    _log_to(log_path(args.folder, args.rank), keep=args.listen_fd)
    sink = FileSink(args.folder, args.rank, args.command.get("segment"))
    page = progress.Progress(args.folder, args.rank)
    code = 0
    try:
        run_rank(_take_place(args), sink, page)
    except Stopped as error:
        sys.stderr.write(f"{error}\n")
        code = EXIT_STOPPED
    except BaseException as error:
        code = _report(error, args, sink)
    sink.emit("exit", code=code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _log_to(path: Path, keep: int | None) -> None:
    """Redirects stdout and stderr to the rank's log and closes every other descriptor of the server but `keep`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(log, target)
    limit = os.sysconf("SC_OPEN_MAX")
    kept = 3 if keep is None else keep
    os.closerange(3, kept)
    os.closerange(kept + (keep is not None), min(limit, 65536))
    logging.Formatter.converter = time.gmtime  # hosts may be in several time zones; pages are in UTC, too
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)sZ %(message)s", force=True)
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)


def _take_place(args: RankArgs) -> RankArgs:
    """Binds the rank to its device before torch is initialized. A CPU device is one core, one thread."""
    if args.alone and sys.platform.startswith("linux"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if not args.alone:
        os.environ[host_memory.NODE] = str(args.command["first_rank"])
        _use_interface_of(args.command.get("address", ""))
    _prefer_as_victim()
    if args.command["device_kind"] == "cuda":
        split = args.spec.parallel
        ahead = split.pp > 1 or (split.world > 1 and bool(args.command.get("links")))
        known = args.command.get("gpus", ())
        args = replace(args, sharing=take_gpu(args.device, args.command["devices"], ahead, known))
    elif hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core_of(args.device)})
    import torch

    torch.set_num_threads(1)
    cap = args.spec.trace.memory_cap
    if cap is not None and args.command["device_kind"] == "cuda":
        _limit_allocator(cap)
    return args


def _limit_allocator(cap: int) -> None:
    """Limits what PyTorch's allocator takes of the GPU to `cap` bytes and what predictions leave to libraries: their
    workspaces and its fragments are in its segments, too. That tensors alone stay below the cap, the memory meter sees
    to."""
    import torch

    from parallel_core.engine.device import first_gpu

    total = torch.cuda.get_device_properties(first_gpu()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (cap + FRAMEWORK["cuda"]) / total))


def _use_interface_of(address: str) -> None:
    """Makes gloo and NCCL use the network interface with this address, by which other hosts reach us, unless the worker
    was configured otherwise.

    By default they use the interface of the host's own name, which is often only reachable from the host itself.
    """
    found = host.interface_of(address)
    if found:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", found)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={found}")


def _prefer_as_victim() -> None:
    """Makes the kernel's out-of-memory killer prefer a rank over the worker, which has to report it."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        return


def _report(error: BaseException, args: RankArgs, sink: FileSink) -> int:
    """Emits the fault record with the rank's own traceback (also in its log, unless the rank chose to end); returns the
    exit code for the kind of error."""
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):  # a full disk may still take the record
        sys.stderr.write(f"{error}\n" if isinstance(error, LossNotFinite) else text)
    where = progress.read(args.folder, args.rank)
    memory = _out_of_memory(error)
    sink.emit(
        "fault",
        type=type(error).__name__,
        message=str(error)[:4000],
        traceback=text[-16_000:],
        step=where.step if where else -1,
        op=where.op if where else "",
        cause="out_of_memory" if memory else "not_finite" if isinstance(error, LossNotFinite) else "user_code",
    )
    return EXIT_MEMORY if memory else EXIT_PEER if _peer_lost(error) else EXIT_FAULT


def _out_of_memory(error: BaseException) -> bool:
    """Whether the error, or the one that caused it, is evidence of memory exhaustion: the meter's cap, Python's or
    torch's own error, a failed allocation of a library."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if error.__cause__ is not None and _out_of_memory(error.__cause__):
        return True
    told = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in told for word in _MEMORY_WORDS)


def _peer_lost(error: BaseException) -> bool:
    """Whether the rank failed only because another one vanished during a collective or a receive."""
    import torch.distributed as dist

    told = str(error).lower()
    if not isinstance(error, (dist.DistError, RuntimeError, ConnectionError)):
        return False
    return any(word in told for word in _PEER_WORDS) and not any(word in told for word in _OWN_WORDS)
