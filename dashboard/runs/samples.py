"""How many samples a model has seen at a step of a run, which may have gone on from a checkpoint of another batch."""

from __future__ import annotations

from dashboard.runs.models import Run

MOST_SOURCES = 100
"""The most runs that are followed back; what began before them is not known."""


def samples_shift(run: Run) -> int | None:
    """Samples that the model has seen after n steps, beyond n times the run's own batch: not 0 only where the run, or
    one before it, went on from a checkpoint with another batch. None if such a run was deleted."""
    shift, step, batch = 0, run.resume_step, _batch(run.spec)
    source = run.resume_run_id
    for _ in range(MOST_SOURCES):
        if not step:
            return shift
        if source is None:
            return None
        found = Run.objects.filter(pk=source).values_list("spec__train__global_batch", "resume_run", "resume_step")
        row = found.get()  # a run that is deleted leaves no id behind
        before = int(row[0])
        shift += step * (before - batch)
        batch, source, step = before, row[1], row[2]
    return None


def samples_after(run: Run, steps: int) -> int | None:
    """Samples that the model has seen after so many steps; None if that is not known."""
    shift = samples_shift(run)
    return None if shift is None else steps * _batch(run.spec) + shift


def _batch(spec: dict[str, dict[str, int]]) -> int:
    return int(spec["train"]["global_batch"])
