"""The only door to training processes: a client of the fork server, and `python -m parallel_core.launch serve`.

    server = ForkServer(on_event)                  # starts it; the import of torch goes on in the background
    server.start(order)                            # ranks of one attempt on this host; several attempts at once
    server.stop(attempt, grace=2.0)
    server.close()                                 # stops everything; returns when no process is left

Events arrive in order, in one thread of the client, as dictionaries (see `Event`):

    ready     the server has imported the engine (orders given earlier are kept until then)
    store     attempt, host, port: where the rendezvous store of an attempt listens (from the host of rank 0)
    started   attempt, rank, pid, start_ticks
    refused   attempt, message: the order could not be carried out; `gone` follows
    exit      attempt, rank, code (negative = signal): the rank that failed first comes first
    gone      attempt: no process of it is left
    lost      code: the server itself has ended, and with it (PR_SET_PDEATHSIG) every rank; always the last event

The first rank that fails ends the others. This module imports neither torch nor the engine: a long-lived Celery
process uses it.
"""

from __future__ import annotations

import contextlib
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

EXIT_FAULT, EXIT_MEMORY, EXIT_PEER, EXIT_STOPPED = 1, 2, 3, 4
"""Exit codes of a rank: its code raised; out of memory (with evidence); another rank vanished under a collective;
stopped by SIGTERM, with everything up to a whole step saved."""

STOP_GRACE_S = 2.0
_ENV = frozenset({"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT", "GLIBC_TUNABLES"})
_OWN = "TRAINYARD_SHARED_MEMORY"
"""`engine.host_memory.SWITCH`: of our own variables, which name secrets and addresses, the one that ranks may see."""
_ENV_PREFIXES = (
    *("LC_", "PYTHON", "LD_", "DYLD_", "OMP_", "COVERAGE"),
    *("CUDA", "CUBLAS", "CUDNN_", "NVIDIA", "TORCH", "PYTORCH_"),
    *("NCCL_", "GLOO_", "OFI_NCCL_", "FI_", "IBV_", "RDMAV_"),  # and what NCCL goes through between hosts
)

_ALLOCATOR = "glibc.malloc.trim_threshold=1099511627776:glibc.malloc.mmap_max=0:glibc.malloc.hugetlb=1"
"""glibc's, which CPU tensors come from: what a step lets go of stays with the process, in huge pages where the system
has them. By default the end of the heap is handed back whenever a step leaves enough of it, and the next step faults
every page of it in again: some steps, by how tensors happen to lie, take a tenth longer. Elsewhere it means nothing."""


_COUNTING = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With 1, whoever asks whether there are GPUs does not start CUDA (docs.pytorch.org, "CUDA environment variables"): a
rank that is forked behind that could never use one."""


class Store(TypedDict):
    """Where rank 0's rendezvous store listens."""

    host: str
    port: int


class Saves(TypedDict):
    """Checkpoints of an attempt: the fields of checkpoint.config.CheckpointConfig, `resume` '' for none."""

    folder: str
    resume: str
    run: int
    attempt: int


class Wish(TypedDict):
    """What is to be generated: `new` tokens behind `prompt`, `samples` times. `temperature` 0 takes the likeliest.

    See `parallel_core.generation_request.TextRequest`, which checks it.
    """

    prompt: list[int]
    new: int
    samples: int
    temperature: float
    top_k: NotRequired[int]
    seed: int
    cached: bool


class StartOrder(TypedDict):
    """One host's ranks of an attempt: rank `first_rank + i` gets `devices[i]`.

    Without `saves` nothing is saved.
    `store` is None on the host of rank 0, which opens it (on loopback where all ranks are here, else on `address`).
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
    saves: NotRequired[Saves | None]
    wish: NotRequired[Wish | None]
    """Text to generate from the checkpoint that `saves` resumes from, instead of training."""
    links: NotRequired[bool]
    """Messages are timed instead of training: between two hosts (profile.between), or by a profile."""


class Event(TypedDict):
    """What the fork server reports; see the module's docstring for the keys of each kind."""

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
    """The fork server has ended; no order can be given any more."""


class ForkServer:
    """A running fork server. Its methods may be called from any thread; `on_event` is called from one of ours.

    That thread starts the process and lives as long as it does, which PR_SET_PDEATHSIG needs: the signal comes when
    the *thread* that started a process ends. So the ranks also end with this process, however it ends.
    """

    def __init__(self, on_event: Callable[[Event], None], command: Sequence[str] | None = None) -> None:
        """`command` replaces the server's own command line (tests do, to run other code in the ranks).

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

    def start(self, order: StartOrder) -> None:
        """Start the ranks of an attempt. Its folder must exist."""
        self._send({"do": "start", **order})

    def stop(self, attempt: int, grace: float = STOP_GRACE_S) -> None:
        """TERM to every rank, KILL after `grace` seconds; `exit` and `gone` tell when it is over."""
        self._send({"do": "stop", "attempt": attempt, "grace": grace})

    def dump(self, attempt: int) -> None:
        """Each rank writes the stacks of all its threads to its log (before a `stop` for want of progress)."""
        self._send({"do": "dump", "attempt": attempt})

    def close(self, timeout: float = 10.0) -> None:
        """Stop every attempt and the server; returns when they are gone (KILL after `timeout` seconds).

        Without the word that it ends, the end of our orders would be our death, and the ranks killed at once.
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

    # Its own thread

    def _live(self) -> None:
        """Start the process, hand on its events until it ends, then report that it has."""
        try:
            self._process = subprocess.Popen(
                [*self._command, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle, not the server's
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
        """A fault of the listener is told, not passed on: this thread's end would be the end of every rank."""
        try:
            self._on_event(event)
        except Exception:
            traceback.print_exc()

    def _send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise ServerLost("the fork server has ended") from error


def environment() -> dict[str, str]:
    """What the server and the ranks may see of our environment: no address, password or token of the yard."""
    kept = {k: v for k, v in os.environ.items() if k in _ENV or k == _OWN or k.startswith(_ENV_PREFIXES)}
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    search = os.pathsep.join(dict.fromkeys(paths))
    fixed = {"PYTHONPATH": search, "PYTHONUNBUFFERED": "1", _COUNTING: "1"}
    return {"GLIBC_TUNABLES": _ALLOCATOR, **kept, **threads, **fixed}


def describe_exit(code: int) -> str:
    """An exit code as words: 'signal 9 (SIGKILL)' or 'exit code 1'."""
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGBUS:
        return f"signal {-code} (SIGBUS: a page of memory that ranks share, or of a mapped file, could not be had)"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def main(arguments: Sequence[str]) -> int:
    """`serve --parent <pid>`: be the fork server of that process."""
    from parallel_core import processes

    if len(arguments) != 3 or arguments[:2] != ["serve", "--parent"] or not arguments[2].isdigit():
        print("usage: python -m parallel_core.launch serve --parent <pid>", file=sys.stderr)  # noqa: T201
        return 2
    processes.die_with(int(arguments[2]))
    from parallel_core.launch_server import serve

    serve(parent=int(arguments[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
