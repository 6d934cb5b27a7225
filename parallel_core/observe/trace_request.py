"""A request to trace a step while the run continues: a small file next to the records of the ranks.

Any process with access to the folder writes it (`ask`); every rank checks it before each step (a stat, about 2 us)
and traces the requested step. The step has to be somewhat ahead, so that all ranks of all hosts have read the request
before they reach it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from parallel_core.atomic_file import write_text

NAME = "asked.json"
NEVER = -1
How = Literal["spans", "profiler", "memory"]
"""What is recorded: spans; torch.profiler's trace; the history of the CUDA allocator."""
HOWS: tuple[How, ...] = get_args(How)


class TraceRequest(NamedTuple):
    """The step to trace, and how."""

    step: int = NEVER
    how: How = "spans"


def read_how(value: object) -> How:
    """Returns `value` as How. Raises ValueError where it is none."""
    for how in HOWS:
        if how == value:
            return how
    raise ValueError(f"how is {value!r}; it can be {', '.join(HOWS)}")


def ask(folder: Path, request: TraceRequest) -> None:
    """Writes the request atomically; it replaces an earlier one."""
    write_text(folder / NAME, json.dumps(request._asdict()))


class TraceRequests:
    """Reads the requests to the ranks whose records are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path, self._seen, self._request = folder / NAME, 0, TraceRequest()

    def at(self, step: int) -> TraceRequest | None:
        """Returns the request if it is for `step`. The file is only read again after it has changed."""
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:
            return None
        if changed != self._seen:
            self._seen, self._request = changed, self._read()
        return self._request if self._request.step == step else None

    def _read(self) -> TraceRequest:
        try:
            found = json.loads(self._path.read_text())
            return TraceRequest(int(found["step"]), read_how(found["how"]))
        except (OSError, ValueError, TypeError, KeyError):
            return TraceRequest()
