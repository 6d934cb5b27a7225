"""Queued runs as requests for the placement: what each asks for, and which workers have what it reads."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Max

from dashboard.fleet.selectors import kind_of
from dashboard.placement.hosts import NOBODY, Request
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.runs.run_files import Files, Holder, why_alone
from parallel_core.known_fields import needs_later
from workers.contract import task_of


def queued_runs(ids: Sequence[int]) -> list[Run]:
    """Those of these runs that are still queued, in the order of `ids`."""
    found = Run.objects.order_by().filter(state=State.QUEUED, cancel_requested_at=None, pk__in=ids)
    runs = {run.pk: run for run in found.defer("summary").select_related("owner", "study")}
    return [runs[pk] for pk in ids if pk in runs]


class Beginnings:
    """Who wrote the checkpoints that runs need to start, and who has their files: read at once for all of them."""

    def __init__(self, runs: Sequence[Run], files: Files | None = None) -> None:
        self.files = files or Files.now()
        rows = Checkpoint.objects.filter(run__in=[run.pk for run in runs]).order_by("step")
        held = rows.values_list("run", "worker", "attempt__devices")
        self.own: dict[int, Holder] = {run: Holder.of(*by) for run, *by in held}
        """run -> who wrote its own newest checkpoint, in an earlier attempt."""
        self.files.look_up([begins for run in runs if run.pk not in self.own and (begins := run.resumes_from)])

    def of(self, run: Run) -> Holder | None:
        """Who wrote the checkpoint that the run needs to start; None if it needs none, or that no longer exists."""
        if run.resume_run_id is None:
            return None
        own, begins = self.own.get(run.pk), run.resumes_from
        return own if own is not None or begins is None else self.files.holder(begins)

    def missing(self, run: Run) -> str:
        """Which of the files that the run reads no worker has, as a noun; '' if one may have all."""
        resumes = run.resume_run_id is not None or run.pk in self.own
        return self.files.missing(run.spec, resumes=resumes, trains=not run.task)

    def why_alone(self, run: Run) -> str:
        """Why all ranks of the run must be on one host, as a clause; '' if they need not be."""
        return why_alone(run, self.files, self.of(run))


def requests(runs: Sequence[Run], beginnings: Beginnings | None = None) -> list[Request]:
    """The runs as requests for `placement.plan`; `beginnings`: those of these runs, if they are known."""
    known, widest = beginnings or Beginnings(runs), _widest(runs)
    return [
        Request(
            run=run.pk,
            devices=run.devices,
            kind=kind_of(run),
            exclusive=run.exclusive,
            study=_series_of(run),
            prefer=known.own[run.pk].worker if run.pk in known.own else prefer,
            widest=widest.get((_series_of(run), kind_of(run)), 0),
            hosts=run.host_count,
            alone=bool(known.why_alone(run)),
            over=known.files.reach(run.spec, resumes=run.resume_run_id is not None),
            unit=run.spec.get("parallel", {}).get("tp") or 1,
            needs=NOBODY if known.missing(run) else known.files.needed(run.spec, known.of(run)),
            among=tuple(run.between),
            task=task_of(run.task),
            memory=run.needs_memory or 0,
            fields=needs_later(run.spec),
            on=run.chosen_devices,
        )
        for run, prefer in zip(runs, _preferences(runs), strict=True)
    ]


def _series_of(run: Run) -> int | None:
    return run.study_id if run.exclusive else None


def _widest(runs: Sequence[Run]) -> dict[tuple[int | None, str], int]:
    """For each timed study of these runs and kind of device: see `Request.widest`."""
    if not (studies := {_series_of(run) for run in runs} - {None}):
        return {}
    queued = Run.objects.order_by().filter(state=State.QUEUED, cancel_requested_at=None, exclusive=True)
    each = queued.filter(study__in=studies, host_count__lt=2).values_list("study", "spec__train__device")
    return {(study, kind): devices for study, kind, devices in each.annotate(Max("devices"))}


def _preferences(runs: Sequence[Run]) -> list[str]:
    """For each run of a timed study, the worker of the study's newest attempt; '' for other runs."""
    studies = {_series_of(run) for run in runs} - {None}
    newest = Attempt.objects.filter(run__study__in=studies).order_by("pk").values_list("run__study", "worker__name")
    where = dict(newest) if studies else {}
    return [where.get(_series_of(run) or 0) or "" for run in runs]
