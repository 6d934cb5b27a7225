"""Rules for an imported pipeline whose schedule could be recovered: bubble and uneven stages, judged by its own replay.

Thresholds are those of `few_micro_batches` and `unbalanced_stages`. The layers of a stage are unknown: uneven means
that a stage takes longer, so a slow rank looks like a heavy stage, and the finding names both.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from parallel_core.analysis.diagnosis import few_micro_batches, unbalanced_stages
from parallel_core.analysis.diagnosis.case import REPLAYED, Finding, Step
from parallel_core.analysis.quantities import ns_text, percent_text, ratio_text
from parallel_core.simulate.recovered_replay import MOST_OFF, Recovered
from parallel_core.simulate.replay import Change


def recovered(steps: Sequence[Step]) -> Recovered | None:
    """The pipeline of the first of `steps`; None for other jobs, for steps that are too long, and if its replay does
    not match the step."""
    if sum(map(len, steps[0].values())) > REPLAYED:
        return None
    try:
        found = Recovered.of(steps[0])
    except ValueError:
        return None
    return found if found is not None and found.off <= MOST_OFF else None


def few(found: Recovered) -> Finding | None:
    """The bubble, if more micro-batches, or 1F1B for a naive schedule, would remove a part of it."""
    split, busy = found.spec.parallel, sum(cost.work + cost.again for cost in found.measured.ops.values())
    bubble = 1 - busy / (found.step * split.pp * split.dp)
    naive = split.schedule == "naive" and split.micro_batches > 1
    enough = split.micro_batches >= few_micro_batches.ENOUGH * split.pp
    if bubble < few_micro_batches.BUBBLE or (enough and not naive):
        return None
    more = Change(micro_batches=4 * split.micro_batches, same_messages=True)
    change = Change(schedule="1f1b") if naive else more
    saved = _saved(found, change)
    if saved < few_micro_batches.MATTERS * found.step:
        return None
    what = "the naive order runs one stage at a time" if naive else f"{split.micro_batches} micro-batches"
    words = "1F1B" if naive else f"{change.micro_batches} micro-batches"
    return Finding(
        "few_micro_batches",
        f"{percent_text(bubble)} of the step is no work: {what} on {split.pp} ranks.",
        f"{words} would save {ns_text(saved)} of {ns_text(found.step)}, by replaying the recovered step.",
        "Use a 1F1B schedule." if naive else "Cut the batch into more micro-batches.",
        effect_ns=saved,
    )


def uneven(found: Recovered) -> Finding | None:
    """Stages that take unequal time."""
    work = [0.0] * found.spec.parallel.stages
    for (_, stage, _, _), cost in found.measured.ops.items():
        work[stage] += cost.work
    heaviest = max(range(len(work)), key=work.__getitem__)
    ratio = work[heaviest] * len(work) / max(1.0, sum(work))
    saved = _saved(found, Change(balanced=True)) if ratio >= unbalanced_stages.HEAVIER else 0
    if saved < unbalanced_stages.MATTERS * found.step:
        return None
    place = next(i for i, own in enumerate(found.pipeline.ranks) if _holds(found, own[0], heaviest))
    return Finding(
        "unbalanced_stages",
        f"{ratio_text(ratio)} the mean time: stage {heaviest} holds up the pipeline.",
        f"Equal stages would save {ns_text(saved)} of {ns_text(found.step)}, by replaying the recovered step.",
        "Move layers from this stage to its neighbours; if it holds no more than they do, its rank is slow.",
        effect_ns=saved,
        rank=found.pipeline.ranks[place][0],
    )


def _holds(found: Recovered, rank: int, stage: int) -> bool:
    return any(one.stage == stage for one in found.pipeline.done[rank])


def _saved(found: Recovered, change: Change) -> int:
    """Nanoseconds that `change` would save; 0 if the result is not a valid pipeline."""
    try:
        return max(0, round(found.step - found.replay(change).step))
    except ValidationError:
        return 0
