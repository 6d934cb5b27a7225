"""Queues the next run of every search of a fit study, as soon as the last one has answered.

Only the controller calls this. What it decides depends only on rows, so repeating it after a kill changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, transaction
from pydantic import ValidationError

from dashboard.runs import services as runs
from dashboard.runs.waiting import queueing
from dashboard.studies.fitting.fit import ENDED_EARLY, KIND, RETRIES, LayerSearch, hunts, run_name
from dashboard.studies.models import Study
from parallel_core.plan.largest import trial
from parallel_core.spec import field_errors

log = logging.getLogger(__name__)


def advance() -> None:
    """Queues the next runs of all studies that still search, and ends those whose searches are over."""
    for study in Study.objects.filter(kind=KIND, settings__searching=True).select_related("owner"):
        try:
            _advance(study)
        except (OperationalError, InterfaceError):  # the database is away: they go on when it is back
            raise
        except PermissionDenied:
            owner = study.owner.get_username()
            _end(study, f"{ENDED_EARLY}: {owner}, who owns the study, may not submit runs any more.")
        except runs.Invalid as error:
            log.warning("the searches of study %s end: %s", study.pk, error)
            _end(study, f"{ENDED_EARLY}: {error}")
        except Exception as error:  # it would recur, and the studies after this one would wait for it
            log.exception("the searches of study %s end", study.pk)
            _end(study, f"{ENDED_EARLY}: {_why(error)}")


def _why(error: Exception) -> str:
    """An unexpected error in one sentence; a stored spec may break a rule that it kept when the study was made."""
    if isinstance(error, ValidationError):
        field, message = next(iter(field_errors(error).items()))
        return f"its spec breaks a rule of this version: {field}: {message}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _advance(study: Study) -> None:
    found, count = hunts(study.runs.all()), study.runs.count()
    wanted = _wanted(found)
    requests = [_request(study, hunt, layers, count + i) for i, (hunt, layers) in enumerate(wanted)]
    prepared = runs.prepare(owner=study.owner, requests=requests) if requests else None
    with transaction.atomic():
        locked = Study.locked(study.pk)
        if locked is None:
            return  # removed while its runs were predicted
        found = hunts(study.runs.all())
        if _named(_wanted(found)) != _named(wanted):
            return  # changed meanwhile: the next call decides anew
        if prepared is not None:
            queueing.follow(locked, prepared.runs, study.owner)
            runs.write(prepared)
        if all(hunt.over for hunt in found):
            _end(study)


def _wanted(found: Sequence[LayerSearch]) -> list[tuple[LayerSearch, int]]:
    """The searches that need a run now, each with its number of layers."""
    return [(hunt, layers) for hunt in found if (layers := hunt.following) is not None]


def _named(wanted: Sequence[tuple[LayerSearch, int]]) -> list[tuple[str, int]]:
    return [(hunt.label, layers) for hunt, layers in wanted]


def _request(study: Study, hunt: LayerSearch, layers: int, position: int) -> runs.RunRequest:
    return {
        "spec": trial(hunt.spec, layers, hunt.spec.trace.memory_cap).model_dump(mode="json"),
        "name": run_name(hunt.label, layers),
        "study": study,
        "position": position,
        "exclusive": True,
        "anyway": True,  # it asks whether what is predicted not to fit does
        "retries": RETRIES,
    }


def _end(study: Study, note: str = "") -> None:
    """Ends the searches of a study as it was read. Of one that was removed or changed since, the next call decides."""
    with transaction.atomic():
        locked = Study.locked(study.pk)
        if locked is not None and locked.settings == study.settings:
            locked.settings = {**study.settings, "searching": False, **({"note": note} if note else {})}
            locked.save(update_fields=("settings",))
