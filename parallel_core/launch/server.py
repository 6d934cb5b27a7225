"""The fork server: imports the engine once, forks ranks, monitors them, and reports (see `launch` for the events).

It is single-threaded, runs no tensor operations and makes no calls of torch.cuda, so that its forks are clean. One
loop waits for commands (JSON lines), for the end of children (SIGCHLD through a wake-up pipe) and for deadlines.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import math
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from parallel_core import launch, processes
from parallel_core.atomic_file import NO_SPACE
from parallel_core.launch import StartCommand, Store
from parallel_core.launch.attempt import Attempt
from parallel_core.launch.children import blame, next_ended
from parallel_core.launch.prewarm import imports_compiler, prewarm, prewarm_compiler
from parallel_core.launch.rank import RankArgs, RunRank, be_rank, engine, is_awaited, tell_waiting
from parallel_core.observe.host import listen_at

FAIL_GRACE_S = 1.0
"""Seconds from TERM to KILL for the other ranks of an attempt of which one has failed."""

LONGEST_WAIT_S = 3600.0
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class Server:
    """The server's loop. `commands` and `reports` are file descriptors; `run_rank` is the program of a rank."""

    def __init__(self, commands: int, reports: int, run_rank: RunRank) -> None:
        self.commands, self.reports, self.run_rank = commands, reports, run_rank
        self.attempts: dict[int, Attempt] = {}
        self.closing = self.ending = self.asked_to_end = False
        self._text = b""
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._term())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake)

    def loop(self) -> None:
        """Serves until it is closed and no attempt is left."""
        self.report(event="ready")
        while not ((self.closing or self.ending) and not self.attempts):
            watched = [self._wake] if self.closing else [self._wake, self.commands]
            readable, _, _ = select.select(watched, [], [], self._patience())
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            if self.commands in readable:
                self._read_commands()
            if self.asked_to_end and not self.ending:
                self._end()
            self._reap()
            self._settle()

    def _term(self) -> None:
        """Called in the signal handler: the loop, woken by the same signal, does the rest."""
        self.asked_to_end = True

    def _end(self) -> None:
        """After a TERM: stops everything without a time limit, and ends when it is gone.

        Whoever signals every process of a service or a batch job signals the client and the ranks, too. The client
        knows how long they may take to save: its `stop` sets the limit, and they die with it.
        """
        self.ending = True
        for attempt in self.attempts.values():
            attempt.stop(math.inf)

    def close(self) -> None:
        """Stops everything at short notice; the loop ends when it is gone."""
        self.closing = True
        for attempt in self.attempts.values():
            attempt.stop(FAIL_GRACE_S)

    def abandon(self) -> None:
        """Kills all ranks after the client died without a `close` command.

        They must not exit in an orderly way and make those on other hosts do so: nobody could report it, and the run
        would be taken for one that was interrupted.
        """
        self.closing = True
        for attempt in self.attempts.values():
            attempt.kill()

    def report(self, **event: Any) -> None:
        """Sends an event to the client."""
        line = memoryview((json.dumps(event) + "\n").encode())
        try:
            while line:
                line = line[os.write(self.reports, line) :]
        except BrokenPipeError:  # the client is gone
            self.abandon()

    # Orders

    def _read_commands(self) -> None:
        data = os.read(self.commands, 1 << 16)
        if not data:
            self.abandon()
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in filter(None, lines):
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "close":
            self.close()
            return
        attempt = self.attempts.get(command["attempt"])
        if command["do"] == "start":
            if not self.ending:  # else the client is told soon that the server is lost
                self._start(command)
        elif attempt is None:
            self.report(event="gone", attempt=command["attempt"])
        elif command["do"] == "stop":
            attempt.stop(float(command["grace"]))
        elif command["do"] == "dump":
            attempt.dump()

    def _start(self, command: Any) -> None:
        """Forks the ranks of an attempt; a second command for a running one is ignored."""
        if command["attempt"] in self.attempts:
            return
        attempt = self.attempts[command["attempt"]] = Attempt(command)
        try:
            ranks, listener = self._rank_args(command)
            with listener or contextlib.nullcontext():
                for args in ranks:
                    self._fork(attempt, args)
        except Exception as error:
            self.report(event="refused", attempt=attempt.number, message=f"{type(error).__name__}: {error}")
            attempt.stop(0)

    def _rank_args(self, command: StartCommand) -> tuple[list[RankArgs], socket.socket | None]:
        """Returns the arguments of each rank, and the listening socket of the store if this host opens it."""
        from parallel_core.spec import RunSpec

        spec = RunSpec.model_validate(command["spec"])
        if imports_compiler(spec):
            prewarm_compiler()
        alone = len(command["devices"]) == spec.parallel.world
        store, listener = command.get("store"), None
        if store is None:
            if command["first_rank"] != 0:
                raise ValueError("store: only the host of rank 0 opens it; the others must be told where it is")
            listener, store = _listen("127.0.0.1" if alone else command.get("address", ""))
            self.report(event="store", attempt=command["attempt"], **store)
        fd = listener.fileno() if listener else None
        ranks = [
            RankArgs(command, spec, rank, device, store, fd if rank == 0 else None, alone)
            for rank, device in enumerate(command["devices"], command["first_rank"])
        ]
        return ranks, listener

    def _fork(self, attempt: Attempt, args: RankArgs) -> None:
        if processes.threads() != 1:
            raise RuntimeError("the fork server has threads; a fork would not be safe")
        try:
            pid = self._child(lambda: be_rank(args, self.run_rank))
        except OSError as error:
            why = f"the host has no process left for rank {args.rank} ({error.strerror}); use fewer ranks"
            raise RuntimeError(why) from error
        attempt.pids[pid] = args.rank
        ticks = processes.start_ticks(pid)
        self.report(event="started", attempt=args.command["attempt"], rank=args.rank, pid=pid, start_ticks=ticks)

    def _child(self, work: Callable[[], object]) -> int:
        """Forks a child that does this and ends; returns its pid. Raises OSError where there is no process left."""
        server = os.getpid()
        # A TERM for the new child must not run the server's handler: blocked until the child has reset it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(work, server)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        return pid

    def _become(self, work: Callable[[], object], server: int) -> NoReturn:
        """Runs in the child: resets the server's signal handling, then does its work."""
        code = launch.EXIT_FAULT
        try:
            processes.die_with(server)
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            work()
            code = 0
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                code = launch.EXIT_FULL if error.errno == errno.ENOSPC else launch.EXIT_QUOTA
            traceback.print_exc()
        finally:
            os._exit(code)

    # Ends

    def _reap(self) -> None:
        """Reaps every child that has ended; of several at once the most likely culprit is reported first."""
        ended = []
        while (child := next_ended()) is not None:
            pid, code = child
            attempt = next((a for a in self.attempts.values() if pid in a.pids), None)
            if attempt is not None:  # otherwise a process that a rank had left behind
                ended.append((blame(code), code, attempt.pids[pid], attempt))
        for _, code, rank, attempt in sorted(ended, key=lambda item: item[0]):
            self._ended(attempt, rank, code)

    def _ended(self, attempt: Attempt, rank: int, code: int) -> None:
        attempt.codes[rank] = code
        self.report(event="exit", attempt=attempt.number, rank=rank, code=code)
        if code not in (0, launch.EXIT_STOPPED):  # after an orderly stop the others exit by themselves
            if not attempt.stopping and is_awaited(attempt.command, rank):
                with contextlib.suppress(OSError):  # no process left for that: the controller tells them
                    self._child(lambda: tell_waiting(attempt.command, rank, code))
            attempt.stop(FAIL_GRACE_S)

    def _settle(self) -> None:
        """Sends signals that are due; reports and forgets attempts of which no process is left."""
        for attempt in list(self.attempts.values()):
            attempt.act()
            if attempt.gone():
                del self.attempts[attempt.number]
                self.report(event="gone", attempt=attempt.number)

    def _patience(self) -> float:
        """Returns the seconds until something is due."""
        return min([LONGEST_WAIT_S, *(attempt.patience() for attempt in self.attempts.values())])


