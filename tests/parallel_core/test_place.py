"""Where to show a finding: the longest span that its rule is about, with a margin of its own length on both sides."""

from __future__ import annotations

import numpy as np

from parallel_core.analysis.diagnosis import RULES
from parallel_core.analysis.diagnosis.imported import RULES as IMPORTED
from parallel_core.analysis.diagnosis.place import KINDS, Place, place
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind

MS = 1_000_000


def rank(*rows: tuple[Kind, float, float]) -> np.ndarray:
    out = np.zeros(len(rows), SPAN)
    for i, (kind, start, end) in enumerate(rows):
        out["kind"][i], out["start"][i], out["end"][i] = kind, 5 * MS + start * MS, 5 * MS + end * MS
    return out


STEP = {
    0: rank((Kind.STEP, 0, 100), (Kind.F, 0, 10), (Kind.RECV_GRAD, 10, 30), (Kind.BW, 30, 60)),
    1: rank((Kind.STEP, 0, 100), (Kind.DATA, 0, 1), (Kind.RECV_ACT, 1, 11), (Kind.BW, 40, 80)),
}


def test_the_longest_span_of_its_kind_on_its_rank() -> None:
    assert place("slow_link", None, STEP) == Place(0, 0, 50, 10, 30), (
        "20 ms from 10 on, with 20 ms on both sides, as far as the step reaches"
    )
    assert place("slow_link", 1, STEP) == Place(1, 0, 21, 1, 11)
    assert place("straggler", 1, STEP) == Place(1, 0, 100, 40, 80), "no wider than the step"
    assert place("data_stall", None, STEP) == Place(1, 0, 2, 0, 1)


def test_none_where_nothing_is_seen() -> None:
    assert place("needless_recompute", None, STEP) is None
    assert place("memory_headroom", None, STEP) is None
    assert place("straggler", 0, {}) is None


def test_every_kind_belongs_to_a_rule() -> None:
    assert set(KINDS) <= set(RULES) | set(IMPORTED)
