"""Numbers on the command line, for argparse's `type`: a wrong one is told what would be right."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """A whole number from `least` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"a whole number from {least} on is needed; got {text[:40]!r}")
        return value

    return read


def above(least: float) -> Callable[[str], float]:
    """A finite number above `least`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > least):
            raise argparse.ArgumentTypeError(f"a number above {least:g} is needed; got {text[:40]!r}")
        return value

    return read


def places(text: str) -> list[int]:
    """Numbers of devices, from 0 on, with commas between."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"numbers from 0 on with commas between are needed, as 0,1; got {text[:40]!r}")
    return [int(part) for part in parts]
