"""Every rule finds its fault and describes it in short sentences, and no rule reports anything for a healthy run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.diagnosis import RULES, Case, Finding, diagnose
from parallel_core.faults import broken
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.plan import memory as plan_memory
from parallel_core.plan.memory import by_stage
from parallel_core.plan.partition import flop_weights
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from parallel_core.simulate.replay import Change
from parallel_core.spec import RunSpec
from tests.parallel_core.test_replay import step

US = 1_000
MODEL = {"layers": 8, "hidden": 64, "heads": 4, "seq": 64, "vocab": 64}


def spec(precision: str = "fp32", **split: Any) -> RunSpec:
    train = {"global_batch": 64, "steps": 40, "precision": precision}
    return RunSpec.model_validate({"model": MODEL, "parallel": split, "train": train})


def costs(made: RunSpec, message: int = 20, reduction: int = 400, factor: dict[int, float] | None = None) -> Costs:
    """Costs in which every stage takes time in proportion to its FLOPs per tensor rank, in microseconds, times `factor`
    for that stage.
    """
    weights, layout = flop_weights(made.model), Layout.of(made)
    units, m = layout.stage_units, made.parallel.micro_batches * made.parallel.dp
    table: dict[tuple[int, Kind], int] = {}
    for stage, own in enumerate(units):
        f = sum(weights[unit] for unit in own) / sum(weights) * 8_000 * 8 / m * (factor or {}).get(stage, 1.0)
        f /= layout.widths[layout.place(stage)]
        again = 1 if made.parallel.recompute != "none" else 0
        ns = {Kind.F: f, Kind.B: f, Kind.W: f, Kind.BW: (2 + again) * f, Kind.ALLREDUCE: reduction, Kind.OPT_STEP: 300}
        table |= {(stage, kind): round(value * US) for kind, value in ns.items()}
    return Costs(table, message=message * US, norm=True)


def healthy(made: RunSpec, **more: Any) -> Case:
    falling = 5 * np.exp(-np.arange(40) / 50) + 0.05 * np.sin(np.arange(40))
    peaks = {rank: round(1.05 * own) for rank, own in _predicted(made).items()}
    base = Case(
        made,
        [step(made, costs(made)) for _ in range(3)],
        loss_steps=np.arange(40),
        loss=falling,
        grad_norm=falling / 3,
        peaks=peaks,
        limit=8 * max(peaks.values()),
        others=0.02,
    )
    return replace(base, **more)


def _predicted(made: RunSpec) -> dict[int, int]:
    layout = Layout.of(made)
    places = {layout.coords(memory.rank).place: memory.total for memory in by_stage(made)}
    return {rank: places[layout.coords(rank).place] for rank in range(layout.world)}


def found(case: Case) -> list[str]:
    return [finding.rule for finding in diagnose(case)]


def slowed(made: RunSpec, rank: int, factor: float) -> list[dict[int, np.ndarray]]:
    """Steps in which one rank computes `factor` times as long; the others wait for it in the norm."""
    fast, slow = step(made, costs(made)), step(made, costs(made, factor=dict.fromkeys(range(8), factor)))
    out = fast | {rank: slow[rank]}
    end = max(int(rows["end"].max()) for rows in out.values())
    for rows in out.values():
        rows["end"][rows["kind"] == Kind.STEP] = end
        rows["end"][rows["kind"] == Kind.NORM] = end
    return [out] * 4


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


HEALTHY: list[dict[str, Any]] = [
    {},
    {"dp": 2},
    {"pp": 2, "micro_batches": 8},
    {"pp": 4, "micro_batches": 16, "schedule": "gpipe"},
    {"pp": 2, "micro_batches": 16, "schedule": "interleaved"},
    {"pp": 4, "micro_batches": 16, "schedule": "zb-h1"},
    {"pp": 2, "dp": 2, "micro_batches": 8},
    {"pp": 2, "widths": (1, 2), "micro_batches": 16},
    {"pp": 4, "widths": (4, 4, 4, 1), "micro_batches": 16},
    {"pp": 4, "replicas": (3, 3, 3, 1), "micro_batches": 16},
]


@pytest.mark.parametrize("split", HEALTHY, ids=str)
def test_nothing_is_found_in_a_healthy_run(split: dict[str, Any]) -> None:
    assert diagnose(healthy(spec(**split))) == []


def test_nothing_known_is_nothing_found() -> None:
    for split in HEALTHY:
        assert diagnose(Case(spec(**split))) == []


def with_children(made: RunSpec, kind: Kind, share: float) -> list[dict[int, np.ndarray]]:
    """Steps whose compute spans contain spans of `kind` for that share of their time."""
    out = {}
    for rank, rows in step(made, costs(made)).items():
        holders = rows[np.isin(rows["kind"], (int(Kind.F), int(Kind.BW)))] if kind is not Kind.R else None
        holders = rows[rows["kind"] == Kind.BW] if holders is None else holders
        inner = holders.copy()
        inner["kind"] = kind
        inner["end"] = inner["start"] + ((inner["end"] - inner["start"]) * share).astype(np.int64)
        out[rank] = np.concatenate([rows, inner])
    return [out] * 3


def with_data(made: RunSpec, ns: int) -> list[dict[int, np.ndarray]]:
    out = {}
    for rank, rows in step(made, costs(made)).items():
        rows = rows.copy()
        later = rows["kind"] != Kind.STEP
        rows["start"][later] += ns
        rows["end"] += ns
        data = np.zeros(1, SPAN)
        data["kind"], data["end"], data["micro_batch"] = Kind.DATA, ns, -1
        out[rank] = np.concatenate([rows, data])
    return [out] * 3


def broken_cases() -> list[tuple[str, Case]]:
    """(the rule that has to come first, the case)."""
    pipeline, replicas, tensor = spec(pp=2, micro_batches=8), spec(dp=2), spec(tp=2)
    again, cut = spec(recompute="full"), spec(pp=2, micro_batches=8, cuts=(2,))
    rising = np.concatenate([np.linspace(5, 2, 30), np.linspace(3, 9, 10)])
    nan = np.where(np.arange(40) < 25, 3.0, np.nan)
    ended = replace(healthy(spec()), traced=[step(spec(), costs(spec())) for _ in range(2)])
    doubled = [{rank: _stretched(rows, 1.9) for rank, rows in step(replicas, costs(replicas)).items()}]
    skipped = np.minimum(np.arange(40.0), 20)
    return [
        ("disturbed", healthy(pipeline, others=0.6)),
        ("straggler", healthy(replicas, traced=slowed(replicas, 1, 2.0))),
        ("straggler", healthy(pipeline, traced=[step(pipeline, costs(pipeline, factor={1: 2.5}))] * 4)),
        ("slow_link", healthy(pipeline, traced=[step(pipeline, costs(pipeline, message=4_000))] * 3)),
        ("unbalanced_stages", healthy(cut, traced=[step(cut, costs(cut))] * 3)),
        ("few_micro_batches", _few("1f1b")),
        ("few_micro_batches", _few("naive")),
        ("exposed_reduction", healthy(replicas, traced=[step(replicas, costs(replicas, reduction=30_000))] * 3)),
        ("tensor_too_fine", healthy(tensor, traced=with_children(tensor, Kind.TP_COLLECTIVE, 0.6))),
        ("needless_recompute", healthy(again, traced=with_children(again, Kind.R, 0.4))),
        ("memory_headroom", healthy(spec(), limit=round(1.06 * _predicted(spec())[0]))),
        ("memory_surplus", healthy(replicas, peaks={0: _predicted(replicas)[0], 1: 200 << 20}, limit=8 << 30)),
        ("tiny_kernels", healthy(replicas, traced=[_scattered(replicas)] * 3)),
        ("data_stall", healthy(replicas, traced=with_data(replicas, 30_000 * US))),
        ("divergence", healthy(spec(), loss=rising)),
        ("divergence", healthy(spec(), loss=nan)),
        ("divergence", healthy(spec(), loss=np.where(np.arange(40) == 4, 10.3, 4.9))),
        ("divergence", healthy(spec("fp16"), skipped=skipped, loss_scale=np.full(40, 2.0))),
        ("scaling", healthy(replicas, traced=doubled * 3, earlier=ended)),
    ]


@pytest.mark.parametrize("rule", ["needless_recompute", "memory_surplus"])
def test_no_rule_counts_memory_for_seconds(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    cases = [case for name, case in broken_cases() if name == rule]
    assert all(rule in found(case) for case in cases)
    monkeypatch.setattr(plan_memory, "MOST_WALKED", -1)
    assert cases and not any(rule in found(case) for case in cases)


def _few(name: str) -> Case:
    made = spec(pp=4, micro_batches=4, schedule=name)
    return healthy(made)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"dp": 4}, "Raise parallel.micro_batches to 16."),
        ({"dp": 16}, "Set parallel.early_gradients to true."),  # micro-batches of one sample
        ({"dp": 16, "early_gradients": True}, ""),
    ],
)
def test_where_no_more_micro_batches_are_to_be_had_gradients_may_leave_early(split: dict[str, Any], words: str) -> None:
    found = diagnose(healthy(spec(pp=4, micro_batches=4, schedule="gpipe", **split)))
    assert [one.change for one in found if one.rule == "few_micro_batches"] == ([words] if words else [])


def test_one_micro_batch_of_the_naive_schedule_asks_for_both_more_and_another_schedule() -> None:
    (few,) = (one for one in diagnose(healthy(spec(pp=2, schedule="naive"))) if one.rule == "few_micro_batches")
    assert few.title.endswith("is bubble: 1 micro-batch on 2 stages.")
    assert few.change == "Set parallel.schedule to 1f1b and parallel.micro_batches to 4."
    assert "4 micro-batches in schedule 1F1B would save" in few.evidence


def _stretched(rows: np.ndarray, factor: float) -> np.ndarray:
    rows = rows.copy()
    for side in ("start", "end"):
        rows[side] = (rows[side] * factor).astype(np.int64)
    return rows


def _scattered(made: RunSpec) -> dict[int, np.ndarray]:
    """Operations of 100 us, with equally long gaps between them."""
    out = {}
    for rank, rows in step(made, costs(made)).items():
        rows = rows.copy()
        rows["start"] = np.arange(len(rows)) * 200_000
        rows["end"] = rows["start"] + 100_000
        rows["start"][0], rows["end"][0] = 0, len(rows) * 200_000
        out[rank] = rows
    return out


BROKEN = broken_cases()


@pytest.mark.parametrize(("rule", "case"), BROKEN, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(BROKEN)])
def test_the_right_rule_comes_first(rule: str, case: Case) -> None:
    assert found(case)[:1] == [rule]


def test_every_rule_has_a_case_that_it_finds() -> None:
    without = sorted(set(RULES) ^ {rule for rule, _ in BROKEN})
    assert not without, f"add a case of {', '.join(without)} to broken_cases() of this file"


@pytest.mark.parametrize("case", [case for _, case in BROKEN], ids=[rule for rule, _ in BROKEN])
def test_findings_are_short_sentences(case: Case) -> None:
    for finding in diagnose(case):
        assert finding.rule in RULES
        for text in (finding.title, finding.evidence, finding.change):
            assert text.endswith(".")
            assert max(len(sentence.split()) for sentence in text.split("; ")) <= 25, text
        assert finding.effect_ns >= 0 <= finding.effect_bytes


def test_large_loss_scales_have_exponents() -> None:
    skipped = np.minimum(np.arange(40.0), 20)
    found = [diagnose(healthy(spec("fp16"), skipped=skipped, loss_scale=np.full(40, last))) for last in (32768.0, 2e23)]
    assert [one[0].evidence.split(" and is ")[1] for one in found] == ["32768 now.", "2e+23 now."]


def test_a_pipeline_that_stays_full_skips_updates() -> None:
    split = {"pp": 2, "micro_batches": 8, "schedule": "1f1b-stash"}
    train = {"global_batch": 64, "steps": 40, "precision": "fp16", "clip": "stage"}
    at_once = RunSpec.model_validate({"model": MODEL, "parallel": split, "train": train})
    titles = [one.title for one in diagnose(healthy(at_once, skipped=np.minimum(np.arange(40.0) * 8, 100)))]
    assert "100 of 320 updates of the first stage were skipped: fp16 overflows." in titles
    later, from_first = np.arange(100, 140), np.full(40, 2.0)
    skipped = 60.0 + np.minimum(np.arange(40), 20)
    resumed = healthy(spec("fp16"), loss_steps=later, skipped=skipped, loss_scale=from_first)
    (own,) = [one for one in diagnose(resumed) if one.rule == "divergence"]
    assert own.title == "20 of 39 steps were skipped: fp16 overflows.", "the run before it skipped 60"
    assert own.evidence == "The loss scale began at 2 and is 2 now."
    calm = diagnose(healthy(spec("fp16"), loss_steps=later, skipped=np.full(40, 60.0), loss_scale=from_first))
    assert not [one for one in calm if one.rule == "divergence"], "it skipped nothing itself"
    few = diagnose(healthy(at_once, skipped=np.minimum(np.arange(40.0) * 8, 60)))
    assert "divergence" not in [one.rule for one in few]


def test_what_no_valid_run_has_saves_nothing_and_is_no_error() -> None:
    made = spec(pp=2, micro_batches=8, cuts=(2,))
    # As after a fault, or stored under older rules: no such spec would be accepted now.
    odd = made.model_copy(update={"train": made.train.model_copy(update={"lr": 1e6})})
    case = healthy(odd, traced=[step(made, costs(made))] * 3)
    assert case.saved(Change(balanced=True)) == 0
    assert "unbalanced_stages" not in found(case)


def test_a_fault_of_the_loss_scale_hides_no_other_finding() -> None:
    cut = spec("fp16", pp=2, micro_batches=8, cuts=(2,))
    made = broken(RunSpec.model_validate(cut.model_dump() | {"inject": [{"kind": "high_scale"}]}))
    case = healthy(made.model_copy(update={"inject": ()}), traced=[step(cut, costs(cut))] * 3)
    assert case.spec.train.loss_scale == 2.0**40
    assert "unbalanced_stages" in found(case)


def test_causes_of_a_divergence() -> None:
    nan = np.where(np.arange(40) < 25, 3.0, np.nan)
    (overflow,) = diagnose(healthy(spec("fp16"), loss=nan, skipped=np.arange(40.0), loss_scale=np.full(40, 1.0)))
    assert "overflowed in fp16" in overflow.evidence
    (rate,) = diagnose(healthy(spec(), loss=nan, grad_norm=np.where(np.arange(40) < 25, 1.0, 50.0)))
    assert "train.lr is 0.0003" in rate.evidence
    assert "step 25" in rate.title
    assert rate.evidence.startswith("It began at 3. ")
    (fell,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) < 25, 3.0 - 0.01 * np.arange(40), np.nan)))
    assert fell.evidence.startswith("It had come down to 2.76 at step 24. ")
    (jump,) = diagnose(healthy(spec(), loss=nan, lr=np.where(np.arange(40) < 24, 3e-4, 3e-2)))
    assert "jumped from 0.0003 to 0.03 at step 24" in jump.evidence
    assert "100 times" in jump.change
    (high,) = diagnose(healthy(spec(), loss=nan, lr=np.full(40, 0.3)))
    assert "The learning rate was 0.3, 1000 times train.lr" in high.evidence
    assert high.change == "Train at train.lr, 0.0003."


def test_a_loss_that_was_not_finite_and_recovered_is_not_urgent() -> None:
    falling = 5 * np.exp(-np.arange(40) / 50)
    once, twice = (np.where(np.isin(np.arange(40), steps), np.nan, falling) for steps in ([5], [0, 5]))
    (one,) = diagnose(healthy(spec(), loss=once))
    assert one.title == "The loss was not a number at step 5; it recovered." and not one.urgent
    (both,) = diagnose(healthy(spec(), loss=twice))
    assert both.title == "The loss was not a number at steps 0, 5; it recovered." and not both.urgent
    (ended,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) < 25, once, np.inf)))
    assert ended.title == "The loss is not a number from step 25 on." and ended.urgent
    rising = np.concatenate([np.linspace(5, 2, 30), np.linspace(3, 9, 10)])
    (sprung,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) == 5, np.nan, rising)))
    assert sprung.title.endswith("times its lowest: the loss has sprung up.") and sprung.urgent
    (none,) = diagnose(healthy(spec(), loss=np.full(40, np.nan)))
    assert none.title == "The loss is not a number from step 0 on."


def test_a_disturbed_run_is_not_judged_by_its_times() -> None:
    made = spec(dp=2)
    assert found(healthy(made, traced=slowed(made, 1, 2.0), others=0.5)) == ["disturbed"]


def test_one_rank_that_launches_is_no_straggler() -> None:
    replicas = spec(dp=2, micro_batches=4)
    first, *rest = diagnose(healthy(replicas, traced=crumbled(replicas, 1, 4_000 * US)))
    assert (first.rule, first.rank) == ("tiny_kernels", 1)
    assert "4 ms more for each operation of rank 1" in first.title
    assert "straggler" not in [one.rule for one in rest]


def test_one_slow_step_makes_no_straggler() -> None:
    """A run that fails early leaves only one traced step, and it is unknown whether others used its devices."""
    replicas = spec(dp=2)
    assert "straggler" not in found(healthy(replicas, traced=slowed(replicas, 1, 2.0)[:1], others=None))


def test_the_straggler_is_named() -> None:
    made = spec(dp=2)
    first: Finding = diagnose(healthy(made, traced=slowed(made, 1, 2.0)))[0]
    assert first.rank == 1
    assert first.title.startswith("2.00x as long as the others")
    assert first.effect_ns == pytest.approx(96_000 * US, rel=0.05)


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
