"""The pipeline has too few micro-batches to hide its warm-up and drain, or runs one stage at a time.

Threshold: fewer than 4 micro-batches a stage ("negligible when M >= 4 K", Huang et al. 2019, section 2.3), a bubble of
25 % of the step, and a change that would save 8 % of it: 1F1B instead of the naive schedule, or more micro-batches. If
the batch does not allow more, gradients may leave their stage early (`schedule.passes.early_gradients`). Messages are
taken to need as long for a smaller micro-batch: over a link with a long latency more of them make a step longer. So do
launches, where micro-batches are small (`simulate.constant_costs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text, plural_text
from parallel_core.outline import outline_of
from parallel_core.simulate.replay import Change

ENOUGH, BUBBLE, MATTERS = 4, 0.25, 0.08


class _Better(NamedTuple):
    """A change, its name, and how to make it."""

    change: Change
    words: str
    do: str


def check(case: Case) -> Finding | None:
    split = case.spec.parallel
    bubble = case.share("bubble")
    naive = split.schedule == "naive" and split.micro_batches > 1
    few = split.micro_batches < ENOUGH * split.pp
    if split.pp == 1 or case.typical is None or bubble < BUBBLE or not (few or naive):
        return None
    what = "the naive schedule runs one stage at a time" if naive else plural_text(split.micro_batches, "micro-batch")
    more = max(_better(case, naive), key=lambda one: case.saved(one.change))
    for change, words, do in (more, *_early(case)):
        if (saved := case.saved(change)) >= MATTERS * case.typical.step:
            return Finding(
                "few_micro_batches",
                f"{percent_text(bubble)} of the step is bubble: {what} on {split.pp} stages.",
                f"{words} would save {ns_text(saved)} of a step, by replaying the measured one.",
                do,
                effect_ns=saved,
                tab="whatif",
            )
    return None


def _better(case: Case, naive: bool) -> Iterator[_Better]:
    """Schedules and numbers of micro-batches that may hide more."""
    if naive:
        yield _Better(Change(schedule="1f1b"), "Schedule 1F1B", "Set parallel.schedule to 1f1b.")
        return
    norms = " Its batch norms then see fewer samples at a time." if outline_of(case.spec.model).batch_norm else ""
    for factor in (4, 2):
        m = case.spec.parallel.micro_batches * factor
        more, words = Change(micro_batches=m, same_messages=True), f"{m} micro-batches"
        if case.spec.parallel.schedule == "naive":  # more micro-batches alone would still run one after another
            do = f"Set parallel.schedule to 1f1b and parallel.micro_batches to {m}.{norms}"
            yield _Better(replace(more, schedule="1f1b"), f"{words} in schedule 1F1B", do)
        else:
            yield _Better(more, words, f"Raise parallel.micro_batches to {m}.{norms}")


def _early(case: Case) -> Iterator[_Better]:
    """What else can be changed where more micro-batches save too little."""
    split = case.spec.parallel
    if not split.early_gradients and not (split.schedule == "naive" and split.micro_batches > 1):
        yield _Better(Change(early_gradients=True), "Early gradients", "Set parallel.early_gradients to true.")
