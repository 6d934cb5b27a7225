"""The pages under Planner, in the order of their tabs."""

from __future__ import annotations

from typing import NamedTuple

from django.urls import reverse


class Tab(NamedTuple):
    name: str
    title: str

    @property
    def address(self) -> str:
        return reverse(f"plans:{self.name}")


TABS = (Tab("page", "Planner"), Tab("judge", "Judge"), Tab("scenarios", "Scenarios"), Tab("accuracy", "Accuracy"))
