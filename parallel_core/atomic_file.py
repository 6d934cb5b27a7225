"""Files that get their name once they are whole: a reader, or a restart, sees the old content or the new one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk, and of one of which a user may have no more."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which is renamed to `path` at the end, or removed where anything is raised."""
    aside = path.with_name(f"{path.name}.part")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Writes a whole file, in UTF-8. `sync`: its content is on the disk (fsync) before it gets its name; the folder's
    entry is not. Raises OSError, and leaves an older file as it is."""
    with whole_file(path) as file:
        file.write(text.encode())
        if sync:
            file.flush()
            os.fsync(file.fileno())
