"""Shares of a device used by other processes above which a run's times are disturbed or not to be trusted.

Shares are of the device that others used most in the timed steps (`cpu_others` of a run's summary, 0 .. 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DISTURBED_ABOVE = 0.10
"""The run is drawn cross-hatched, settles no prediction, and the page offers to repeat it."""
UNTRUSTED_ABOVE = 0.25
"""Rules that judge times are skipped: every ratio between runs may be off by as much. Waiting ranks yield their device,
so a few per cent are noise."""


def is_quiet(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run's summary says nothing of a disturbance; a run of which it is not known for all timed steps
    (`others_missing`), or with other processes on its GPUs (`other_processes`), is not quiet, one whose devices cannot
    tell is."""
    found = summary or {}
    said = is_disturbed(found.get("cpu_others")) or found.get("others_missing") or found.get("other_processes")
    return not said


def is_disturbed(share: float | None) -> bool:
    """Whether others are known to have used more than DISTURBED_ABOVE of the device."""
    return share is not None and share > DISTURBED_ABOVE
