"""Updates of a run in fp16 that were skipped, as their gradients overflowed."""

from __future__ import annotations

from dashboard.runs import selectors
from dashboard.runs.models import Run
from parallel_core.analysis.diagnosis.fp16_overflow import skipped_of
from parallel_core.spec import RunSpec


def skipped(run: Run) -> tuple[int, int]:
    """(how many of its updates, or of each stage's without a flush, the run skipped, of how many); (0, 0) if it has
    none that fp16 could skip."""
    spec = RunSpec.stored(run.spec)
    if spec.train.precision != "fp16":
        return 0, 0
    counts = selectors.series(run, "skipped_steps")
    number, of = skipped_of(spec, counts.value, int(counts.step[0]) if counts.shown else 0)
    return round(number), of
