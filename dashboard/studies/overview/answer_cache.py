"""Caches texts about runs that have ended, until anything that they were made from changes.

A cache key is made of the rows that were read: runs with their summaries (stored again when late data arrives) and, for
what reads measurements as well, how many bytes of every file of every attempt have arrived (the cursors).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from django.core.cache import cache, caches
from django.db.models import Count, Max, Q, Sum, TextField
from django.db.models.functions import Cast

from dashboard.fleet.models import Worker
from dashboard.ledger.models import Profile, ProfileState
from dashboard.runs.models import ENDED, Checkpoint, Corpus, Cursor, DeadLetter, Run, State
from dashboard.runs.places import Place, places_of
from dashboard.runs.standing import standing, stands_for
from dashboard.studies import postmortem, scaling
from dashboard.studies.models import Study
from dashboard.studies.overview import by_loss, streams
from dashboard.studies.own_pages import OWN_PAGES
from dashboard.studies.selectors import overview

KEPT_S = 24 * 3600
FIELDS = (
    "study_id",
    "pk",
    "state",
    "name",
    "label",
    "position",
    "repeats_id",
    "queued_at",
    "cause",
    "detail",
    "injected",
)
"""Fields of a run's row that are part of a key, in addition to its summary; its spec never changes."""
_TOLD = Q(state=State.SUCCEEDED) | Q(study__kind__in=tuple(OWN_PAGES))
"""The runs that the verdict of a study is made from; of the others it says only whether any has not ended."""
SAME_DEVICE = ("kind", "index", "name", "memory_total")
"""Fields of a device in a heartbeat that are part of a key; the others change every second."""


def verdicts(studies: Sequence[Study]) -> dict[int, str]:
    """One sentence for each study, from the rows of its runs; cached for studies that have not changed."""
    rows: dict[int, list[Any]] = {study.pk: [] for study in studies}
    for row in _rows(_TOLD | ~Q(state__in=ENDED), study__in=studies):
        rows[row[0]].append(row)
    under_way = {pk for pk, its in rows.items() if any(_is_open(row) for row in its)}
    keys = {study.pk: _verdict_key(study, study.pk in under_way, rows[study.pk]) for study in studies}
    found = cache.get_many(keys.values())
    new = _verdicts([study for study in studies if keys[study.pk] not in found], under_way)
    cache.set_many({keys[pk]: said for pk, said in new.items()}, KEPT_S)
    return {study.pk: new.get(study.pk) or found[keys[study.pk]] for study in studies}


def _is_open(row: tuple[Any, ...]) -> bool:
    return row[FIELDS.index("state")] not in ENDED


def _verdict_key(study: Study, under_way: bool, rows: Sequence[tuple[Any, ...]]) -> str:
    told = rows if study.kind in OWN_PAGES else [row for row in rows if not _is_open(row)]
    return _key("verdict", study.kind, study.baseline_id, under_way, *told)


def _verdicts(studies: Sequence[Study], under_way: Container[int]) -> dict[int, str]:
    """`under_way` = ids of the studies with a run that has not ended."""
    if not studies:
        return {}
    runs: dict[int, list[Run]] = {study.pk: [] for study in studies}
    by_id = {study.pk: study for study in studies}
    for run in Run.objects.filter(_TOLD, study__in=studies):
        run.study = by_id[run.study_id or 0]  # else it is read again, for each study
        runs[run.study.pk].append(run)
    places = places_of(chain.from_iterable(runs.values()))
    return {study.pk: _verdict(study, runs[study.pk], places, study.pk in under_way) for study in studies}


def _verdict(study: Study, runs: list[Run], places: Mapping[int, Place], under_way: bool) -> str:
    if own := OWN_PAGES.get(study.kind):
        return " ".join(own.verdict(runs, places))
    stand = standing(runs)
    base, ranked = stands_for(study.baseline, stand), by_loss.ranks(study.kind)
    view = replace(overview(stand, base, details=False, places=places, ranked=ranked), others_open=under_way)
    said = scaling.verdict(study, view) if runs else ["0 runs have finished."]
    found = None if under_way else postmortem.of_study(study, view)
    lead = found.headline if found else ""  # on its page, too, the cause comes before times
    return " ".join([*filter(None, [lead]), *streams.in_list(study.kind, said, view)[: view.headlines]])


def of_ended(study: Study, what: Sequence[object], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what `make` returns: called anew while a run of the study has not ended, then cached until data changes.

    `what` identifies it, with everything that it depends on apart from the study.
    """
    rows = list(_rows(study=study))
    if any(_is_open(row) for row in rows):
        return make()
    key = _key(*what, study.pk, study.name, study.kind, study.baseline_id, study.settings, *rows, *_arrived(study))
    found: dict[str, Any] | None = caches["large"].get(key)
    if found is None:
        found = make()
        caches["large"].set(key, found, KEPT_S)
    return found


def _rows(*which: Q, **more: Any) -> Iterable[tuple[Any, ...]]:
    """FIELDS and the unparsed text of the summary for each of the runs."""
    runs = Run.objects.filter(*which, **more).order_by("study_id", "position", "pk")
    return runs.annotate(told=Cast("summary", TextField())).values_list(*FIELDS, "told")


def _arrived(study: Study) -> list[Any]:
    """What a report depends on apart from the rows of its runs: measurements (also those that were set aside and stored
    later), hosts, profiles, the checkpoints that are left, and the names of texts."""
    files = Cursor.objects.filter(attempt__run__study=study).aggregate(Count("pk"), Max("attempt"), Sum("offset"))
    aside = DeadLetter.objects.filter(attempt__run__study=study).count()
    profiles = Profile.objects.filter(state=ProfileState.DONE).aggregate(Count("pk"), Max("pk"))
    workers = [
        (worker.name, worker.version, [tuple(map(device.get, SAME_DEVICE)) for device in worker.devices])
        for worker in Worker.objects.all()
    ]
    left = Checkpoint.objects.filter(run__study=study).aggregate(Count("pk"), Sum("step"))
    texts = Corpus.objects.aggregate(Count("pk"), Max("pk"))
    return [files, aside, profiles, workers, left, texts]


def _key(*parts: object) -> str:
    return f"kept:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
