"""What a run that left at its time limit (`train.max_minutes`) says of its end, from its ranks' records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel_core.analysis.quantities import count_text, steps_text
from parallel_core.observe import record_files

KIND = "early"
"""Kind of the record by which a rank says that it ended before its last step, as its time was up."""


def sentence(record: Mapping[str, Any]) -> str:
    """`Ended after 120 of 1 000 steps: its limit of 30 minutes (train.max_minutes).`; and if it saved none."""
    minutes = record["minutes"]
    unit = "minute" if minutes == 1 else "minutes"
    saved = "" if record["saved"] else " Nothing was saved there."
    done = f"Ended after {count_text(record['done'])} of {steps_text(record['steps'])}"
    return f"{done}: its limit of {minutes:g} {unit} (train.max_minutes).{saved}"


def of_rank(folder: Path, rank: int) -> str:
    """The sentence about the end of a rank that ended well; '' if it trained every step."""
    record = record_files.last_of(folder, rank, KIND)
    return sentence(record) if record else ""
