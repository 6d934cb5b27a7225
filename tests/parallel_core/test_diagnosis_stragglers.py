"""Which rank is slow, and whether its device, its host or its work makes it so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.diagnosis import RULES, Finding, checked, diagnose, unjudged
from parallel_core.analysis.rows import last_end
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import TENS, US, costs, found, healthy, scattered, slowed, spec, with_children
from tests.parallel_core.test_replay import step


def crumbled(made: RunSpec, rank: int, more: int) -> list[dict[int, np.ndarray]]:
    """Steps in which each operation of one rank takes `more` ns longer; the others wait in the norm."""
    out = {own: rows.copy() for own, rows in step(made, costs(made)).items()}
    late = 0
    for row in out[rank]:
        row["start"] += late
        late += more if row["kind"] in (Kind.F, Kind.BW) else 0
        row["end"] += late
    end = max(int(rows["end"].max()) for rows in out.values())
    for rows in out.values():
        rows["end"][np.isin(rows["kind"], (int(Kind.STEP), int(Kind.NORM)))] = end
    return [out] * 3


def test_ranks_that_share_a_gpu_are_spoken_of_on_gpus_alone() -> None:
    for device, shares in (("cpu", False), ("cuda", True)):
        on = RunSpec.model_validate({"parallel": {"dp": 2}, "train": {"device": device}})
        (said,) = diagnose(healthy(on, others=0.5))
        assert ("GPU that ranks share" in said.evidence) is shares and "were left out" in said.evidence


def test_a_disturbed_run_is_not_judged_by_its_times() -> None:
    made = spec(dp=2)
    case = healthy(made, traced=slowed(made, 1, 2.0), others=0.5)
    assert found(case) == ["disturbed"]
    assert checked(case) == sum(not rule.timing for rule in RULES.values()) < len(RULES), "what it says it checked"
    assert unjudged(case) == "other processes disturbed the times"


def test_a_stage_of_small_operations_is_no_straggler_for_its_few_flops() -> None:
    """The output layer of a tiny GPT has most FLOPs of the second stage, and few launches."""
    tiny = {"model": {"layers": 2, "hidden": 16, "heads": 2, "seq": 16, "vocab": 256}}
    made = RunSpec.model_validate(spec(pp=2, micro_batches=16).model_dump() | tiny)
    took = {(0, Kind.F): 500, (0, Kind.BW): 900, (1, Kind.F): 250, (1, Kind.BW): 420, (1, Kind.OPT_STEP): 300}
    tiny_steps = [step(made, Costs({key: us * US for key, us in took.items()}))] * 4
    assert "straggler" not in found(healthy(made, traced=tiny_steps))


def test_ranks_that_do_the_same_are_compared_more_strictly_than_stages() -> None:
    replicas, pipeline = spec(dp=2), spec(pp=4, micro_batches=16)
    assert found(healthy(replicas, traced=slowed(replicas, 1, 1.45)))[:1] == ["straggler"]
    assert "straggler" not in found(healthy(replicas, traced=slowed(replicas, 1, 1.2)))
    for factor, slow in ((1.45, False), (2.0, True)):
        steps = [step(pipeline, costs(pipeline, factor={1: factor}))] * 4
        assert ("straggler" in found(healthy(pipeline, traced=steps))) is slow


def test_a_straggler_costs_what_the_step_would_be_shorter_by() -> None:
    """Between its operations a slow stage waits for the other one: that it told the sum of what they take longer put it
    before a slow link that cost more."""
    pipeline = spec(pp=2, micro_batches=2)
    slow, usual = (step(pipeline, costs(pipeline, factor=factor)) for factor in ({0: 2.5}, {}))
    (straggler,) = (one for one in diagnose(healthy(pipeline, traced=[slow] * 4)) if one.rule == "straggler")
    shorter = last_end(slow) - last_end(usual)
    assert straggler.rank == 0 and straggler.effect_ns == pytest.approx(shorter, rel=0.02)
    replicas = spec(dp=2)
    (straggler,) = (
        one for one in diagnose(healthy(replicas, traced=slowed(replicas, 1, 2.0))) if one.rule == "straggler"
    )
    assert straggler.effect_ns == pytest.approx(last_end(step(replicas, costs(replicas))) * 0.9, rel=0.12)


def test_one_rank_that_launches_is_no_straggler() -> None:
    replicas = spec(dp=2, micro_batches=4)
    first, *rest = diagnose(healthy(replicas, traced=crumbled(replicas, 1, 4_000 * TENS)))
    assert (first.rule, first.rank) == ("tiny_kernels", 1)
    assert "40 ms more for each operation of rank 1" in first.title
    assert "straggler" not in [one.rule for one in rest]


@pytest.mark.parametrize(
    ("split", "limit", "change"),
    [
        ({}, None, "Use a larger train.global_batch."),
        ({"micro_batches": 4}, None, "Lower parallel.micro_batches to 1."),
        ({"micro_batches": 4}, 1, "Use fewer, larger micro-batches."),
        ({"dp": 2}, None, "Use a larger train.global_batch, or fewer ranks for this model."),
        ({"dp": 2, "micro_batches": 4}, 1, "Use fewer, larger micro-batches, or fewer ranks for this model."),
    ],
)
def test_small_operations_become_larger_by_what_the_run_can_do(
    split: dict[str, Any], limit: int | None, change: str
) -> None:
    """One micro-batch is named where it surely fits."""
    made = spec(**split)
    case = healthy(made, traced=[scattered(made)] * 3, limit=limit)
    (small,) = [one for one in diagnose(case) if one.rule == "tiny_kernels"]
    assert small.change == change


def test_one_slow_step_makes_no_straggler() -> None:
    """A run that fails early leaves only one traced step, and it is unknown whether others used its devices."""
    replicas = spec(dp=2)
    assert "straggler" not in found(healthy(replicas, traced=slowed(replicas, 1, 2.0)[:1], others=None))


def test_other_processes_are_no_less_a_cause_where_nobody_measured_them() -> None:
    """As of a run that failed before it could report their share; a device may be as fast as others between steps."""
    made = spec(dp=2)
    case = healthy(made, traced=slowed(made, 1, 2.0), paces={0: 0.002, 1: 0.002}, others=None)
    unseen = "; and at other processes there, whose share was not measured."
    assert diagnose(case)[0].change.endswith(unseen)
    assert diagnose(replace(case, others=0.02))[0].change.endswith("other threads of its process.")


def test_the_straggler_is_named() -> None:
    made = spec(dp=2)
    first: Finding = diagnose(healthy(made, traced=slowed(made, 1, 2.0)))[0]
    assert first.rank == 1
    assert first.title.startswith("2.00x as long as the others")
    assert first.effect_ns == pytest.approx(96_000 * TENS, rel=0.05)


@pytest.mark.parametrize(
    ("paces", "said", "change"),
    [
        ({}, "", "Look at the device of rank 1"),
        ({1: 0.003}, "", "Look at the device of rank 1"),  # the other rank did not do the reference work
        ({0: 0.002, 1: 0.0036}, "took 1.80x as long there: the device is slow.", "Look at the device of rank 1"),
        ({0: 0.002, 1: 0.0021}, "took 1.05x as long there: it is not the device.", "Look at what rank 1 does"),
    ],
)
def test_the_reference_work_tells_a_slow_device_from_slow_work(paces: dict[int, float], said: str, change: str) -> None:
    made = spec(dp=2)
    first: Finding = diagnose(healthy(made, traced=slowed(made, 1, 2.0), paces=paces))[0]
    assert first.rule == "straggler" and first.change.startswith(change)
    assert first.evidence.endswith(said or "in 4 traced steps.")


def test_a_tensor_group_over_two_hosts_is_named_with_them() -> None:
    made = spec(tp=2)
    busy = healthy(made, traced=with_children(made, Kind.TP_COLLECTIVE, 0.6))
    (beside,) = [found for found in diagnose(busy) if found.rule == "tensor_too_fine"]
    (apart,) = [found for found in diagnose(replace(busy, hosts=["a", "b"])) if found.rule == "tensor_too_fine"]
    assert "between hosts" in apart.title and "a and b" in apart.evidence
    assert "between hosts" not in beside.title
    assert apart.effect_ns == beside.effect_ns


def test_a_slow_link_between_hosts_says_between_which() -> None:
    made = spec(pp=2, micro_batches=8)
    slow = healthy(made, traced=[step(made, costs(made, message=2_000)) for _ in range(3)])
    said = {
        hosts: next(found.evidence for found in diagnose(replace(slow, hosts=hosts)) if found.rule == "slow_link")
        for hosts in ((), ("a", "a"), ("a", "b"))
    }
    assert said["a", "b"].startswith(said[()].removesuffix("."))
    assert said["a", "b"].endswith(("between a and b.", "between b and a."))
    assert said["a", "a"] == said[()]


def test_waits_for_ranks_that_are_late_in_turn_are_no_communication() -> None:
    """Half of each collective was waiting, now of one rank and then of the other, and 60 % of a step was called
    communication.
    """
    made = spec(tp=2)
    together = with_children(made, Kind.TP_COLLECTIVE, 0.6)
    late = [{rank: _later_in_turn(rows, rank) for rank, rows in one.items()} for one in together]
    assert "tensor_too_fine" in {one.rule for one in diagnose(healthy(made, traced=together))}
    assert "tensor_too_fine" not in {one.rule for one in diagnose(healthy(made, traced=late))}


def _later_in_turn(rows: np.ndarray, rank: int) -> np.ndarray:
    """The rank comes to every second of its tensor collectives when half of it is over."""
    rows = rows.copy()
    own = np.flatnonzero(rows["kind"] == Kind.TP_COLLECTIVE)[rank::2]
    rows["start"][own] += (rows["end"][own] - rows["start"][own]) // 2
    return rows
