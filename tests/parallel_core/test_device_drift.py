"""Devices whose speed drifts independently: a rank that waits for others waits for whichever is slow at the moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, cast

import numpy as np
import pytest

from parallel_core.observe.reference import Reference
from parallel_core.profile import normalize
from parallel_core.profile.layers import LayerBench
from parallel_core.profile.oversubscription import MEETINGS, ratio
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.table import CostTable
from parallel_core.simulate.device_drift import Spell, drift, spells_beside, spells_of
from parallel_core.simulate.likely import RunKind, by_default
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import SAMPLES, row, table

MODEL = ModelSpec(layers=4, hidden=32, seq=16, vocab=64)
IN_TURN = ((1.2, 0.8), (0.8, 1.2))
"""Two devices, each slow while the other is fast."""
AT_ONCE = ((1.2, 1.2), (0.8, 0.8))


def predicted(spells: Sequence[Sequence[float]], **split: object) -> float:
    free = [{"what": what, "ranks": 2, "time": {"sizes": [0], "seconds": [0]}} for what in ("all_reduce", "send")]
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": split, "train": {"global_batch": 16}})
    return predict_step(spec, table(MODEL, links=free, spells=spells)).seconds


def test_replicas_wait_for_whichever_device_is_slow() -> None:
    assert predicted(IN_TURN, dp=2) == pytest.approx(1.2 * predicted((), dp=2), rel=1e-6)
    assert predicted(AT_ONCE, dp=2) == pytest.approx(predicted((), dp=2), rel=1e-6), (
        "all devices of the host drift together"
    )


def test_a_tensor_group_waits_too_and_so_do_ranks_that_share_devices() -> None:
    for split in ({"tp": 2}, {"dp": 4}, {"dp": 2, "tp": 2}):
        assert predicted(IN_TURN, **split) == pytest.approx(1.2 * predicted((), **split), rel=1e-6)


def test_a_pipeline_waits_where_its_slow_stage_is_slow() -> None:
    """Less than if the slow device were slow all the time, but more than at average speeds."""
    plain, drifting = (predicted(known, pp=2, micro_batches=8) for known in ((), IN_TURN))
    assert plain * 1.05 < drifting < plain * 1.2


def test_one_device_takes_what_it_takes_on_average() -> None:
    assert predicted(IN_TURN) == predicted(())


def test_moments_are_told_apart_by_who_is_the_slowest() -> None:
    moments = [(1.3, 0.9), (1.1, 0.9), (0.7, 1.1)]
    assert spells_of(moments, [0]) == spells_of([], [0, 1]) == []
    first, second = spells_of(moments, [0, 1, 0])
    assert first.share == pytest.approx(2 / 3) and second.share == pytest.approx(1 / 3)
    assert first.slower == pytest.approx((1.2, 0.9, 1.2)) and second.slower == pytest.approx((0.7, 1.1, 0.7))


def test_devices_beyond_the_profiled_ones_drift_by_themselves() -> None:
    """They drift like the profiled ones, but at other moments, so that four of them cost more waiting than two."""
    two, four = (spells_of(IN_TURN * 3 + AT_ONCE, range(count)) for count in (2, 4))
    most = [sum(spell.share * max(spell.slower) for spell in spells) for spells in (two, four)]
    assert 1.0 < most[0] < most[1] < 1.25


def test_a_prediction_says_what_drift_alone_makes_of_it() -> None:
    """Replicas that wait for each other vary less in total than each device alone."""
    moments = [(pace, 2.0 - pace) for pace in np.linspace(0.5, 1.5, 101)]
    assert drift(moments, [0]) == pytest.approx((0.6, 1.4)) and drift([], [0]) is None
    low, high = drift(moments, [0, 1]) or (0.0, 0.0)
    assert 0.6 < low < 1.0 < high < 1.4
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": {"dp": 2}, "train": {"global_batch": 16}})
    said = predict_step(spec, table(MODEL, spells=moments))
    factors = by_default(RunKind.APART, (low, high))
    assert said.likely == pytest.approx([factor * said.seconds for factor in factors])
    assert predict_step(spec, table(MODEL)).factors == by_default(RunKind.APART, None)
    assert predict_step(spec, table(MODEL, spells=moments), spells=[Spell(1.0, (1.5, 1.5))]).likely is None
    cuda = spec.model_copy(update={"train": spec.train.model_copy(update={"device": "cuda"})})
    assert predict_step(cuda, table(MODEL, device="cuda")).likely is None, "no errors were measured on GPUs"


def test_a_run_has_spells_of_its_own() -> None:
    """Three measurements of the reference work make a moment; ranks that are slow at different moments add up."""
    early, late = [3.0] * 3 + [2.0] * 3, [2.0] * 3 + [3.0] * 3
    assert spells_beside([early, late], 2.0) == [Spell(0.5, (1.5, 1.0)), Spell(0.5, (1.0, 1.5))]
    assert spells_beside([[3.0]], 2.0) == [Spell(1.0, (1.5,))]
    assert spells_beside([[], []], 2.0) == spells_beside([[3.0]], 0.0) == []
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": {"dp": 2}, "train": {"global_batch": 16}})
    plain, own = (
        predict_step(spec, table(MODEL), spells=known).seconds for known in ((), spells_beside([early, late], 2))
    )
    assert own > 1.4 * plain


def header(rank: int, paces: list[float], tp: int = 1, busy: int = 2, joined: bool = False) -> normalize.Header:
    told = {**row(MODEL, tp, "none", SAMPLES[0], busy, 1.0), "joined": joined, "tensor_split": "pairs"}
    return {"rank": rank, "row": told, "reference": sum(paces) / len(paces), "paces": paces}


def test_a_profile_keeps_the_moments_of_all_devices() -> None:
    """Moments measured on a single device, or in groups that communicate (whose pace is that of their slowest rank),
    are left out.
    """
    both = [header(0, [3.0, 1.0]), header(1, [2.0, 2.0])]
    others = [header(0, [9.0], busy=1), header(0, [9.0, 9.0], tp=2, joined=True), header(0, [9.0, 9.0], tp=2)]
    assert normalize.spells([*both, *others]) == [(1.5, 1.0), (0.5, 1.0)]
    assert normalize.spells([]) == normalize.spells([{**told, "paces": []} for told in both]) == []


def test_a_long_profile_keeps_some_of_them() -> None:
    known = normalize.spells([header(0, [1.0, 3.0] * 600), header(1, [2.0] * 1200)])
    assert 300 <= len(known) <= 400
    CostTable.model_validate({**table(MODEL).dump(), "spells": known})


class _Drifting:
    """A device whose next pass, and the reference work after it, take as long as it is slow at that moment."""

    def __init__(self, paces: Iterator[float], passes: float) -> None:
        self._paces, self._passes, self.pace = paces, passes, 1.0

    def run(self, split: bool) -> dict[str, list[float]]:
        assert not split
        return {"forward": [0.4 * self._passes * self.pace], "backward": [0.6 * self._passes * self.pace]}

    def timed_pass(self) -> float:
        took, self.pace = self.pace, next(self._paces)
        return took


def test_a_pass_has_the_pace_of_what_is_next_to_it() -> None:
    device = _Drifting(iter([2.0, 4.0, 4.0]), passes=0.1)
    pacer = PaceProbe(cast(Reference, device))
    pacer.begin()
    for _ in range(2):
        pacer.measure()
    assert pacer.paces(2) == pytest.approx([1.5, 3.0])
    assert PaceProbe(None).paces(3) == [1.0] * 3


def test_what_sharing_costs_is_no_drift_of_the_device() -> None:
    """The device is slow in every pass alone and fast in those with company, which take 2.2 passes: 1.1 times their
    share. That the reference work would also be slower in company must not hide this; it runs while the others wait.
    """
    bench = _Drifting(cycle([1.0]), passes=0.1)
    pacer = PaceProbe(cast(Reference, bench))
    meetings = cycle(((1.5, 0.1), (1.0, 0.1), (1.1, 0.22 / 1.1), (1.0, 0.1)))
    assert MEETINGS == 4

    def together() -> None:
        pace, passes = next(meetings)
        bench._paces, bench.pace, bench._passes = cycle([pace]), pace, passes

    found = ratio(cast(LayerBench, cast(Any, bench)), pacer, 2, True, together, lambda mine: mine)
    assert found == pytest.approx(1.1)
