"""Every rule finds its fault and describes it in short sentences, and no rule reports anything for a healthy run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.diagnosis import RULES, Case, checked, diagnose, judged_by_spans, unjudged
from parallel_core.analysis.diagnosis.case import REPLAYED
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.plan import memory as plan_memory
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.peak import by_stage
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from parallel_core.spec import RunSpec
from tests.parallel_core.test_replay import step

US = 1_000
TENS = 10 * US
"""The unit of the costs below: beside these, what an operation costs whatever its size is little."""
MODEL = {"layers": 8, "hidden": 64, "heads": 4, "seq": 64, "vocab": 64}


def spec(precision: str = "fp32", **split: Any) -> RunSpec:
    train = {"global_batch": 64, "steps": 40, "precision": precision}
    return RunSpec.model_validate({"model": MODEL, "parallel": split, "train": train})


def costs(made: RunSpec, message: int = 20, reduction: int = 400, factor: dict[int, float] | None = None) -> Costs:
    """Costs in which every stage takes time in proportion to its FLOPs per tensor rank, in TENS, times `factor` for
    that stage."""
    weights, layout = flop_weights(made.model), Layout.of(made)
    units, m = layout.stage_units, made.parallel.micro_batches * made.parallel.dp
    table: dict[tuple[int, Kind], int] = {}
    for stage, own in enumerate(units):
        f = sum(weights[unit] for unit in own) / sum(weights) * 8_000 * 8 / m * (factor or {}).get(stage, 1.0)
        f /= layout.widths[layout.place(stage)]
        again = 1 if made.parallel.recompute != "none" else 0
        ns = {Kind.F: f, Kind.B: f, Kind.W: f, Kind.BW: (2 + again) * f, Kind.ALLREDUCE: reduction, Kind.OPT_STEP: 300}
        table |= {(stage, kind): round(value * TENS) for kind, value in ns.items()}
    return Costs(table, message=message * TENS, norm=True)


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


STREAM = spec().model_copy(
    update={"parallel": spec(pp=2, micro_batches=8).parallel.model_copy(update={"schedule": "1f1b-stash"})}
)
STREAM_WHY = "a pipeline that never flushes cannot be replayed"
LONG, LIMIT = "the step is too long to be replayed", "no memory limit is known"
ONE_STEP = "one traced step is not enough for some"


def aside(kinds: Sequence[Kind]) -> Case:
    """Replicas whose steps have a span of each of these `kinds` of gathers."""
    made = spec(dp=2, zero=3)
    gathers = np.zeros(len(kinds), SPAN)
    gathers["kind"], gathers["micro_batch"] = kinds, -1
    traced = {rank: np.concatenate([rows, gathers]) for rank, rows in step(made, costs(made)).items()}
    return healthy(made, traced=[traced] * 3)


@pytest.mark.parametrize(
    ("case", "lacks", "why"),
    [
        (healthy(spec()), lambda _: False, ""),
        (healthy(STREAM), lambda rule: rule.replays, STREAM_WHY),
        (healthy(spec(), limit=None), lambda rule: rule.limit, LIMIT),
        (healthy(STREAM, limit=None), lambda rule: rule.replays or rule.limit, f"{STREAM_WHY} and {LIMIT}"),
        (replace(healthy(spec()), traced=healthy(spec()).traced[:1]), lambda rule: rule.steps > 1, ONE_STEP),
        (aside([Kind.UNSHARD_FLIGHT]), lambda rule: rule.gathers, "waits for gathers of parameters count as work"),
        (aside([Kind.UNSHARD_FLIGHT, Kind.UNSHARD]), lambda _: False, ""),
        (healthy(spec(), traced=()), lambda rule: rule.replays or rule.steps, "no step has been traced"),
        (healthy(spec(), traced=[{0: np.zeros(REPLAYED + 1, SPAN)}] * 2), lambda rule: rule.replays, LONG),
    ],
    ids=[
        "all",
        "no flush",
        "no limit",
        "neither",
        "one step",
        "aside",
        "awaited",
        "no step",
        "too long",
    ],
)
def test_rules_that_cannot_judge_are_not_counted_and_it_says_why(
    case: Case, lacks: Callable[[Any], bool], why: str
) -> None:
    able = [rule for rule in RULES.values() if not lacks(rule)]
    assert (len(able) < len(RULES)) == bool(why)
    by_spans = sum(rule.steps > 0 for rule in able) + 1  # and whether other processes disturbed it
    assert (checked(case), judged_by_spans(case), unjudged(case)) == (len(able), by_spans, why)


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
        ("tiny_kernels", healthy(replicas, traced=[scattered(replicas)] * 3)),
        ("data_stall", healthy(replicas, traced=with_data(replicas, 30_000 * TENS))),
        ("divergence", healthy(spec(), loss=rising)),
        ("divergence", healthy(spec(), loss=nan)),
        ("divergence", healthy(spec(), loss=np.where(np.arange(40) == 4, 10.3, 4.9))),
        ("divergence", healthy(spec("fp16"), skipped=skipped, loss_scale=np.full(40, 2.0))),
        (
            "overfitting",
            healthy(spec(), held_out_steps=np.array([9, 19, 29, 39]), held_out=np.array([3.0, 2.5, 2.6, 2.7])),
        ),
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
    made = spec(pp=4, micro_batches=4, schedule="gpipe", **split)
    long = step(made, costs(made, factor=dict.fromkeys(range(4), 30.0)))  # beside which launches are nothing
    found = diagnose(healthy(made, traced=[long] * 3))
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


def scattered(made: RunSpec) -> dict[int, np.ndarray]:
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


def test_little_memory_left_is_told_with_what_is_above_the_bound() -> None:
    [finding] = diagnose(healthy(spec(), peaks={0: 95 << 20}, limit=100 << 20))
    assert finding.title == "5 MiB of memory is left on rank 0."
    assert (finding.rule, finding.effect_bytes) == ("memory_headroom", 3 << 20)


def test_the_slowest_link_is_told_with_the_time_of_its_messages() -> None:
    (slow,) = (one for rule, case in BROKEN if rule == "slow_link" for one in diagnose(case) if one.rule == rule)
    assert slow.evidence.startswith("The link from rank 1 to rank 0 is slowest: 40 ms for ")


def test_two_micro_batches_of_the_naive_schedule_would_overlap_in_another() -> None:
    first = diagnose(healthy(spec(pp=2, micro_batches=2, schedule="naive")))[0]
    assert first.title.endswith("is bubble: the naive schedule runs one stage at a time on 2 stages.")


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
