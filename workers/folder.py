"""The folder of an attempt: the claim on its number, and everything a restarted worker needs to bring it to an end.

    attempts/<attempt>/meta.json        message, state, processes, why it was stopped, how it ended
                       published.json   how far each file was published
                       events-<rank>.bin, log-<rank>.txt, progress-<rank>   written by the ranks
                       settled          nothing else is left: the claim alone, against late second deliveries

A folder is made once (`claim`): whoever makes it owns the attempt. That holds across restarts of the worker.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from parallel_core.processes import Recorded
from workers.contract import AttemptBody, StartMessage

KEEP_S = 7 * 24 * 3600.0
"""How long the claim of a settled attempt, and the data of one that nobody settled, are kept."""
SETTLED = "settled"

Stop = Literal["", "cancelled", "ended", "interrupted", "fenced", "no_progress", "refused"]
"""Why we stopped it ourselves; "" = we did not."""


@dataclass
class Meta:
    """What meta.json holds. `processes` = rank -> its process, as far as it was started; `stopped_as` = how it ends
    because of `stop` (fields of ending.Ending)."""

    message: StartMessage | None = None
    ranks: list[int] = field(default_factory=list)
    processes: dict[int, Recorded] = field(default_factory=dict)
    stop: Stop = ""
    end: AttemptBody | None = None
    stopped_as: dict[str, Any] = field(default_factory=dict)


class Folder:
    """One attempt's folder on this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempt = int(path.name)

    @classmethod
    def claim(cls, attempts: Path, attempt: int) -> Folder | None:
        """A new folder, or None where this attempt is known already."""
        path = attempts / str(attempt)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            return None
        return cls(path)

    def save(self, meta: Meta) -> None:
        write_json(self.path / "meta.json", asdict(meta))

    def load(self) -> Meta:
        """What was saved; an empty Meta where the worker died between the claim and the first save."""
        raw = read_json(self.path / "meta.json")
        processes = {int(rank): (pair[0], pair[1]) for rank, pair in raw.get("processes", {}).items()}
        told = (raw.get("stop", ""), raw.get("end"), raw.get("stopped_as", {}))
        return Meta(raw.get("message"), raw.get("ranks", []), processes, *told)

    def save_published(self, offsets: dict[str, int]) -> None:
        write_json(self.path / "published.json", offsets)

    def load_published(self) -> dict[str, int]:
        return read_json(self.path / "published.json")

    @property
    def settled(self) -> bool:
        return (self.path / SETTLED).exists()

    def settle(self) -> None:
        """Everything arrived: only the claim stays."""
        (self.path / SETTLED).touch()
        for entry in self.path.iterdir():
            if entry.name != SETTLED:
                with contextlib.suppress(OSError):
                    entry.unlink()


def unsettled(attempts: Path) -> list[Folder]:
    """Folders whose attempt still has something to say, by number; what is older than KEEP_S is removed."""
    found = []
    for path in attempts.iterdir() if attempts.exists() else ():
        if not path.name.isdecimal():
            continue
        if time.time() - path.stat().st_mtime > KEEP_S:
            shutil.rmtree(path, ignore_errors=True)
        elif not (folder := Folder(path)).settled:
            found.append(folder)
    return sorted(found, key=lambda folder: folder.attempt)


def write_json(path: Path, value: Any) -> None:
    """Atomic: a reader, or a restart, sees the old content or the new one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; {} where there is none or it cannot be read."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
