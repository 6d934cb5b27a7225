"""The pages under Planner, in the order of their tabs."""

from __future__ import annotations

from typing import NamedTuple

from django.urls import reverse


class Tab(NamedTuple):
    name: str
    title: str
    app: str = "plans"

    @property
    def address(self) -> str:
        return reverse(f"{self.app}:{self.name}")


TABS = (
    Tab("page", "Planner"),
    Tab("fleet", "This fleet", "ledger"),
    Tab("serving", "Inference"),
    Tab("judge", "Judge"),
    Tab("scenarios", "Scenarios"),
    Tab("partition", "Partition", "ledger"),
    Tab("crossover", "Crossover"),
    Tab("accuracy", "Accuracy"),
    Tab("record", "Record", "ledger"),
)
