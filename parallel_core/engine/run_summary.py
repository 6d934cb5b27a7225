"""What a rank's last record says of all its steps: checks of replicas, lateness of gradients, the reference work."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from parallel_core.engine.fingerprint import Print
from parallel_core.engine.reference_probe import ProbeReading
from parallel_core.engine.stream import Staleness, TotalStaleness
from parallel_core.profile.repeats import expected


class RunSummary:
    """Collects it step by step; a run may have millions of them, so a check and a reading leave their seconds alone."""

    def __init__(self) -> None:
        self._stale = TotalStaleness()
        self._print: Print | None = None
        # 8 bytes each, as the summary is of all of them
        self._checks, self._references, self._company = array("d"), array("d"), array("d")

    def add_staleness(self, staleness: Staleness) -> None:
        self._stale.add(staleness)

    def add_reference(self, reading: ProbeReading) -> None:
        self._references.append(reading.together)
        if reading.alone:
            self._company.append(reading.together / reading.alone)

    def add_check(self, found: Print) -> None:
        """Of a check in which all replicas were equal."""
        self._print = found
        self._checks.append(found.seconds)

    def entries(self) -> dict[str, Any]:
        """The entries `fingerprint`, `staleness` and `reference` of the record; each only if there is anything."""
        return {**self._equal(), **self._staleness(), **self._reference()}

    def _equal(self) -> dict[str, Any]:
        """The summary's `fingerprint`; {} if nothing was compared."""
        found = self._print
        if found is None:
            return {}
        numbers = {"parameters": hex64(found.parameters), "samples": hex64(found.samples)}
        seconds = float(np.median(self._checks))
        return {"fingerprint": {"step": found.step, "checks": len(self._checks), "seconds": seconds, **numbers}}

    def _reference(self) -> dict[str, Any]:
        """The summary's `reference`; {} if the reference work was not done."""
        if not self._references:
            return {}
        company = {"company": float(np.median(self._company)), "alone": len(self._company)} if self._company else {}
        return {"reference": {"seconds": expected(self._references), "times": len(self._references), **company}}

    def _staleness(self) -> dict[str, Any]:
        """The summary's `staleness`, mean and maximum over all steps; {} if the pipeline flushes."""
        if not self._stale.steps:
            return {}
        found = self._stale.whole()
        return {"staleness": {"mean": found.mean, "max": found.most}}


def hex64(number: int) -> str:
    """A number of 64 bits as 16 hexadecimal digits."""
    return f"{number:016x}"
