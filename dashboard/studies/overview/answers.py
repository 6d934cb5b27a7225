"""The small answers below a study's charts: one number or sentence each, with a link to the section that shows more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dashboard.charts.chart import pairs
from dashboard.studies.new.written import Again, shown
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis import sentences
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    difference_text,
    listed_text,
    loss_text,
    percent_text,
    plural_text,
    ratio_text,
)
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import speedup
from parallel_core.spec import RunSpec

QUESTIONS = {"full": "Recomputation", "selective": "Selective recomputation"}
"""What each kind is called where all blocks recompute."""
NONE = Again("none")


@dataclass(frozen=True)
class Answer:
    """`target` is the id of the section that it links to."""

    question: str
    answer: str
    detail: str
    target: str


def of_overview(view: Overview) -> list[Answer]:
    """The answers for a study: lowest loss, memory, largest model, exactness, pipelining, recomputation, use of its
    devices by others."""
    like = view.like_for_like  # another kind of model is no choice instead of the baseline's
    made = (_lowest(view), _memory(like), _largest(like), _exactness(view))
    if view.side_by_side:
        return [answer for answer in made if answer]
    return [answer for answer in (*made, _pipelines(view), *recomputation(view), _quiet(view)) if answer]


def _lowest(view: Overview) -> Answer | None:
    """The runs that trained best, where the study compares that."""
    found = view.ranking
    who = found.lowest({row.run.pk: row.entry.label for row in view.rows}) if found else ""
    if found is None or not who:
        return None
    value = loss_text(found.values[found.best])
    return Answer(f"Lowest {found.named}", value, f"{who}; {found.rival()}.", "loss")


def _memory(view: Overview) -> Answer | None:
    sizes = [size for r in view.results if (size := r.memory_total) is not None]
    if not sizes:
        return None
    least, most, worst = min(sizes), max(sizes), [r.label for r in sentences.heaviest(view.results)]
    labels, others = (listed_text(sentences.shortened(own)) for own in (sentences.lightest(view.results), worst))
    among = sentences.among_metered(view.results)
    detail = f"{labels}; {others} {'takes' if len(worst) == 1 else 'take'} most, {bytes_text(most)}{among}."
    if bytes_text(least) == bytes_text(most):
        every = "every metered run" if among else "every run"
        detail = f"on the worst rank of {every if len(sizes) > 1 else f'{labels}{among}'}."
    return Answer("Least memory", bytes_text(least), detail, "memory")


def _largest(view: Overview) -> Answer | None:
    """Predicted, so that it is there before anything has run."""
    known = [(e.largest, e.label) for e in view.entries if e.largest is not None]
    if not known or not view.room:
        return None
    most = max(size for size, _ in known)
    labels = [label for size, label in known if size == most]
    base = view.baseline.entry if view.baseline else None
    against = ""
    if base and base.largest and base.label not in labels:
        against = f"; {count_text(base.largest)} with {base.label}"  # a label may end with a number
    kept = f"{'balanced cuts and ' * view.own_cuts}all else equal"
    who = listed_text(sentences.shortened(labels))
    detail = f"predicted, {who}{against}; on {view.room.each}, {kept}."
    return Answer("Largest model", f"{count_text(most)} layer{'' if most == 1 else 's'}", detail, "capacity")


def _exactness(view: Overview) -> Answer | None:
    compared = [p for p in view.parities.values() if p.steps]
    if not compared:
        return None
    largest = max(p.largest for p in compared)
    said = f"{difference_text(largest)} at most" if math.isfinite(largest) else "a loss is not finite"
    return Answer("Exactness", said, view.parity_sentence, "loss")


def _pipelines(view: Overview) -> Answer | None:
    """The fastest pipeline compared with one device that uses the same micro-batches: what pipelining alone gains.

    Compared with a device that takes its whole batch at once, the size of the micro-batches would matter as well.
    """
    done = view.by_time
    split = [row for row in done if row.spec.parallel.pp > 1 and row.spec.parallel.micro_batches > 1]
    alone: dict[RunSpec, Row] = {}
    for row in done:
        if row.spec.parallel.world == 1:
            alone.setdefault(_unsplit(row.spec), row)
    found = next(((row, like) for row in split if (like := alone.get(_unsplit(row.spec)))), None)
    if found is None:
        return None
    row, like = found
    if row.entry.result is None or like.entry.result is None:
        return None
    gain = speedup(like.entry.result.step, row.entry.result.step)
    noise = sentences.noise(gain)
    noise += ", disturbed by other processes" if row.entry.disturbed or like.entry.disturbed else ""
    detail = f"{row.entry.label} over {like.entry.label}: the same micro-batches on one device{noise}."
    return Answer("Pipelining alone", ratio_text(gain.ratio), detail, "numbers")


def _unsplit(spec: RunSpec) -> RunSpec:
    """The spec without its stages: equal for a pipeline and a run on one device that differ in nothing else."""
    split = {
        "pp": 1,
        "schedule": "1f1b",
        "chunks": None,
        "program": None,
        "cuts": None,
        "early_gradients": False,
    }
    return spec.model_copy(update={"parallel": spec.parallel.model_copy(update=split)})


def recomputation(view: Overview) -> list[Answer]:
    """What each kind of recomputation saved, each list of layers by itself; [] if no two runs differ only in it."""
    splits = (row.spec.parallel for row in view.rows if row.spec.parallel.recompute != "none")
    found = {Again(split.recompute, split.recompute_layers) for split in splits}
    kinds = sorted(found, key=lambda again: (again.layers or (), again.how))
    labels = Counter(again.label for again in kinds)
    made = (_bought(view, again, _question(again, labels[again.label] > 1)) for again in kinds)
    return [answer for answer in made if answer]


def _question(again: Again, ambiguous: bool) -> str:
    """The words for all blocks, or the label of some, followed by the list itself where the label is `ambiguous`."""
    if again.layers is None:
        return QUESTIONS[again.how]
    return f"{again.label}: {shown(str(again))}" if ambiguous else again.label


def _bought(view: Overview, again: Again, question: str) -> Answer | None:
    """Medians of what a recomputation saves and costs, over the pairs of runs that differ in nothing else."""
    chosen = (NONE, again)
    splits = ((row, row.spec.parallel) for row in view.rows if row.entry.done)
    entries = [row.entry for row, split in splits if Again(split.recompute, split.recompute_layers) in chosen]
    both = [(a.result, b.result) for a, b in pairs(entries) if a.result and b.result]
    saved = [
        1 - b.memory["activations"] / a.memory["activations"]
        for a, b in both
        if a.memory and b.memory and a.memory.get("activations")
    ]
    if not saved:
        return None
    less = "less" if median(saved) >= 0 else "more"
    return Answer(question, f"{percent_text(abs(median(saved)))} {less} activations", _price(both), "tradeoff")


def _price(both: Sequence[tuple[Result, Result]]) -> str:
    """What recomputation costs in time, over the pairs in which other processes disturbed neither run."""
    quiet = [(a.step, b.step) for a, b in both if not a.taken and not b.taken]
    every = plural_text(len(both), "pair")
    if not quiet:
        return f"in {every}; what it costs in time is not known, as other processes disturbed a run of each."
    cost, noisy = median(b.median / a.median - 1 for a, b in quiet), len(both) - len(quiet)
    change = f"{percent_text(abs(cost))} {'longer' if cost >= 0 else 'shorter'}"
    change += ", within noise" * all(speedup(a, b).within_noise for a, b in quiet)
    if noisy:
        return f"in {every}, for a step {change} in the {len(quiet)} that nothing disturbed: medians."
    return f"for a step {change}: {'medians of ' * (len(both) > 1)}{every}."


def _quiet(view: Overview) -> Answer | None:
    question, target = "CPU of others", "numbers"
    known = [row.entry for row in view.rows if row.entry.others is not None]
    missing = sum(bool(row.run.summary.get("others_missing")) for row in view.rows if row.entry.done)
    without = f"of {plural_text(missing, 'run')} that {'was' if missing == 1 else 'were'} restarted."
    if not known:
        return Answer(question, "not known", without, target) if missing else None
    noisy = sum(entry.disturbed for entry in known)
    detail = (
        f"{noisy} of {plural_text(len(known), 'measured run')} {'was' if noisy == 1 else 'were'} disturbed "
        f"(above {percent_text(DISTURBED_ABOVE)}: cross-hatched)."
        if noisy
        else "used by other processes at most, in the timed steps: measured quietly."
    ) + f" Not known {without}" * bool(missing)
    return Answer(question, percent_text(max(entry.others or 0 for entry in known)), detail, target)
