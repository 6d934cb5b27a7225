"""The order in which queued runs are served: by priority, and within one people take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple

from django.db.models import Exists, OuterRef

from dashboard.fleet.selectors import hosts
from dashboard.placement.assignments import Untaken
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.run_files import Files
from dashboard.runs.waiting.asking import Beginnings, queued_runs, requests
from dashboard.runs.waiting.starts import newest_starts

MORE_STUCK = 8
"""How many times more of one's runs are looked at each time that all looked at so far were stuck."""
MOST_LOOKED_AT = 600
"""How many queued runs of a priority are looked at for whether they are stuck: each costs a third of a millisecond."""
Owned = Mapping[int, Sequence[int]]
"""Owner -> ids of their queued runs of one priority, in their order."""


class _Row(NamedTuple):
    """A queued run, as far as it decides the order; `begun`: it was interrupted."""

    pk: int
    study: int | None
    queued_at: datetime
    position: int
    owner: int
    begun: bool
    priority: int


def queue_order() -> list[int]:
    """Ids of the queued runs, those of a higher priority before all others. Of one priority people take turns, so that
    one's hundred runs do not keep another's single one waiting: first comes whose last start is longest ago, of several
    the one whose run is the oldest.

    Of one's own runs the oldest comes first. Those of a study come together, by position, at the place of the oldest.
    Those that no worker could take now, even if it were idle, use up no turn of their owner: the next one has it. Nor
    do starts of younger runs, which went where the first one cannot: its owner's last start is one before it.

    Before the others of their priority, the oldest first, come those that were interrupted: their turn was when they
    were started.
    """
    queued = Run.objects.order_by().filter(state=State.QUEUED, cancel_requested_at=None)
    begun = Exists(Attempt.objects.filter(run=OuterRef("pk")))
    rows = [_Row(*row) for row in queued.annotate(begun=begun).values_list(*_Row._fields)]
    since: dict[int, datetime] = {}
    for row in rows:
        since[row.study or -row.pk] = min(row.queued_at, since.get(row.study or -row.pk, row.queued_at))
    rows.sort(key=lambda row: (since[row.study or -row.pk], row.study or 0, row.position, row.pk))
    levels = sorted({row.priority for row in rows}, reverse=True)
    return [pk for level in levels for pk in _in_turns([row for row in rows if row.priority == level])]


def _in_turns(rows: Sequence[_Row]) -> list[int]:
    """Ids of runs of one priority in the order of `queue_order`; of several people whose last start is equally long
    ago, first comes whose run is first of `rows`."""
    of_owner: dict[int, list[int]] = {}
    for row in rows:
        if not row.begun:
            of_owner.setdefault(row.owner, []).append(row.pk)
    if len(of_owner) > 1:
        queued_at = {row.pk: row.queued_at for row in rows}
        stuck = _stuck(of_owner)
        firsts = {owner: runs[min(stuck[owner], len(runs) - 1)] for owner, runs in of_owner.items()}
        last = _last_starts({owner: queued_at[pk] for owner, pk in firsts.items()})
        each = [_turns(of_owner[owner], stuck[owner]) for owner in sorted(of_owner, key=lambda owner: last[owner])]
    else:
        each = [[runs] for runs in of_owner.values()]  # one person's runs need no turns
    first = [row.pk for row in rows if row.begun]
    return first + [pk for turn in zip_longest(*each, fillvalue=()) for together in turn for pk in together]


def _turns(runs: Sequence[int], stuck: int) -> list[list[int]]:
    """The runs by turn: in each one of the first `stuck` of them, before one of the others."""
    return [[pk for pk in turn if pk is not None] for turn in zip_longest(runs[:stuck], runs[stuck:])]


def _stuck(of_owner: Owned) -> dict[int, int]:
    """Owner -> how many of their first runs no worker could take now, even if it were idle; not looked for where there
    is only one run, which keeps no other waiting."""
    counts, untaken, part, left = dict.fromkeys(of_owner, 0), Untaken(hosts()), 1, MOST_LOOKED_AT
    looking, files = {owner for owner, runs in of_owner.items() if len(runs) > 1}, Files.now()
    while looking and left > 0:
        ahead = {owner: of_owner[owner][counts[owner] : counts[owner] + part] for owner in looking}
        queued = queued_runs([pk for runs in ahead.values() for pk in runs])
        asked = requests(queued, Beginnings(queued, files))
        closed = {request.run for request in asked if untaken.now(request)}
        for owner, runs in ahead.items():
            free = next((at for at, pk in enumerate(runs) if pk not in closed), None)
            counts[owner] += len(runs) if free is None else free
            if free is not None or not runs:
                looking.discard(owner)
        left -= len(queued)
        part = max(1, min(part * MORE_STUCK, left // max(1, len(looking))))
    return counts


def _last_starts(firsts: Mapping[int, datetime]) -> dict[int, int]:
    """Owner -> the larger, the later a run of theirs was last started that is not younger than their first queued one
    (`firsts`: when that was queued); those without such a start among the newest ones before all."""
    newest = newest_starts()
    last = dict.fromkeys(firsts, -len(newest))
    for place, (owner, queued_at) in reversed(list(enumerate(newest))):
        if owner in firsts and queued_at <= firsts[owner]:
            last[owner] = -place
    return last
