"""Which of the runs of a study represents its setting, where it was run again (`dashboard.studies.reruns`).

Only the share of the devices that other processes used decides: of the successful runs of a setting, the least
disturbed one represents it, however fast it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from dashboard.runs.models import ENDED, Run, State


def standing(every: Iterable[Run]) -> list[Run]:
    """The runs that represent their settings, which pages show.

    That is the best ended run of each setting (see `_rank`) and every run that has not ended; an ended run that did not
    succeed is left out while a run of its setting is under way.
    """
    listed = list(every)
    best = {root: min(group, key=_rank) for root, group in _settings(listed).items()}
    under_way = under_way_of(listed)
    return [
        run
        for run in listed
        if run.state not in ENDED
        or (run is best[root_of(run)] and (run.state == State.SUCCEEDED or root_of(run) not in under_way))
    ]


def stands_for(run: Run | None, every: Sequence[Run]) -> Run | None:
    """The run among `every` that represents the setting of `run`: one with a result, if there is any."""
    return min((own for own in every if run is not None and root_of(own) == root_of(run)), key=_rank, default=None)


def root_of(run: Run) -> int:
    """Id of the first run of the setting."""
    return run.repeats_id or run.pk


def under_way_of(listed: Iterable[Run]) -> set[int]:
    """The settings with a run that has not ended."""
    return {root_of(run) for run in listed if run.state not in ENDED}


def _settings(listed: Sequence[Run]) -> dict[int, list[Run]]:
    groups: dict[int, list[Run]] = {}
    for run in listed:
        groups.setdefault(root_of(run), []).append(run)
    return groups


def _rank(run: Run) -> tuple[int, float, int]:
    """Sort key, best first: runs that succeeded, then other ended ones; then the least disturbed, then the newest."""
    others = run.summary.get("cpu_others")
    order = 0 if run.state == State.SUCCEEDED else 1 if run.state in ENDED else 2
    return order, inf if others is None else others, -run.pk
