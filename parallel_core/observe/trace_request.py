"""A step that somebody asked to see while the run goes on: one small file beside the records of the ranks.

Whoever has the folder writes it (`ask`); every rank looks before each step (a stat, about 2 us) and traces the step
that it names. The step lies a little ahead, so that all ranks of all hosts have read it before they get there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple, get_args

NAME = "asked.json"
NEVER = -1
How = Literal["spans", "profiler", "memory"]
"""The step's own spans; torch.profiler's trace of it; the history of the CUDA allocator over it."""
HOWS: tuple[How, ...] = get_args(How)


class TraceRequest(NamedTuple):
    step: int = NEVER
    how: How = "spans"


def read_how(value: object) -> How:
    """Raises ValueError where it is none of them."""
    for how in HOWS:
        if how == value:
            return how
    raise ValueError(f"how is {value!r}; it can be {', '.join(HOWS)}")


def ask(folder: Path, wish: TraceRequest) -> None:
    """Atomic; a later wish takes the place of an earlier one."""
    part = folder / f"{NAME}.part"
    part.write_text(json.dumps(wish._asdict()))
    part.replace(folder / NAME)


class TraceRequests:
    """What is asked of the ranks whose records are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path, self._seen, self._wish = folder / NAME, 0, TraceRequest()

    def at(self, step: int) -> TraceRequest | None:
        """The wish where it is for `step`. Reads the file again only where it is another one."""
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:
            return None
        if changed != self._seen:
            self._seen, self._wish = changed, self._read()
        return self._wish if self._wish.step == step else None

    def _read(self) -> TraceRequest:
        try:
            found = json.loads(self._path.read_text())
            return TraceRequest(int(found["step"]), read_how(found["how"]))
        except (OSError, ValueError, TypeError, KeyError):
            return TraceRequest()
