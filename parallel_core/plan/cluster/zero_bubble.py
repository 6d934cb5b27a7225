"""The zero-bubble tables (Qi et al. 2024a) predicted by the simulator and by our own search for an order.

Only two published numbers of each row are used: the bubble rates of 1F1B and of ZB-H1 give T_W and T_comm (in units of
T_F + T_B + T_W, with T_F = T_B, which the paper's profiles confirm within 3 %). The rates of ZB-H2, interleaved 1F1B,
ZB-1p and ZB-2p follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from parallel_core.plan.bubble_rates import Times, bubble_rate, find, handmade
from parallel_core.plan.cluster.published_orders import needed_by_weights
from parallel_core.plan.cluster.store import rows
from parallel_core.schedule.ir import Schedule

PREDICTED = ("ZB-H2", "1F1B-I", "ZB-1p", "ZB-2p")
_UNIT = 100_000_000
"""Nanoseconds of F + B + W: long enough that rounding to whole ones loses nothing."""
_CLOSE = 2e-5
"""Tolerance of a rate: they are published with four digits."""


@dataclass(frozen=True, slots=True)
class BubbleRow:
    """Rates are shares of the step. `weights`, `message`: T_W and T_comm over F + B + W; `profiled_*`: the paper's own
    values (Table 6), which are not used for prediction."""

    model: str
    stages: int
    micro_batches: int
    weights: float
    message: float
    profiled_weights: float
    profiled_message: float
    measured: dict[str, float]
    predicted: dict[str, float]

    def points(self, name: str) -> float:
        """Predicted less published rate, in percentage points."""
        return 100 * (self.predicted[name] - self.measured[name])


def models() -> list[str]:
    """Models of the tables, smallest first."""
    return list(dict.fromkeys(row["model"] for row in rows("zero_bubble_2024")))


@lru_cache(maxsize=16)
def bubble_rows(model: str) -> tuple[BubbleRow, ...]:
    """The rows of one model. Takes 0.1 s to a few seconds: every rate is a simulated step."""
    return tuple(_row(row) for row in rows("zero_bubble_2024") if row["model"] == model)


def _row(row: dict[str, Any]) -> BubbleRow:
    p, m, rates, profiled = row["pp"], row["micro_batches"], row["bubble"], row["profiled_ms"]
    weights, message = derive(p, m, rates["1F1B"], rates["ZB-H1"])
    times = _times(weights, message)
    kept = needed_by_weights(row)
    chunks = (row["layers"] + 2) // p
    predicted = {
        "ZB-H2": bubble_rate(handmade("zb-h2", p, m), times),
        "1F1B-I": bubble_rate(handmade("interleaved", p, m, chunks), times),
        "ZB-1p": bubble_rate(find(p, m, times, p, kept), times),
        "ZB-2p": bubble_rate(find(p, m, times, 2 * p, kept), times),
    }
    whole = profiled["F"] + profiled["B"] + profiled["W"]
    return BubbleRow(
        row["model"], p, m, weights, message, profiled["W"] / whole, profiled["comm"] / whole, rates, predicted
    )  # fmt: skip


def derive(pp: int, micro_batches: int, one_f_one_b: float, zb_h1: float) -> tuple[float, float]:
    """(T_W, T_comm) at which 1F1B and ZB-H1 have these bubble rates. Solved alternately: a message lengthens both, the
    length of W only ZB-H1."""
    lowest, highest = handmade("1f1b", pp, micro_batches), handmade("zb-h1", pp, micro_batches)
    weights, message = 0.25, 0.01
    for _ in range(4):
        message = _solve(partial(_rate, lowest, weights), one_f_one_b, message)
        weights = _solve(partial(_rate_of_weights, highest, message), zb_h1, weights)
        if abs(_rate(lowest, weights, message) - one_f_one_b) < _CLOSE:
            break
    return weights, message


def _rate(schedule: Schedule, weights: float, message: float) -> float:
    return bubble_rate(schedule, _times(weights, message))


def _rate_of_weights(schedule: Schedule, message: float, weights: float) -> float:
    return _rate(schedule, weights, message)


def _solve(rate: Callable[[float], float], wanted: float, guess: float) -> float:
    """Where `rate` takes the value `wanted`, by the secant method from a guess; rates are nearly linear in a time."""
    a, low = guess, rate(guess) - wanted
    if abs(low) < _CLOSE:
        return a
    b = a * 1.1
    for _ in range(5):
        high = rate(b) - wanted
        if abs(high) < _CLOSE or high == low:
            break
        a, b, low = b, b - high * (b - a) / (high - low), high
    return b


def _times(weights: float, message: float) -> Times:
    half = (1 - weights) / 2
    return Times(int(half * _UNIT), int(half * _UNIT), int(weights * _UNIT), max(0, int(message * _UNIT)))
