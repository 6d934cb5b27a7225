"""The folder of an attempt: the claim on its id, and everything that a restarted worker needs to end it.

    attempts/<attempt>/meta.json        message, state, processes, why it was stopped, how it ended
                       published.json   how far each file was published
                       events-<rank>.bin, log-<rank>.txt, progress-<rank>   written by the ranks
                       settled          nothing else is left: only the claim, against late duplicate deliveries
                       offered-again    it was sent once more though KEEP_S were over

A folder is made once (`claim`): whoever makes it owns the attempt, also across restarts of the worker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from parallel_core.atomic_file import write_text
from parallel_core.processes import Recorded, boot
from workers.contract import AttemptBody, StartMessage

log = logging.getLogger(__name__)

KEEP_S = 7 * 24 * 3600.0
"""Seconds for which the claim of a settled attempt, and the data of one that nobody settled, are kept."""
SETTLED, OFFERED_AGAIN = "settled", "offered-again"

Stop = Literal["", "cancelled", "ended", "interrupted", "fenced", "no_progress", "refused"]
"""Why the worker stopped the attempt; "" = it did not."""


@dataclass
class Meta:
    """The content of meta.json. `processes` = rank -> its process, for ranks that were started; `stopped_as` = how it
    ends because of `stop` (fields of ending.Ending); `boot` = in which its processes were started."""

    message: StartMessage | None = None
    ranks: list[int] = field(default_factory=list)
    processes: dict[int, Recorded] = field(default_factory=dict)
    stop: Stop = ""
    end: AttemptBody | None = None
    stopped_as: dict[str, Any] = field(default_factory=dict)
    boot: str = field(default_factory=boot)


class Folder:
    """One attempt's folder on this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempt = int(path.name)

    @classmethod
    def claim(cls, attempts: Path, attempt: int) -> Folder | None:
        """Makes a new folder; None if this attempt is already known."""
        path = attempts / str(attempt)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            return None
        return cls(path)

    def save(self, meta: Meta) -> None:
        write_json(self.path / "meta.json", asdict(meta))

    def try_save(self, meta: Meta) -> None:
        """Saves where what follows must happen all the same, also on a full disk: after a restart, the worker then
        knows only what was saved before."""
        try:
            self.save(meta)
        except OSError as error:
            log.error("attempt %d: its state cannot be stored: %s", self.attempt, error)

    def load(self) -> Meta:
        """What was saved; an empty Meta if the worker died between the claim and the first save. Without processes of
        an earlier boot: they are gone, and others may have their pids."""
        raw = read_json(self.path / "meta.json")
        processes = {int(rank): (pair[0], pair[1]) for rank, pair in raw.get("processes", {}).items()}
        if raw.get("boot", boot()) != boot():
            processes = {}
        rest = (raw.get("stop", ""), raw.get("end"), raw.get("stopped_as", {}))
        return Meta(raw.get("message"), raw.get("ranks", []), processes, *rest)

    def save_published(self, offsets: dict[str, int]) -> None:
        write_json(self.path / "published.json", offsets)

    def load_published(self) -> dict[str, int]:
        return read_json(self.path / "published.json")

    @property
    def settled(self) -> bool:
        return (self.path / SETTLED).exists()

    def offer_again(self) -> bool:
        """Whether its data are to be sent once more though they are older than KEEP_S: this host was perhaps switched
        off all that time, or its clock is wrong. Notes that, so that it is the last time."""
        mark = self.path / OFFERED_AGAIN
        if mark.exists():
            return False
        with contextlib.suppress(OSError):
            mark.touch()
        return True

    def settle(self) -> None:
        """Everything has arrived: deletes all but the claim. A full disk takes the mark only after that."""
        with contextlib.suppress(OSError):
            (self.path / SETTLED).touch()
        for entry in self.path.iterdir():
            if entry.name != SETTLED:
                with contextlib.suppress(OSError):
                    entry.unlink()
        (self.path / SETTLED).touch()


def unsettled(attempts: Path) -> list[Folder]:
    """Folders of attempts that are not settled, by id; those older than KEEP_S are sent once more, and deleted where
    that was KEEP_S ago, with a line in the log. The claims of settled ones are deleted, too."""
    found = []
    for path in attempts.iterdir() if attempts.exists() else ():
        if not path.name.isdecimal():
            continue
        folder, old = Folder(path), time.time() - path.stat().st_mtime > KEEP_S
        if old and (folder.settled or not folder.offer_again()):
            _delete(folder)
        elif not folder.settled:
            found.append(folder)
    return sorted(found, key=lambda folder: folder.attempt)


def _delete(folder: Folder) -> None:
    """Deletes the folder of an attempt that is older than KEEP_S."""
    if not folder.settled:
        message = folder.load().message
        run = f" of run {message['run']}" if message else ""
        log.warning(
            "attempt %d%s: its records are deleted, because the yard has not taken all of them within %.0f days",
            *(folder.attempt, run, KEEP_S / 86400),
        )
    shutil.rmtree(folder.path, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Writes atomically: a reader, or a restart, sees the old content or the new one."""
    write_text(path, json.dumps(value))


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; {} if there is none or it cannot be read."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
