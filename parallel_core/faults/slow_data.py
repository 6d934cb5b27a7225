"""Slow reading: every rank that reads samples takes `ms` milliseconds longer for its part of each batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from parallel_core.faults.base import Fault, Milliseconds


class SlowData(Fault):
    kind: Literal["slow_data"] = "slow_data"
    ms: Milliseconds = 50.0
    title: ClassVar[str] = "Slow data"
    blurb: ClassVar[str] = "every batch comes late"
    hints: ClassVar[dict[str, str]] = {"ms": "added to each batch"}

    @property
    def sentence(self) -> str:
        return f"every batch comes {self.ms:g} ms late"

    def read_delay(self, rank: int) -> float:
        return self.ms / 1e3
