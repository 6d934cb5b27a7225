"""Devices that wait for each other take as long as the slowest of them: what noise costs a step of several.

Medians of one device at a time leave that out. With n devices whose passes vary independently, normally with standard
deviation s, the slowest of n takes s times the largest of n standard normals longer than the median, on average
(Blom 1958's approximation of that order statistic).
"""

from __future__ import annotations

from statistics import NormalDist

_NORMAL = NormalDist()
_TENTHS = _NORMAL.inv_cdf(0.9)
"""Standard deviations from the median to the 90th percentile: what a spread is made of."""


def expected_largest(count: int) -> float:
    """Of `count` standard normals; 0 for one."""
    return _NORMAL.inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def factor(devices: int, spread: float) -> float:
    """How many times the median of one the slowest of `devices` takes; `spread` = half the distance from the 10th to
    the 90th percentile, relative to the median."""
    return 1.0 + spread / _TENTHS * expected_largest(devices)
