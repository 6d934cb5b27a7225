"""The page of plans for this fleet: all ways to split a profiled model over its devices, predicted from a worker's
profile and from the link times measured between hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.urls import reverse

from dashboard.analyst.models import Search
from dashboard.analyst.services import ask
from dashboard.charts import splits as splits_chart
from dashboard.charts.chart import Chart
from dashboard.fields import Form, Number, WholeNumber
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.ledger import host_links
from dashboard.ledger.fleet_hosts import FleetHosts
from dashboard.ledger.forms import NO_PROFILE
from dashboard.ledger.models import Profile, ProfileState
from dashboard.ledger.optimizers import USUAL, named, optimizer_field, with_optimizer
from dashboard.ledger.shown_table import shown_table
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    listed_text,
    percent_text,
    plural_text,
    ratio_text,
    seconds_text,
    significant,
    slower_text,
)
from parallel_core.analysis.stats import MOST_OF_IDEAL
from parallel_core.outline import outline_of
from parallel_core.plan.fleet import MOST_DEVICES, UNSURE
from parallel_core.plan.room import FRAMEWORK, Room
from parallel_core.searches.splits import Answer, FeasibleSplit
from parallel_core.spec import RunSpec

MIB = 1 << 20
LEAST_MIB, MOST_MIB = 1, 10_000_000
"""Limits of the memory of a device in the form, in MiB; the least is for tensors alone (`least_memory`)."""
LISTED = 12
"""How many of the fastest splits the table shows."""


class FleetForm(Form):
    """The form of the page; its values are the parameters of the address."""

    profile = forms.ModelChoiceField(
        Profile.objects.filter(state=ProfileState.DONE).select_related("worker").defer("table"),
        label="Model and worker",
        error_messages=NO_PROFILE,
    )
    devices = WholeNumber(
        label="Devices",
        min_value=1,
        max_value=MOST_DEVICES,
        required=False,
        help_text=f"empty: all that are here; every split is simulated, so at most {MOST_DEVICES}: Planner takes more",
    )
    memory = Number(
        label="Memory a device, MiB",
        min_value=LEAST_MIB,
        max_value=MOST_MIB,
        required=False,
        help_text="empty: what the devices here have",
    )
    optimizer = optimizer_field()

    def clean(self) -> dict[str, Any]:
        """Refuses a memory of which the framework leaves nothing for tensors."""
        values = super().clean() or self.cleaned_data
        profile, memory = values.get("profile"), values.get("memory")
        if profile and memory is not None and memory < (least := least_memory(profile)):
            right = f"from {count_text(least)} to {count_text(MOST_MIB)}"
            why = f"the framework takes {count_text(least - LEAST_MIB)}; got {significant(memory, 12)}"
            self.add_error("memory", f"{self['memory'].label} must be {right}, as {why}.")
        return values


def least_memory(profile: Profile) -> int:
    """The least memory, in MiB, of a device of the profiled kind that leaves the framework room for tensors."""
    return FRAMEWORK[RunSpec.stored(profile.spec).train.device] // MIB + LEAST_MIB


@dataclass(frozen=True)
class Row:
    """A row of the table. `address` = the New run page filled in with the split; `over` = its hosts if several;
    `beyond` = what of its time is extrapolated, '' if nothing is."""

    name: str
    seconds: str
    slower: str
    memory: str
    best: bool
    address: str
    over: str = ""
    beyond: str = ""


class FleetPage:
    """The contents of the page for the values of a valid form, asked by `asker`. `found` and all that uses it (the
    sentences, rows and chart) need an answered `search`. Devices have the memory asked for, else what those here have,
    or where none is here those of the profile's worker."""

    def __init__(self, values: dict[str, Any], asker: Any) -> None:
        self._asker = asker
        self.profile: Profile = values["profile"]
        fleet, spec = FleetSnapshot.now(), RunSpec.stored(self.profile.spec)
        own = FleetHosts.most(spec.train.device, fleet) or len(self.profile.worker.devices) or 1
        self.devices = min(values["devices"] or own, MOST_DEVICES)
        self._asked: float | None = values["memory"]
        self._hosts = FleetHosts(spec, self.devices, fleet, int((self._asked or 0) * MIB))
        self._optimizer: str = values["optimizer"] or USUAL
        self._room = Room.on(self.profile.worker.device_memory, spec.train.device)

    @cached_property
    def search(self) -> Search:
        """The search for all splits. Its key can name the profile and the link timings by id: neither ever changes once
        finished."""
        placements = [each.model_dump(mode="json") for each in self._hosts.placements]
        memory = self._room.usable if self._room else None
        asked = {"devices": self.devices, "memory": memory, "placements": placements}
        spec = with_optimizer(self.profile.spec, self._optimizer)
        links = {row.pk: row.table for row in self._hosts.links}
        about = {"profile": self.profile.pk, "done": str(self.profile.done_at), "links": sorted(links), **asked}
        about["optimizer"] = self._optimizer
        known = {"spec": spec, "between": list(links.values())}
        return ask("splits", about, lambda: {**known, "table": shown_table(self.profile), **asked}, asker=self._asker)

    @cached_property
    def found(self) -> Answer:
        return Answer.model_validate(self.search.answer)

    @property
    def query(self) -> str:
        """The query string of this page's address."""
        given = {
            "profile": self.profile.pk,
            "devices": self.devices,
            "memory": self._asked,
            "optimizer": self._optimizer,
        }
        return urlencode({name: value for name, value in given.items() if value})

    def sentences(self) -> list[str]:
        """Sentences on the fastest split, its speed-up over a single device, and the split of least memory."""
        able = self.found.able
        if not able:
            return [f"0 of {plural_text(self.found.tried, 'split')} can run here."]
        best, least = able[0], min(able, key=lambda split: split.memory)
        found = sum(split.found for split in able)
        others = f", and of {found} whose cuts, order or recomputation were searched for" if found else ""
        fastest = f"the fastest of {plural_text(self.found.tried, 'split')}{others}"
        first = f"{seconds_text(best.seconds)} a step: {best.name} is {fastest}."
        alone = next((split for split in able if split.devices == 1), best)
        gain = f" It is {alone.seconds / best.seconds:.2f} times as fast as {alone.name}." if alone != best else ""
        memory = f"Least memory: {least.name}, {bytes_text(least.memory)} with {named(self._optimizer)}."
        said = [first + gain, *self._beyond(best), *self._close(best), *self._doubted(alone), memory]
        return [*said, *self._normed()]

    def _beyond(self, best: FeasibleSplit) -> list[str]:
        """What of the time of `best` is extrapolated."""
        return [f"Its time is extrapolated: {listed_text(list(best.beyond))}."] if best.beyond else []

    def _close(self, best: FeasibleSplit) -> list[str]:
        """How many others may be as fast as `best`, so far as such predictions are off beside each other."""
        near = sum(split.seconds <= (1 + UNSURE) * best.seconds for split in self.found.able) - 1
        if near < 1:
            return []
        return [
            f"{plural_text(near, 'other split')} may be as fast: within {percent_text(UNSURE)} of it, and predictions "
            "by one profile were off by as much beside each other."
        ]

    def _doubted(self, alone: FeasibleSplit) -> list[str]:
        """That a split is faster than its devices can make it, as by a profile that other processes disturbed."""
        if alone.devices > 1:
            return []
        gains = [(alone.seconds / split.seconds / split.devices, split) for split in self.found.able]
        share, split = max(gains, key=lambda one: one[0])
        if share <= MOST_OF_IDEAL:
            return []
        return [
            f"{ratio_text(share * split.devices)} on {plural_text(split.devices, 'device')}, as predicted for "
            f"{split.name}, is more than devices usually give: doubt the profile, and measure it again "
            "while nothing else runs."
        ]

    def _normed(self) -> list[str]:
        """That times alone do not decide between splits with other numbers of micro-batches, where these decide what a
        batch norm sees."""
        norms = outline_of(RunSpec.stored(self.profile.spec).model).norms
        many = {split.spec.get("parallel", {}).get("micro_batches", 1) for split in self.found.able}
        if not norms or len(many) < 2:
            return []
        return [
            f"Its {norms} batch norms see one micro-batch at a time: splits with other numbers of micro-batches train "
            "something else."
        ]

    @property
    def each(self) -> str:
        """The memory of the devices as text: from those of a run on all of them to those of a run on one; '' if
        unknown."""
        rooms = sorted(self._hosts.rooms or ([self._room] if self._room else []), key=lambda room: room.whole)
        if not rooms:
            return ""
        least, most = rooms[0], rooms[-1]
        return f" of {most.text}" if least == most else f" of {bytes_text(least.whole, 3)} to {most.text}"

    @property
    def untimed(self) -> host_links.Pair | None:
        """Two hosts between which links must be timed before all splits can be predicted; None if there are none."""
        return self._hosts.untimed

    @property
    def source(self) -> str:
        """The source of the times, for the chart."""
        pairs = [f"{row.first} and {row.second}" for row in self._hosts.links]
        timed = f", and what was timed between {'; '.join(pairs)}" if pairs else ""
        return f"predicted from the profile of {self.profile.worker.name}, {self.profile.software}{timed}"

    @property
    def untried(self) -> str:
        """The ways to split tensor groups that were left out, as the profile has no times of them, as a sentence."""
        ways = [words.strip() for words in self.found.untimed]
        return f"Tensor groups {' and '.join(ways)} were not tried: the profile did not time them." if ways else ""

    def refused(self) -> tuple[tuple[int, str], ...]:
        """Why splits cannot run here: (number of splits, reason), most frequent first."""
        return self.found.refused

    def rows(self) -> list[Row]:
        """The LISTED fastest splits, and those that no other beats in both time and memory."""
        return [self._row(split) for i, split in enumerate(self.found.able) if i < LISTED or split.best]

    def _row(self, split: FeasibleSplit) -> Row:
        slower = split.seconds / self.found.able[0].seconds - 1
        return Row(
            split.name,
            seconds_text(split.seconds, zeros=True),
            slower_text(slower),
            bytes_text(split.memory, zeros=True),
            split.best,
            run_address(split.spec),
            listed_text(list(split.hosts)),
            listed_text(list(split.beyond)),
        )

    def chart(self) -> Chart | None:
        """The chart of time against memory; None if no split can run."""
        if not self.found.able:
            return None
        return splits_chart.chart(self.found.able, self.source)


def run_address(asked: Mapping[str, Any]) -> str:
    """The address of the New run page filled in with `asked`, the fields of a RunSpec that differ from its defaults."""
    return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(asked)})}"
