"""Starts all training processes: the client of the fork server (`launch.server`), which is a process of its own.

    server = ForkServer(on_event)                  # starts it; the import of torch continues in the background
    server.start(command)                          # ranks of one attempt on this host; several attempts at once
    server.stop(attempt, grace=2.0)
    server.close()                                 # stops everything; returns when no process is left

Events arrive in order, in one thread of the client, as dictionaries (see `Event`):

    ready     the server has imported the engine (commands given earlier are kept until then)
    store     attempt, host, port: where the rendezvous store of an attempt listens (from the host of rank 0)
    started   attempt, rank, pid, start_ticks
    refused   attempt, message: the command could not be carried out; `gone` follows
    exit      attempt, rank, code (negative = signal): the rank that failed first comes first
    gone      attempt: no process of it is left
    lost      code: the server itself has ended, and with it (PR_SET_PDEATHSIG) every rank; always the last event

The first rank that fails ends the others. This module imports neither torch nor the engine, since a long-lived Celery
process uses it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

EXIT_FAULT, EXIT_MEMORY, EXIT_PEER, EXIT_STOPPED, EXIT_FULL, EXIT_QUOTA = 1, 2, 3, 4, 5, 6
"""Exit codes of a rank: its code raised; out of memory (with evidence); another rank vanished during a collective;
stopped by SIGTERM after a complete step, with a checkpoint; a disk that was full, or of which the user may have no
more (two codes), took not even the record of a failure."""
_REFUSED = {EXIT_FULL: errno.ENOSPC, EXIT_QUOTA: errno.EDQUOT}

STOP_GRACE_S = 2.0
"""From TERM to KILL when an attempt is stopped: ranks that are between steps save a checkpoint in it."""
_ENV = frozenset({"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT", "GLIBC_TUNABLES"})
_OWN = "TRAINYARD_SHARED_MEMORY"
"""`engine.host_memory.SWITCH`: the only one of our own variables that is passed to ranks; others contain secrets."""
_ENV_PREFIXES = (
    *("LC_", "PYTHON", "LD_", "DYLD_", "OMP_", "COVERAGE"),
    *("CUDA", "CUBLAS", "CUDNN_", "NVIDIA", "TORCH", "PYTORCH_"),
    *("NCCL_", "GLOO_", "OFI_NCCL_", "FI_", "IBV_", "RDMAV_"),  # and the libraries that NCCL uses between hosts
)

_ALLOCATOR = "glibc.malloc.trim_threshold=1099511627776:glibc.malloc.mmap_max=0:glibc.malloc.hugetlb=1"
"""Settings of glibc's allocator, which CPU tensors use: memory freed by a step stays with the process, in huge pages
where the system has them. By default the end of the heap is returned whenever enough of it is free, and the next step
faults in every page again: depending on where tensors lie, some steps take a tenth longer. No effect elsewhere."""


_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With 1, checking for GPUs does not initialize CUDA (docs.pytorch.org, "CUDA environment variables"): a rank forked
after that could not use a GPU."""


class Store(TypedDict):
    """Address of rank 0's rendezvous store."""

    host: str
    port: int


class CheckpointOptions(TypedDict):
    """The checkpoints of an attempt: the fields of checkpoint.config.CheckpointConfig, `resume` '' for none."""

    folder: str
    resume: str
    run: int
    attempt: int


class GenerationRequest(TypedDict):
    """A request for text: `new` tokens after `prompt`, `samples` times. `temperature` 0 takes the most likely token.

    Validated by `parallel_core.generation_request.TextRequest`.
    """

    prompt: list[int]
    new: int
    samples: int
    temperature: float
    top_k: NotRequired[int]
    seed: int
    cached: bool


class StartCommand(TypedDict):
    """Starts one host's ranks of an attempt: rank `first_rank + i` gets `devices[i]`.

    Without `saves` no checkpoints are made. `store` is None on the host of rank 0, which opens it (on loopback if all
    ranks are on this host, otherwise on `address`).
    """

    attempt: int
    spec: dict[str, Any]
    folder: str
    first_rank: int
    devices: list[int]
    device_kind: Literal["cpu", "cuda"]
    corpus_cache: str
    store: NotRequired[Store | None]
    address: NotRequired[str]
    saves: NotRequired[CheckpointOptions | None]
    request: NotRequired[GenerationRequest | None]
    """If given, generate this text from the checkpoint that `saves` resumes from, or the weights that the spec names,
    in place of training."""
    expects: NotRequired[dict[str, str]]
    """If given, what the ranks have to read: `engine.inputs`."""
    links: NotRequired[bool]
    """Measure messages in place of training: between two hosts (profile.host_link_bench), or for a profile."""
    segment: NotRequired[int]
    """Bytes after which the records of a rank go on in a new file (observe.record_files); else they are in one."""
    gpus: NotRequired[list[tuple[str, str]]]
    """(name, board) of the host's GPUs (observe.gpus) in the order of their numbers, where they were read before: a
    driver that has lost one counts the others anew. Without it each rank asks the driver."""


