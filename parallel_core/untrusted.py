"""Reading and parsing untrusted files."""

from __future__ import annotations

import errno
from pathlib import Path

PARSE_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""Raised by parsing JSON, and by accessing fields of the wrong type: a string in place of a list, infinity in place of
an integer, lists that are nested too deeply."""


def printable(text: str) -> str:
    """Replaces characters that databases and web pages cannot hold, or that change how others are read: null
    characters, unpaired surrogates, control characters, changes of direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def text_of(path: Path) -> str:
    """The text of a file. Raises OSError also for what is none: reading a pipe would wait for its writer, and a device
    may have no end."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a folder has an error of its own
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.read_text()
