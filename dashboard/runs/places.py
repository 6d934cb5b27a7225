"""On which hosts and devices runs took their times: a ratio between different ones compares the machines, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboard.runs.attempts_read import attempt_of
from dashboard.runs.models import Attempt, RankInfo, Run
from dashboard.runs.waiting.spreading import core_by_rank, hosts_of, workers_of
from parallel_core.analysis.diagnosis.run_case import together
from parallel_core.analysis.quantities import listed_text


@dataclass(frozen=True)
class Place:
    """The workers of a run's newest attempt and the names that its ranks gave their devices, both sorted, each once; ()
    where that is not known."""

    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return bool(self.hosts and self.devices)

    def other_devices(self, other: Place) -> bool:
        """Whether both are known to have devices of different names."""
        return bool(self.devices and other.devices and self.devices != other.devices)

    def elsewhere(self, other: Place) -> bool:
        """Whether the machines are known to differ: devices of different names, or hosts of which neither run used
        those of the other. A run over the other's host and more, all with the same devices, is not elsewhere."""
        mine, theirs = set(self.hosts), set(other.hosts)
        apart = bool(mine and theirs) and not (mine <= theirs or theirs <= mine)
        return apart or self.other_devices(other)

    def against(self, other: Place) -> str:
        """This place in words that tell it from `other`: `yard-a`, or `NVIDIA H100 of yard-a` of other devices."""
        hosts = listed_text(self.hosts)
        return f"{listed_text(self.devices)} of {hosts}" if self.other_devices(other) and hosts else hosts


NOWHERE = Place()


def places_of(runs: Iterable[Run]) -> dict[int, Place]:
    """The place of each run that has an attempt, by id; two queries."""
    attempts = Attempt.objects.filter(run__in=[run.pk for run in runs]).order_by("number").only("run", "devices")
    newest = {attempt.run_id: attempt for attempt in attempts}
    told = RankInfo.objects.filter(attempt__in=[attempt.pk for attempt in newest.values()]).order_by()
    names: dict[int, set[str]] = {}
    for attempt, name in told.values_list("attempt", "hello__device").distinct():
        names.setdefault(attempt, set()).update([name] if name else [])
    return {
        run: Place(tuple(sorted(set(workers_of(attempt)))), tuple(sorted(names.get(attempt.pk, ()))))
        for run, attempt in newest.items()
    }


def together_of(run: Run) -> int:
    """The most ranks of the run that share a device."""
    return together(numbers_of(run), hosts_of(run.attempts.order_by("-number").first()))


def on_one_host(run: Run) -> bool:
    """Whether all ranks of the run are known to be on one host."""
    attempt = attempt_of(run)
    return attempt is not None and not hosts_of(attempt)


def numbers_of(run: Run) -> dict[int, int | None]:
    """The number of each rank's device on its host. Of ranks that told none, as in earlier versions, it is that of a
    core of their worker, which the names of its devices tell today; None where that is not known either."""
    attempt = attempt_of(run)
    told = dict(RankInfo.objects.filter(attempt=attempt).values_list("rank", "hello__number"))
    on_cpu = run.spec.get("train", {}).get("device") == "cpu"
    cores = core_by_rank(attempt) if on_cpu and None in told.values() else {}
    return {rank: cores.get(rank) if number is None else number for rank, number in told.items()}


@dataclass(frozen=True)
class Machines:
    """The machines of runs that are held against a `baseline`; each run as (label, place)."""

    baseline: tuple[str, Place]
    others: Sequence[tuple[str, Place]]

    @property
    def moved(self) -> list[tuple[str, Place]]:
        """The runs on other machines than the baseline."""
        return [one for one in self.others if one[1].elsewhere(self.baseline[1])]

    @property
    def mostly(self) -> bool:
        """Whether more than half of the runs were on other machines."""
        return 2 * len(self.moved) > len(self.others)

    @property
    def warning(self) -> str:
        """A warning if some runs were on other machines than the baseline; '' if none."""
        (label, base), moved = self.baseline, self.moved
        if not moved:
            return ""
        if len(moved) == 1:
            name, place = moved[0]
            on = f"{name} ran on {place.against(base)}, {label} on {base.against(place)}"
            return f"{on}: their ratio compares the machines, too."
        runs = f"{len(moved)} of {len(self.others)} runs were on other machines than the baseline, {label}"
        return f"{runs}: ratios over it compare the machines, too."
