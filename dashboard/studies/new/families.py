"""The families of New study's strategies: the same as those of New run's presets."""

from __future__ import annotations

from dashboard.runs.form.presets import DATA, ONE, PIPELINE, PRODUCT, STREAM, TENSOR
from dashboard.studies.new.strategies import STRATEGIES, Strategy
from parallel_core.schedule.traits import flushes


def family_of(strategy: Strategy) -> str:
    axes = strategy.axes
    if axes == ["pp"]:
        return PIPELINE if flushes(strategy.schedule) else STREAM
    if len(axes) > 1:
        return PRODUCT
    return {"dp": DATA, "tp": TENSOR}[axes[0]] if axes else ONE


def choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """For a form: (family, [(key, title)]). A study runs them in another order."""
    families = (ONE, DATA, TENSOR, PIPELINE, STREAM, PRODUCT)
    return [(name, [(s.key, s.title) for s in STRATEGIES if family_of(s) == name]) for name in families]