class Event(TypedDict):
    """An event reported by the fork server; the module's docstring lists the keys of each kind."""

    event: Literal["ready", "store", "started", "refused", "exit", "gone", "lost"]
    attempt: NotRequired[int]
    rank: NotRequired[int]
    pid: NotRequired[int]
    start_ticks: NotRequired[int]
    code: NotRequired[int]
    host: NotRequired[str]
    port: NotRequired[int]
    message: NotRequired[str]


class ServerLost(RuntimeError):
    """The fork server has ended; it takes no more commands."""


class ForkServer:
    """A running fork server. Its methods may be called from any thread; `on_event` is called from a thread of this
    object.

    That thread starts the server process and lives as long as it, since PR_SET_PDEATHSIG sends its signal when the
    *thread* that started a process ends. So the ranks also end with this process, however it ends.
    """

    def __init__(self, on_event: Callable[[Event], None], command: Sequence[str] | None = None) -> None:
        """Starts the server. `command` replaces its command line (to run other code in the ranks: benchmarks, profiles,
        tests).

        Raises OSError where the server cannot be started.
        """
        self._on_event = on_event
        self._command = list(command or (sys.executable, "-m", "parallel_core.launch", "serve"))
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._live, name="fork-server", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._error is not None:
            raise self._error

    # Orders

    def start(self, command: StartCommand) -> None:
        """Starts the ranks of an attempt. Its folder must exist."""
        self._send({"do": "start", **command})

    def stop(self, attempt: int, grace: float = STOP_GRACE_S) -> None:
        """Sends SIGTERM to every rank, SIGKILL after `grace` seconds; `exit` and `gone` events report the end."""
        self._send({"do": "stop", "attempt": attempt, "grace": grace})

    def dump(self, attempt: int) -> None:
        """Makes each rank write the stacks of all its threads to its log (before a `stop` for lack of progress)."""
        self._send({"do": "dump", "attempt": attempt})

    def close(self, timeout: float = 10.0) -> None:
        """Stops every attempt and the server; returns when they are gone (SIGKILL after `timeout` seconds).

        Without the `close` command, the server would take the end of its input for our death, and kill the ranks at
        once.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(ServerLost):
            self._send({"do": "close"})
        with self._lock, contextlib.suppress(OSError):  # it may have ended already
            self._process.stdin.close()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def pid(self) -> int:
        return self._process.pid

    # In its own thread

    def _live(self) -> None:
        """Starts the process, forwards its events until it ends, then reports its end."""
        try:
            self._process = subprocess.Popen(
                [*self._command, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
                start_new_session=True,  # Ctrl-C in the terminal must reach us only, not the server
                text=True,
                bufsize=1,
            )
        except OSError as error:
            self._error = error
            return
        finally:
            self._begun.set()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tell(json.loads(line))
        self._process.wait()
        self._tell({"event": "lost", "code": self._process.returncode})

    def _tell(self, event: Event) -> None:
        """Calls `on_event`. Its exceptions are printed, not raised: the end of this thread would end every rank."""
        try:
            self._on_event(event)
        except Exception:
            traceback.print_exc()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(command) + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise ServerLost("the fork server has ended") from error


def environment() -> dict[str, str]:
    """The environment of the server and the ranks: without addresses, passwords and tokens of this installation."""
    kept = {k: v for k, v in os.environ.items() if k in _ENV or k == _OWN or k.startswith(_ENV_PREFIXES)}
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    search = os.pathsep.join(dict.fromkeys(paths))
    fixed = {"PYTHONPATH": search, "PYTHONUNBUFFERED": "1", _NVML_CHECK: "1"}
    return {"GLIBC_TUNABLES": _ALLOCATOR, **kept, **threads, **fixed}


def describe_exit(code: int) -> str:
    """Describes an exit code: 'signal 9 (SIGKILL)' or 'exit code 1'."""
    if code in _REFUSED:
        return f"exit code {code} ({os.strerror(_REFUSED[code])} for its records)"
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGBUS:
        lost = "a page could not be had of memory that ranks share, or of a file that was cut while it was read"
        return f"signal {-code} (SIGBUS: {lost})"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
