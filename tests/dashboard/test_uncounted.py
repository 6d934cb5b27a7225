"""Memory that would be walked through for seconds is predicted on no page, and the page says so or goes without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.runs.models import Run, State
from dashboard.runs.page import memory as page_memory
from dashboard.runs.page.fix import fix
from dashboard.studies.fitting import fit, fit_views
from dashboard.studies.new.axes import Axes
from dashboard.studies.new.variants import Skipped, Variant
from dashboard.studies.overview import entries
from parallel_core.plan import memory, peak
from parallel_core.plan.capacity import walked_in_search
from parallel_core.plan.largest import Search
from parallel_core.plan.memory import MOST_WALKED, NOT_COUNTED
from parallel_core.spec import RunSpec
from tests.dashboard.factory import BASE, UNCOUNTED

pytestmark = pytest.mark.django_db
MIB = 1 << 20
DEEP = RunSpec.model_validate(UNCOUNTED)


@pytest.fixture(autouse=True)
def nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which the memory of a deep pipeline is counted."""
    count = peak.by_stage

    def by_stage(spec: RunSpec) -> Any:
        assert spec.parallel.pp < DEEP.parallel.pp, "it was counted"
        return count(spec)

    monkeypatch.setattr(memory, "by_stage", by_stage)


def test_the_memory_tab_draws_no_predicted_peak() -> None:
    assert page_memory._predicted(Run(spec=UNCOUNTED)) == {}
    shallow = RunSpec.model_validate({**BASE, "parallel": {"pp": 2, "micro_batches": 4}})
    found = {memory.rank: memory.total for memory in peak.by_stage(shallow)}
    assert page_memory._predicted(Run(spec=shallow.model_dump(mode="json"))) == found


def test_without_a_limit_no_change_is_named_that_fits() -> None:
    said = fix(Run(spec=UNCOUNTED, cause="out_of_memory"))
    assert said == f"Clone it with a smaller model or batch. {NOT_COUNTED}"


def test_no_change_is_said_to_fit_only_where_all_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    split = {"pp": 2, "micro_batches": 4, "schedule": "interleaved"}
    run = Run(spec={**BASE, "parallel": split, "trace": {"memory_cap": 100}}, cause="out_of_memory")
    rest = " makes it fit: clone it with a larger cap on memory, or a smaller model or batch."
    assert fix(run) == f"No change of the split alone{rest}"
    monkeypatch.setattr(memory, "MOST_WALKED", 1)
    assert fix(run) == f"No change of the split that could be tried at once{rest}"


@pytest.mark.full
def test_a_fit_study_says_which_searches_take_too_long_to_begin() -> None:
    """Of 64 stages and 512 micro-batches: a zero-bubble pipeline of any length is counted, one that keeps every
    micro-batch of two chunks is not."""
    base = {**BASE, "train": {"global_batch": 512}}
    strategies = ["1f1b", "zb-h1", "zb-v", "looped-bfs"]
    plan = fit.plan(
        base,
        Axes(strategies, recompute=["none"], precisions=["fp32"], micro_batches=[512], devices=64),
        limit=lambda _: 64 * MIB,
        cap=64 * MIB,
    )
    assert [variant.spec.parallel.schedule for variant in plan.variants] == strategies[:-1]
    assert [one.reason for one in plan.skipped if "BFS" in one.name] == [NOT_COUNTED]


def test_the_searches_of_a_fit_study_share_the_time_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [{**BASE, "parallel": {"pp": 2, "micro_batches": m, "schedule": "interleaved"}} for m in (4, 8, 2)]
    every = [Variant(str(i), RunSpec.model_validate(spec)) for i, spec in enumerate(two)]
    walks = [walked_in_search(one.spec) for one in every]
    every.append(Variant("3", RunSpec.model_validate({**BASE, "parallel": {"pp": 2, "micro_batches": 8}})))
    monkeypatch.setattr(fit, "MOST_SEARCHED", walks[1] + walks[2])
    made = list(fit._firsts(every, lambda _: 64 * MIB, None))
    assert walks[0] < walks[1] and [isinstance(one, Skipped) for one in made] == [False, True, False, False]
    assert made[1] == Skipped("1", fit.NONE_LEFT)


def test_the_row_of_a_search_has_no_predicted_peak() -> None:
    run = Run(spec=UNCOUNTED, state=State.SUCCEEDED, summary={"memory": {"peak_total": MIB}})
    hunt = fit.LayerSearch("Interleaved", DEEP, [run], Search(1024, {1024: True}))
    assert hunt.best == run and fit_views._line([hunt], hunt).predicted_peak is None


def test_a_row_of_a_study_has_no_largest_model() -> None:
    setting: Any = SimpleNamespace(details=True, room=SimpleNamespace(usable=MIB))
    assert walked_in_search(DEEP) > MOST_WALKED and entries._largest(DEEP, setting) is None
    assert entries._largest(RunSpec.model_validate(BASE), setting) is not None
