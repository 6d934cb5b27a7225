"""What is added to the report of an attempt over several hosts of which no rank moved: which waits for which."""

from __future__ import annotations

from functools import partial

from dashboard.control import multi_host
from dashboard.runs.models import Attempt
from parallel_core import who_waits
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec


def explained(attempt: Attempt, report: multi_host.Report) -> multi_host.Report:
    """The report with that in its detail, from where the last heartbeats saw the ranks."""
    if report.get("cause") != "no_progress" or len(attempt.devices) < 2 or attempt.run.task:
        return report
    places = {int(rank): (int(at["step"]), str(at["op"])) for rank, at in attempt.progress.items()}
    layout, host = Layout.of(RunSpec.stored(attempt.run.spec)), partial(multi_host.worker_of, attempt.devices)
    return {**report, "detail": f"{report['detail']} {who_waits.sentence(places, layout, host)}".strip()}
