"""The small answers under a study's charts: one number or sentence each, with the place that shows more."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.charts.theme import DISTURBED_ABOVE
from dashboard.studies.selectors import Overview
from parallel_core.analysis.quantities import bytes_text, percent_text


@dataclass(frozen=True)
class Answer:
    """`target` is the id of the section that it links to."""

    question: str
    answer: str
    detail: str
    target: str


def of_overview(view: Overview) -> list[Answer]:
    return [answer for answer in (_memory(view), _recompute(view), _exactness(view), _quiet(view)) if answer]


def _memory(view: Overview) -> Answer | None:
    sizes = [(size, r.label) for r in view.results if (size := r.memory_total) is not None]
    if not sizes:
        return None
    (least, label), (most, worst) = min(sizes), max(sizes)
    detail = f"{label}; the most takes {worst} with {bytes_text(most)}."
    return Answer("Least memory", bytes_text(least), detail, "memory")


def _recompute(view: Overview) -> Answer | None:
    """What recomputation buys and costs, over the pairs of plain and recomputing runs: medians."""
    by_label = {row.entry.label: row.entry.result for row in view.rows if row.entry.done}
    pairs = [
        (plain, again)
        for label, again in by_label.items()
        if again and label.endswith(" + AR") and (plain := by_label.get(label.removesuffix(" + AR")))
    ]
    saved = [
        1 - b.memory["activations"] / a.memory["activations"]
        for a, b in pairs
        if a.memory and b.memory and a.memory.get("activations")
    ]
    if not saved:
        return None
    cost = _median([b.step.median / a.step.median - 1 for a, b in pairs])
    change = f"{percent_text(abs(cost))} {'longer' if cost >= 0 else 'shorter'}"
    less = "less" if _median(saved) >= 0 else "more"
    detail = f"for a step {change}: medians of {len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'}."
    return Answer("Recomputation", f"{percent_text(abs(_median(saved)))} {less} activations", detail, "tradeoff")


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _exactness(view: Overview) -> Answer | None:
    compared = [p for p in view.parities.values() if p.steps]
    if not compared:
        return None
    largest = max(p.largest for p in compared)
    return Answer("Exactness", f"{largest:.1e} at most", view.parity_sentence, "loss")


def _quiet(view: Overview) -> Answer | None:
    share = view.largest_others
    if share is None:
        return None
    noisy = sum(row.entry.disturbed for row in view.rows)
    detail = (
        f"{noisy} of {len(view.rows)} runs were disturbed (above {percent_text(DISTURBED_ABOVE)}, drawn hatched)."
        if noisy
        else "used by other processes at most, in the timed steps: measured quietly."
    )
    return Answer("CPU of others", percent_text(share), detail, "numbers")
