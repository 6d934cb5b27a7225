"""Large files: they get their name once they are whole, and nothing of them stays after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
