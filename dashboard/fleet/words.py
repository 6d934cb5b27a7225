"""What the devices of a host are called on pages, and which hosts are only for runs on one host."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis.quantities import listed_text

WORDS = {"cpu": "CPU device", "cuda": "GPU"}
"""Kind of device -> its name, in the singular."""


def apart_text(names: Sequence[str]) -> str:
    """A sentence, after a space, that these workers have no part of runs over several hosts; '' without names."""
    takes = "takes" if len(names) == 1 else "take"
    return f" {listed_text(names)} {takes} no part in runs over several hosts." if names else ""
