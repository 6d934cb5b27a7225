"""What runs read, by the digits of its content that rank 0 reports."""

from __future__ import annotations

from dashboard.runs.models import RankInfo, Run


def read_by(run: Run, before: int | None = None) -> dict[str, str]:
    """The content of what the first attempts of a run read, as in the `reads` of hello (parallel_core.observe.records);
    {} where it is not known. A later attempt that finds other content is refused by its ranks. With `before`, only
    attempts of lower numbers count."""
    infos = RankInfo.objects.filter(attempt__run=run, rank=0).order_by("-attempt__number")
    if before is not None:
        infos = infos.filter(attempt__number__lt=before)
    hellos = infos.values_list("hello", flat=True)
    return {what: digits for hello in hellos for what, digits in (hello.get("reads") or {}).items()}


def read_sentence(run: Run) -> str:
    """Says by which digits the content of what it read is known; '' where it is not known."""
    read = read_by(run)
    of = "hash of its content"
    named = [
        f"{run.spec['train'][what]} ({of} {digits})" for what, digits in read.items() if run.spec["train"].get(what)
    ]
    return f"Read: {', '.join(named)}." if named else ""
