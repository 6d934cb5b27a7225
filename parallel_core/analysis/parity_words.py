"""The sentence on how closely runs that should compute the same agree, made as `sentences` are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from parallel_core.analysis.parity import Parity
from parallel_core.analysis.quantities import difference_text

AMPLIFIED = "Batch norms amplify rounding at a high learning rate: compare the first steps."
"""Said of losses that differ, of a model with batch norms."""


def parity_sentence(
    parities: Mapping[str, Parity],
    baseline: str,
    tolerances: Mapping[str, float],
    amplifies: bool = False,
    others: int = 0,
    every: int = 1,
) -> str:
    """Exactness card. `parities` by label, each against the baseline; `tolerances` by label, too, are the relative
    differences up to which two runs of their precisions count as equal. `amplifies`: the model has batch norms, which
    amplify a difference from step to step (`models.batchnorm`). `others`: further runs that are not expected to match,
    such as those without a flush. `every`: one of so many losses was compared."""
    compared = {label: p for label, p in parities.items() if p.steps}
    if not compared:
        return f"0 runs share a step with {baseline}."
    label = max(compared, key=lambda name: compared[name].largest / tolerances[name])
    worst, count = compared[label], len(compared)
    if worst.largest <= tolerances[label]:
        return _all_equal(compared, baseline, others, every)
    off = sum(p.largest > tolerances[name] for name, p in compared.items())
    finite = math.isfinite(worst.largest)
    how = f"{label} by {difference_text(worst.largest)}" if finite else f"{label} has no finite loss any more"
    told = f"{off} of {count} differ from {baseline}: {how} at step {worst.at}."
    return f"{told} {AMPLIFIED}" if amplifies else told


def _all_equal(compared: Mapping[str, Parity], baseline: str, others: int, every: int) -> str:
    """`parity_sentence` where no run differs by more than its tolerance."""
    count, most = len(compared), max(p.largest for p in compared.values())
    runs = f"{count} of {count + others} other runs" if others else f"{'Both' if count == 2 else f'All {count}'} runs"
    who = f"{runs} equal" if count > 1 else f"{next(iter(compared))} equals"
    how = f"within {difference_text(most)}" if most else "to the last bit (0 difference)"
    rest = f"; {others} {'is' if others == 1 else 'are'} not meant to" if others else ""
    which = f"one of every {every} losses" if every > 1 else "every loss"
    return f"{who} {baseline} {how} in {which}{rest}."
