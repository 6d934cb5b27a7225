"""An exclusive lock of one process, which ends with the process: no time-out to wait for after a kill -9."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

UNSUPPORTED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
"""What flock fails with on a mount that has none (flock(2); EOPNOTSUPP, ENOSYS: network and FUSE file systems)."""


class FileLock:
    """An flock on `path`: the kernel releases it when the process ends, however it ends. The file stays, and its text
    is free for a note of the holder.

    Not `filelock`, whose lock may be a mere file where flock is missing, which outlives a killed holder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def hold(self) -> bool:
        """Takes the lock if it is free; returns whether this object has it. Does not wait, and is cheap to repeat.
        Raises OSError, of `UNSUPPORTED` where the folder lies on a mount without flock."""
        if self._file is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Releases the lock if this object has it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def write_note(self, note: str) -> None:
        """Replaces the text of the file; only the holder may."""
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, note.encode(), 0)

    def read_note(self) -> str:
        """The text that the holder, or an earlier one, wrote; '' if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self._path.read_text()
        return ""
