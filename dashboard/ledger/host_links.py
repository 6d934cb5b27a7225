"""The links between hosts, as runs over two of them measured them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from django.utils import timezone
from pydantic import ValidationError

from dashboard.ledger.models import LinksBetween
from dashboard.runs.models import Attempt
from parallel_core.profile import curves

log = logging.getLogger(__name__)

Pair = tuple[str, str]
"""Names of two workers, in alphabetical order."""


def pair_of(one: str, other: str) -> Pair:
    first, second = sorted((one, other))
    return first, second


def pairs_of(hosts: Iterable[str]) -> list[Pair]:
    """Every pair of different hosts among these."""
    return list(combinations(sorted(set(hosts)), 2))


def keep(attempt: Attempt, header: Mapping[str, Any]) -> None:
    """Stores what rank 0 of a run reported in its record `links`; a second report replaces the first.

    A report that is no valid table, or of a run that was not to measure links, is dropped with a warning.
    """
    if len(attempt.run.between) != 2:
        log.warning("run %s times no links, but told some", attempt.run_id)
        return
    first, second = pair_of(*attempt.run.between)
    try:
        found = curves.LinksBetween.model_validate(
            {**header, "hosts": (first, second), "recorded": timezone.now().timestamp()}
        )
    except ValidationError as error:
        log.warning("links of run %s: %s", attempt.run_id, error)
        return
    values = {"first": first, "second": second, "device": found.device, "table": found.model_dump(mode="json")}
    LinksBetween.objects.update_or_create(run_id=attempt.run_id, defaults={**values, "measured_at": timezone.now()})


def newest(device: str | None = None) -> list[LinksBetween]:
    """The newest row for each pair and kind of device, which is the one that counts; sorted by pair."""
    every = LinksBetween.objects.all() if device is None else LinksBetween.objects.filter(device=device)
    counting = {(row.first, row.second, row.device): row for row in reversed(every)}
    return [row for _, row in sorted(counting.items())]


def known(hosts: Sequence[str], device: str) -> list[curves.LinksBetween]:
    """The newest tables for the pairs of `hosts`; a pair that was never measured is missing."""
    return tables_of(newest(device), hosts, device) if pairs_of(hosts) else []


def tables_of(rows: Iterable[LinksBetween], hosts: Sequence[str], device: str) -> list[curves.LinksBetween]:
    """The same, from rows that were already read."""
    wanted = {(*pair, device) for pair in pairs_of(hosts)}
    found = (row for row in rows if (row.first, row.second, row.device) in wanted)
    return [curves.LinksBetween.model_validate(row.table) for row in found]
