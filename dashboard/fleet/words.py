"""What the devices of a host are called on pages, and which hosts cannot have any run, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from parallel_core.analysis.quantities import listed_text

WORDS = {"cpu": "CPU device", "cuda": "GPU"}
"""Kind of device -> its name, in the singular."""
DOES = {"generate": "generate text", "links": "time messages between hosts"}
"""Task (workers.contract.TASKS) -> what a worker does that has it."""
_NUMBERED = re.compile(r", core \d+( \(shares core \d+\))?$|, share \d+( of \d+)$")
"""The part of a device's name that tells it from those of the same model."""


def apart_text(names: Sequence[str]) -> str:
    """A sentence, after a space, that these workers have no part of runs over several hosts; '' without names."""
    takes = "takes" if len(names) == 1 else "take"
    return f" {listed_text(names)} {takes} no part in runs over several hosts." if names else ""


def unable_text(workers: Iterable[tuple[str, str]], task: str, fields: Sequence[str] = ()) -> str:
    """A clause that these workers, (name, version) each, do not announce the task and the fields of a spec: they are
    too old."""
    runs = [f"{name} runs version {version or 'unknown'}" for name, version in workers]
    announce = "does not announce that it" if len(runs) == 1 else "do not announce that they"
    know = "knows" if len(runs) == 1 else "know"
    what = [f"can {DOES[task]}"] if task else []
    what += [f"{know} {listed_text(list(fields))}"] if fields else []
    return f"{listed_text(runs)}, which {announce} {listed_text(what)}"


def model_name(device: str, core: str = "") -> str:
    """A device's name without which share of a GPU it is, and with `core` for the number of its core
    (`workers.devices`)."""

    def instead(found: re.Match[str]) -> str:
        if found[2]:
            return f", a share{found[2]}"
        return core if found[0].startswith(", core") else ""

    return _NUMBERED.sub(instead, device)
