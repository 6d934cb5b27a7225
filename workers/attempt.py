"""An attempt while it is alive on this host: its command, its folder, its processes and deadlines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from parallel_core import no_progress, processes
from parallel_core.exits import Exit, culprit
from parallel_core.launch import EXIT_PEER, StartCommand, Store
from parallel_core.observe.spool import segment_bytes
from workers import ending
from workers.contract import AttemptBody, Begins
from workers.ending import Ending
from workers.folder import Folder, Meta, Stop
from workers.run_commands import RunCommand
from workers.settings import Settings

NOTHING_SAVED = "its hosts share no folder of checkpoints"
GONE_LIMIT_S = 3.0
"""Seconds that the kernel may take to remove killed processes; those left after that are reported."""


@dataclass
class Attempt:
    """`meta` is the content of the folder's meta.json. Times are CLOCK_MONOTONIC seconds."""

    folder: Folder
    meta: Meta
    command: RunCommand
    store: Store | None = None
    preparing: bool = False
    """Whether its corpus is still being fetched or its checkpoint verified (see `preparation`)."""
    after: frozenset[int] = frozenset()
    """Earlier attempts of its run that are still alive here. Until they are gone they save and drop checkpoints, so
    that it cannot be known where this one begins."""
    launched: float | None = None
    up: float | None = None
    """When all its ranks here had a process."""
    exits: list[Exit] = field(default_factory=list)
    refusal: str = ""
    ended_by: Ending | None = None
    """How it ends because the worker stopped it; None while it runs undisturbed."""
    kill_at: float | None = None
    """When the worker kills the ranks itself because the fork server has not."""
    oom_kills: int = field(default_factory=ending.oom_kills)

    @property
    def number(self) -> int:
        return self.command.attempt

    @property
    def started(self) -> bool:
        """Whether all its ranks on this host have a process."""
        return len(self.meta.processes) == len(self.command.ranks)

    def ready(self) -> bool:
        """Whether it waits for no earlier one, is prepared and, if rank 0 is on another host, the store is known."""
        return not self.after and not self.preparing and (self.command.opens_store or self.store is not None)

    def prepared(self, command: RunCommand) -> None:
        self.command, self.preparing = command, False

    def outdates(self, other: Attempt) -> bool:
        """Whether `other` is an earlier attempt of the same run."""
        mine, theirs = self.command.message, other.command.message
        same = (mine["run"], mine.get("identity")) == (theirs["run"], theirs.get("identity"))
        return same and other.number < self.number

    def uses(self, other: Attempt) -> bool:
        """Whether it has a device that `other` has as well."""
        mine, theirs = self.command, other.command
        same_kind = mine.spec.train.device == theirs.spec.train.device
        return same_kind and not set(mine.node["devices"]).isdisjoint(theirs.node["devices"])

    def start_command(self, settings: Settings, gpus: Sequence[tuple[str, str]] = ()) -> StartCommand:
        """`gpus`: as `Devices.gpus`."""
        node = self.command.node
        return StartCommand(
            attempt=self.number,
            spec=self.command.spec.model_dump(mode="json"),
            folder=str(self.folder.path),
            first_rank=node["first_rank"],
            devices=node["devices"],
            device_kind=self.command.spec.train.device,
            corpus_cache=str(settings.corpora),
            store=None if self.command.opens_store else self.store,
            address="127.0.0.1" if self.command.alone else node["address"],
            saves=self.command.beginning.saves(self.command.message) if self.command.beginning else None,
            request=self.command.request,
            expects=self.command.message.get("read", {}),
            links=self.command.links,
            segment=segment_bytes(settings.spool_bytes, len(self.command.ranks)),
            gpus=list(gpus),
        )

    def running(self) -> AttemptBody:
        """The event to publish once every rank has a process."""
        body = AttemptBody(attempt=self.number, state="running")
        if self.command.beginning:
            body["begins"] = self.command.beginning.told
        elif (message := self.command.message)["number"] > 1:
            body["begins"] = Begins(step=0, run=message["run"], attempt=0, why=NOTHING_SAVED)
        return body

    def record(self, rank: int, process: processes.Recorded) -> None:
        self.meta.processes[rank] = process
        if self.started:
            self.up = time.monotonic()
        self.folder.try_save(self.meta)

    def ran_s(self) -> float | None:
        """Seconds since all its ranks here have had a process; None if they never had."""
        return None if self.up is None else time.monotonic() - self.up

    def mark_stop(self, reason: Stop, ended_by: Ending, kill_at: float) -> None:
        """Stores the stop, if the disk takes it, before any process is killed, so that a restarted worker still knows
        the reason."""
        self.meta.stop, self.ended_by, self.kill_at = reason, ended_by, kill_at
        self.meta.stopped_as = asdict(ended_by)
        self.folder.try_save(self.meta)

    def failed_by_itself(self) -> bool:
        """Whether one of its ranks here has failed, and did not only lose another one."""
        guilty = culprit(self.exits)
        return guilty is not None and guilty.code != EXIT_PEER

    def still_for(self) -> float:
        """Seconds since a rank last reported progress, or since the launch."""
        assert self.launched is not None
        return no_progress.still_for(self.folder.path, self.command.ranks, self.launched)

    def how_it_ended(self) -> Ending:
        """How it ended: as the worker stopped it, as refused, or as exit codes and fault frames show.

        Ranks that had already succeeded when a shutdown reached them count as succeeded.
        """
        exits = {str(one.rank): one.code for one in self.exits}
        left = ending.of_exits(self.folder.path, self.command.ranks, self.exits, ending.oom_kills() - self.oom_kills)
        if ending.outran(left, self.meta.stop):
            return left
        known = self.ended_by or (ending.refused(self.refusal) if self.refusal else None)
        return left if known is None else Ending(**{**vars(known), "exits": known.exits or exits})


def end_processes(recorded: list[processes.Recorded]) -> bool:
    """Kills the processes that still run; returns whether all were gone from /proc within GONE_LIMIT_S seconds."""
    for pid, ticks in recorded:
        processes.kill(pid, ticks)
    return not processes.wait_gone(recorded, GONE_LIMIT_S)
