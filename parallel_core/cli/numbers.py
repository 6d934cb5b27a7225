"""Types for argparse: numbers and files, with errors that say what would be right."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a parser of integers from `least` to `most` (None: unlimited)."""
    bounds = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"a whole number {bounds} is needed; got {text[:40]!r}")
        return value

    return read


def number(text: str) -> float:
    """Parses a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"a number is needed; got {text[:40]!r}")
    return value


def above(least: float) -> Callable[[str], float]:
    """Returns a parser of finite numbers above `least`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > least):
            raise argparse.ArgumentTypeError(f"a number above {least:g} is needed; got {text[:40]!r}")
        return value

    return read


def target(text: str) -> Path:
    """Parses the path of a file to write. Its folder must exist, so that a long command does not fail at its end."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"a file to write is needed; {text} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent} to write {path.name} into")
    return path


def places(text: str) -> list[int]:
    """Parses comma-separated device numbers, which start at 0."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"numbers from 0 on with commas between are needed, as 0,1; got {text[:40]!r}")
    return [int(part) for part in parts]
