"""What is added to the report of an attempt over several hosts of which no rank moved: which waits for which."""

from __future__ import annotations

import logging
from functools import partial

from dashboard.control import multi_host
from dashboard.runs.models import Attempt
from parallel_core import who_waits
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)


def explained(attempt: Attempt, report: multi_host.Report) -> multi_host.Report:
    """The report with that in its detail, from where the last heartbeats saw the ranks. What a worker told in another
    form than this version expects must not keep the attempt from ending."""
    if report.get("cause") != "no_progress" or len(attempt.devices) < 2 or attempt.run.task:
        return report
    try:
        told = {int(rank): at for rank, at in attempt.progress.items()}
        places = {rank: (int(at["step"]), str(at["op"])) for rank, at in told.items() if at.get("op")}
        layout, host = Layout.of(RunSpec.stored(attempt.run.spec)), partial(multi_host.worker_of, attempt.devices)
        said = who_waits.sentence(places, layout, host)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        log.warning("attempt %d: not known which rank waits for which: %r", attempt.pk, error)
        return report
    return {**report, "detail": f"{report['detail']} {said}".strip()}
