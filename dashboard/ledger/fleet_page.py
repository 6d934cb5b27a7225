"""The page of plans for this fleet: every way to split a profiled model over a worker's devices, by its own costs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.urls import reverse

from dashboard.charts import splits as splits_chart
from dashboard.charts.chart import Chart
from dashboard.ledger.models import Profile, ProfileState
from parallel_core.analysis.quantities import bytes_text, percent_text, seconds_text
from parallel_core.plan.fleet import MOST_DEVICES, Split, Splits, splits
from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec

MIB = 1 << 20
LISTED = 12
"""Fastest splits in the table."""


class FleetForm(forms.Form):
    """Everything stands in the address."""

    profile = forms.ModelChoiceField(
        Profile.objects.filter(state=ProfileState.DONE).select_related("worker"), label="Model and worker"
    )
    devices = forms.IntegerField(label="Devices", min_value=1, max_value=MOST_DEVICES, required=False)
    memory = forms.FloatField(label="Memory a device, MiB", min_value=1, max_value=1e7, required=False)


@dataclass(frozen=True)
class Row:
    """A split as the table shows it; `address` is New run filled in."""

    name: str
    seconds: str
    slower: str
    memory: str
    best: bool
    address: str


class FleetPage:
    """What a valid form asks for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.profile: Profile = values["profile"]
        own = len(self.profile.worker.devices) or 1
        self.devices = min(values["devices"] or own, MOST_DEVICES)
        self.memory: float | None = values["memory"]
        self.found = _splits(self.profile.pk, self.profile.done_at, self.devices, self.memory)

    def sentences(self) -> list[str]:
        """The fastest, the one of least memory, and what a single device would take."""
        able = self.found.able
        if not able:
            return [f"0 of {len(self.found.refused)} splits can run here."]
        best, least = able[0], min(able, key=lambda split: split.memory)
        first = f"{seconds_text(best.seconds or 0)} a step: {best.name} is the fastest of {len(able)} splits."
        alone = next((split for split in able if split.spec.parallel.world == 1), None)
        gain = (
            f" It is {(alone.seconds or 0) / (best.seconds or 1):.2f} times as fast as {alone.name}." if alone else ""
        )
        return [first + gain, f"Least memory: {least.name}, {bytes_text(least.memory)}."]

    def refused(self) -> list[tuple[int, str]]:
        """(how many, why), most first."""
        counts = Counter(split.why_not for split in self.found.refused)
        return [(count, reason) for reason, count in counts.most_common()]

    def rows(self) -> list[Row]:
        """The fastest, and what nothing beats in both time and memory."""
        front = self.found.pareto()
        return [
            self._row(split, split in front) for i, split in enumerate(self.found.able) if i < LISTED or split in front
        ]

    def _row(self, split: Split, best: bool) -> Row:
        slower = (split.seconds or 0) / (self.found.able[0].seconds or 1) - 1
        return Row(
            split.name,
            seconds_text(split.seconds or 0),
            f"+{percent_text(slower)}" if slower > 0.0005 else "",
            bytes_text(split.memory),
            best,
            run_address(split.spec),
        )

    def chart(self) -> Chart | None:
        """Time against memory; None where nothing fits."""
        if not self.found.able:
            return None
        source = f"predicted from the profile of {self.profile.worker.name}, {self.profile.software}"
        return splits_chart.chart(self.found.able, self.found.pareto(), source)


def run_address(spec: RunSpec) -> str:
    """New run, filled in with `spec`."""
    asked = spec.model_dump(mode="json", exclude_defaults=True)
    return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(asked)})}"


@lru_cache(maxsize=32)
def _splits(pk: int, done_at: datetime | None, devices: int, memory: float | None) -> Splits:
    """Of a finished profile, which never changes again."""
    profile = Profile.objects.get(pk=pk)
    spec, table = RunSpec.model_validate(profile.spec), CostTable.model_validate(profile.table)
    return splits(spec, table, devices, memory * MIB if memory else None)