class AddressError(OSError):
    """The address at which other hosts are to reach this one is none of its own."""


def _listen(host: str) -> tuple[socket.socket, Store]:
    """A listening socket on a free port, and its address. The store takes it over, so no port is guessed or fixed."""
    try:
        listener = listen_at(host)
    except OSError as error:
        if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
            raise
        raise AddressError(f"the host of rank 0 has no address {host}: {error.strerror}") from error
    return listener, {"host": host or socket.gethostname(), "port": listener.getsockname()[1]}


def serve(parent: int, run_rank: RunRank | None = None) -> None:
    """Runs as the fork server on stdin and stdout until it is closed.

    `run_rank` replaces the engine in the ranks; it can only be given from Python, not by a command.
    """
    processes.die_with(parent)
    processes.adopt_orphans()
    commands, reports = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of imports must not end up among the reports
    prewarm()
    server = Server(commands, reports, run_rank or engine())
    gc.collect()
    gc.freeze()  # keeps the pages of imported modules shared between ranks
    server.loop()


def main(run_rank: RunRank) -> None:
    """The entry point of a server whose ranks run something else than training: a benchmark, a profile."""
    parent = int(sys.argv[sys.argv.index("--parent") + 1])
    processes.die_with(parent)
    prewarm_compiler()
    serve(parent, run_rank)
