"""The families that New study's strategies stand in: those of New run's presets."""

from __future__ import annotations

from dashboard.runs.presets import DATA, ONE, PIPELINE, PRODUCT, STREAM, TENSOR
from dashboard.studies.variants import STRATEGIES, Strategy
from parallel_core.schedule.traits import flushes

ENOUGH = 8
"""Devices that every strategy can be had on."""


def family_of(strategy: Strategy) -> str:
    degrees = strategy.split(ENOUGH) or {}
    axes = [axis for axis in ("dp", "tp", "pp") if degrees.get(axis, 1) > 1]
    if axes == ["pp"]:
        return PIPELINE if flushes(strategy.schedule) else STREAM
    if len(axes) > 1:
        return PRODUCT
    return {"dp": DATA, "tp": TENSOR}[axes[0]] if axes else ONE


def choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """Of a form: (family, [(key, title)]); the order in which a study runs them is another."""
    families = (ONE, DATA, TENSOR, PIPELINE, STREAM, PRODUCT)
    return [(name, [(s.key, s.title) for s in STRATEGIES if family_of(s) == name]) for name in families]
