"""Files of a worker's data folder that a spec names as `<kind>:<name>`, in files `<name>.<kind>`: never by a path."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.data.corpus import CorpusError
from parallel_core.spec import CORPUS_PATTERN

MOST_LISTED = 1000
"""Files of a kind in a listing, which every heartbeat of a worker carries: some 90 KB of tokens, 150 KB of images."""


def path_of(kind: str, name: str, folder: Path | None) -> Path:
    """Returns the path of corpus `<kind>:<name>` in the data folder. Raises CorpusError where it is not there."""
    path = folder / f"{name.removeprefix(f'{kind}:')}.{kind}" if folder is not None else None
    if path is None or not path.is_file():
        where = f"{path.name} is not in this worker's data folder" if path else "this run has no data folder"
        raise CorpusError(f"corpus {name} cannot be read: {where}; put it there with `pack-{kind}`.")
    return path


class Listing(NamedTuple):
    """The files of a kind in a data folder: entries of the first valid ones, by name, and how many `more` it has, valid
    or not."""

    files: list[dict[str, Any]]
    more: int


Known = MutableMapping[str, tuple[tuple[int, int], dict[str, Any] | None]]
"""Name of a file -> its size and time of change, and its entry in a listing; None where it is not valid."""
Read = Callable[[str, Path], dict[str, Any]]
"""Makes the entry of a name in a folder. Raises CorpusError where the file is not valid."""


def listing(folder: Path, known: Known, kind: str, read: Read, most: int) -> Listing:
    """Returns the files of a data folder that a spec can name, at most `most`. Those that are as they were in `known`,
    which it keeps up to date, are not read again."""
    found: list[dict[str, Any]] = []
    names = sorted(path.name.removesuffix(f".{kind}") for path in folder.glob(f"*.{kind}"))
    able = [name for name in names if CORPUS_PATTERN.fullmatch(f"{kind}:{name}")]
    for gone in set(known).difference(able):
        del known[gone]
    for at, name in enumerate(able):
        if len(found) == most:
            return Listing(found, len(able) - at)
        if (entry := _entry(name, folder / f"{name}.{kind}", known, read)) is not None:
            found.append(entry)
    return Listing(found, 0)


def _entry(name: str, path: Path, known: Known, read: Read) -> dict[str, Any] | None:
    try:
        status = path.stat()
        seen = status.st_size, status.st_mtime_ns
        if name not in known or known[name][0] != seen:
            known[name] = seen, read(name, path.parent)
    except CorpusError:
        known[name] = seen, None
    except OSError:
        return None
    return known[name][1]
