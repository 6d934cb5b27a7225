"""Finds out why an attempt ended: the true cause and a sentence, from exit codes, fault frames and progress pages.

Pure functions apart from reading the attempt's folder. "Out of memory" needs evidence: the rank's own fault frame says
so, or the kernel's count of out-of-memory kills rose while a rank was ended by SIGKILL.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallel_core import early_end
from parallel_core.exits import Exit, culprit
from parallel_core.launch import EXIT_PEER, EXIT_STOPPED, describe_exit
from parallel_core.no_progress import place
from parallel_core.observe import control_group, record_files
from workers.contract import AttemptBody, Cause, Outcome

_LAST_ERROR = "\nLast error:\n"
"""In PyTorch's message about an NCCL fault, the text before NCCL's own message."""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended; `body` makes the event of it."""

    outcome: Outcome
    cause: Cause = ""
    detail: str = ""
    rank: int | None = None
    signal: int | None = None
    traceback: str = ""
    exits: dict[str, int] = field(default_factory=dict)
    peer: bool = False
    """Whether the ranks here ended only because ranks on another host had."""

    def body(self, attempt: int, none_left: bool) -> AttemptBody:
        left = "" if none_left else " Some of its processes did not end."
        if none_left and self.outcome == "cancelled":
            left = " No process of it is left."
        body = AttemptBody(
            attempt=attempt,
            state="ended",
            outcome=self.outcome,
            cause=self.cause,
            detail=self.detail + left,
            exits=self.exits,
            none_left=none_left,
        )
        if self.rank is not None:
            body["rank"] = self.rank
        if self.signal is not None:
            body["signal"] = self.signal
        if self.traceback:
            body["traceback"] = self.traceback
        if self.peer:
            body["peer"] = True
        return body


def of_exits(folder: Path, ranks: Sequence[int], exits: Sequence[Exit], oom_kills: int) -> Ending:
    """How ranks ended that the worker did not stop. `oom_kills` = out-of-memory kills during the attempt."""
    codes = {str(one.rank): one.code for one in exits}
    if any(one.code == EXIT_STOPPED for one in exits) and culprit(exits) is None:
        return Ending("interrupted", "interrupted", "Its ranks were stopped by SIGTERM, and saved first.", exits=codes)
    guilty = culprit(exits)
    if guilty is None:
        silent = [rank for rank in ranks if str(rank) not in codes]
        if silent:
            return Ending("failed", "worker_lost", f"Nobody saw how rank {silent[0]} ended.", silent[0], exits=codes)
        early = next((said for rank in ranks if (said := early_end.of_rank(folder, rank))), "")
        return Ending("succeeded", "time_limit" if early else "", early, exits=codes)
    rank, where = guilty.rank, place(folder, guilty.rank)
    fault = record_files.last_of(folder, rank, "fault") if guilty.code > 0 else None
    if fault is not None:
        return _of_fault(fault, guilty, where, codes)
    if guilty.code > 0:
        return Ending(
            "failed", "user_code", f"Rank {rank} ended with {describe_exit(guilty.code)}{where}.", rank, exits=codes
        )
    memory = guilty.code == -signal.SIGKILL and oom_kills > 0
    detail = f"Rank {rank} was killed by {describe_exit(guilty.code)}{where}."
    if memory:
        detail = f"Rank {rank} was killed by the kernel, which ran out of memory{where}."
    cause: Cause = "out_of_memory" if memory else "killed_by_signal"
    return Ending("failed", cause, detail, rank, -guilty.code, exits=codes)


def outran(left: Ending, stop: str) -> bool:
    """Whether the ranks had succeeded (`left`) before a `stop` by the worker's shutdown, which no user requested,
    reached them: then the run is not tried again."""
    return stop == "interrupted" and left.outcome == "succeeded"


def _of_fault(fault: Mapping[str, Any], guilty: Exit, where: str, codes: dict[str, int]) -> Ending:
    memory = fault.get("cause") == "out_of_memory"
    first = _first_line(str(fault.get("message") or ""))
    if fault.get("cause") == "not_finite":
        return Ending("failed", "not_finite", first, guilty.rank, exits=codes)
    said = first if memory and first else f"{fault.get('type', 'Error')}: {first}"
    if guilty.code == EXIT_PEER:
        detail = f"Rank {guilty.rank} lost the connection to another rank{where}."
    else:
        detail = f"Rank {guilty.rank} {'ran out of memory' if memory else 'failed'}{where}: {said.rstrip(': ')}"
    return Ending(
        "failed",
        "out_of_memory" if memory else "user_code",
        detail,
        guilty.rank,
        traceback=str(fault.get("traceback", "")),
        exits=codes,
        peer=guilty.code == EXIT_PEER,
    )


def _first_line(message: str) -> str:
    """The line that says what happened. An NCCL fault begins with a place in PyTorch's sources and ends with the
    cause."""
    before, _, last = message.partition(_LAST_ERROR)
    return (last.strip() or before).partition("\n")[0]


def of_files(folder: Path, ranks: Sequence[int]) -> Ending | None:
    """How ranks ended whose exits nobody saw, from the exit records that they wrote.

    None if a rank left no record, unless another one had failed by itself before.
    """
    left = {rank: frame for rank in ranks if (frame := record_files.last_of(folder, rank, "exit"))}
    exits = sorted((Exit(rank, frame["code"], frame["t"]) for rank, frame in left.items()), key=lambda one: one.at)
    guilty = culprit(exits)
    if not exits or (len(exits) < len(ranks) and (guilty is None or guilty.code == EXIT_PEER)):
        return None
    return of_exits(folder, ranks, exits, oom_kills=0)


def of_server_loss(folder: Path, ranks: Sequence[int], code: int | None) -> Ending:
    """The end of an attempt whose fork server died with the ranks that were still alive. `code` = its exit code, if
    known."""
    if (before := of_files(folder, ranks)) is not None:
        return before
    where = place(folder, ranks[0]) if ranks else ""
    if code is not None and code < 0:
        detail = f"The fork server was killed by {describe_exit(code)}, and its ranks with it{where}."
        return Ending("failed", "killed_by_signal", detail, signal=-code)
    how = f" with exit code {code}" if code is not None else ""
    return Ending("failed", "worker_lost", f"The fork server ended{how}, and its ranks with it{where}.")


CANCELLED = Ending("cancelled", "cancelled", "Cancelled.")
INTERRUPTED = Ending("interrupted", "interrupted", "The worker was stopped while this ran.")
WORKER_LOST = Ending("failed", "worker_lost", "The worker was restarted while this ran.")
OTHERS_ENDED = Ending("failed", "", "Ended, as ranks on another host had.", peer=True)
OUTDATED = Ending("failed", "worker_lost", "A later attempt of its run began here.")


def refused(reason: str) -> Ending:
    return Ending("failed", "refused", reason)


def oom_kills() -> int:
    """How many processes of our control group (else: of the host) the kernel killed because it ran out of memory."""
    if (killed := control_group.oom_kills()) is not None:
        return killed
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
