"""What a command prints while somebody may stop reading: a closed pipe (`| head`), or a terminal that is gone."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

_GONE = (errno.EPIPE, errno.EIO)
"""What writing to a closed pipe, and to a terminal that has hung up, is reported as."""


def say(text: str, *, error: bool = False) -> bool:
    """Prints a line at once, on stdout or as an error on stderr; returns False once its reader is gone. From then on,
    whatever is printed on that stream is dropped, as it is where the stream was closed from the beginning.

    Raises OSError where the line cannot be written for another reason, such as a full disk.
    """
    to = sys.stderr if error else sys.stdout
    if to is None:
        return True
    try:
        print(text, file=to, flush=True)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        _drop(to)
        return False
    return True


def drop_unread() -> None:
    """Makes the flush at the end of the process succeed on streams that nobody reads."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            _drop(stream)


def _drop(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
