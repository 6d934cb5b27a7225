"""Which versions of Trainyard and of PyTorch ranks ran with."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.fleet.models import Worker
from dashboard.runs.models import Attempt, RankInfo


def ran_with(attempts: Sequence[Attempt]) -> str:
    """`Trainyard 0.1.0, PyTorch 2.13.0.`, as the ranks of the attempts have said; '' if they said nothing."""
    ranks = RankInfo.objects.filter(attempt__in=[attempt.pk for attempt in attempts])
    hellos = ranks.values_list("attempt_id", "hello")
    torch = sorted({str(hello["torch"]) for _, hello in hellos if hello.get("torch")})
    own = {attempt: str(hello["version"]) for attempt, hello in hellos if hello.get("version")}
    # Ranks of earlier versions did not say theirs: it is that of their worker, unless that was started again since.
    boots = [attempt.worker_boot for attempt in attempts if attempt.pk not in own and attempt.worker_boot]
    yard = sorted({*own.values(), *Worker.objects.filter(boot__in=boots).values_list("version", flat=True)} - {""})
    said = [f"{name} {' and '.join(found)}" for name, found in (("Trainyard", yard), ("PyTorch", torch)) if found]
    return f"{', '.join(said)}." if said else ""
