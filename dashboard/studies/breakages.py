"""Scenarios that break: each is a small study that reproduces a symptom on this fleet, and proves the fix.

Three runs: before, broken, proof. The broken one has a real fault injected (and is marked as broken), or is split in a
way that is known to be slow; the proof has what the diagnosis recommends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.feasible import feasible
from dashboard.studies.new.variants import Plan, Skipped, Spec, Variant

KIND = "postmortem"
BEFORE, BROKEN, PROOF = range(3)
NAMES = ("Before", "Broken", "Proof")
ROLES = ("before", "broken", "proof")
"""Keys of `charts.loss.ROLES`."""
TIMED_STEPS = 30
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128}
BATCH = 16
Part = dict[str, Any]


@dataclass(frozen=True)
class Breakage:
    """`runs` = the parts of the specs in which the runs before, broken and proof differ: parallel, and faults in
    `inject`.

    `about` = the rules whose findings explain the symptom, in the order in which the post-mortem tells them.
    """

    key: str
    title: str
    symptom: str
    about: tuple[str, ...]
    runs: tuple[Part, Part, Part]


BREAKAGES = (
    Breakage(
        "doubled",
        "Replicas doubled, speed and loss lost",
        "Replicas and micro-batches were doubled: each device does less, and the loss springs up.",
        ("divergence", "exposed_reduction"),
        (
            {"parallel": {"dp": 1, "micro_batches": 2}},
            {
                "parallel": {"dp": 2, "micro_batches": 4},
                "inject": [{"kind": "slow_group", "ms": 100}, {"kind": "high_lr", "factor": 300, "step": 18}],
            },
            {"parallel": {"dp": 2, "micro_batches": 1}},
        ),
    ),
    Breakage(
        "nan",
        "NaN, and devices that idle",
        "The loss is NaN after some steps, and the devices of the pipeline are idle for much of each step.",
        ("divergence", "few_micro_batches"),
        (
            {"parallel": {"pp": 1}},
            {
                "parallel": {"pp": 2, "micro_batches": 2},
                "inject": [{"kind": "high_lr", "factor": 1e30, "step": 12}],
            },
            {"parallel": {"pp": 2, "micro_batches": 8}},
        ),
    ),
    Breakage(
        "naive",
        "Layers split, nothing faster",
        "The layers were spread over two devices, and a step takes as long as on one.",
        ("few_micro_batches",),
        (
            {"parallel": {"pp": 1}},
            {"parallel": {"pp": 2, "schedule": "naive", "micro_batches": 8}},
            {"parallel": {"pp": 2, "schedule": "1f1b", "micro_batches": 8}},
        ),
    ),
)
BY_KEY = {breakage.key: breakage for breakage in BREAKAGES}


def role_of(run: Run) -> str:
    """The role of a run in such a study (ROLES); "" for any other run."""
    return ROLES[run.position] if run.study is not None and run.study.kind == KIND and run.position < len(ROLES) else ""


def plan(breakage: Breakage) -> Plan:
    """The three runs. They use CPU devices, because faults of collectives can be injected only there."""
    kept: list[Variant] = []
    skipped: list[Skipped] = []
    for name, own in zip(NAMES, breakage.runs, strict=True):
        base: Spec = {
            "model": MODEL,
            "train": {"global_batch": BATCH, "stop_on_nan": False},
            "trace": {"trace_every": 5},
        }
        made = variants.valid({**variants.with_steps(base, TIMED_STEPS), **own}, name)
        if isinstance(made, Skipped):
            skipped.append(made)
        else:
            kept.append(Variant(f"{name}: {made.name}", made.spec))
    return Plan(tuple(kept), tuple(skipped))


def offered() -> list[tuple[Breakage, str]]:
    """Every scenario, with why this fleet cannot run all three of its runs; '' if it can."""
    fleet = FleetSnapshot.now()
    return [(breakage, _refusal(feasible(plan(breakage), fleet))) for breakage in BREAKAGES]


def _refusal(made: Plan) -> str:
    return f"{made.skipped[0].name}: {made.skipped[0].reason}" if made.skipped else ""


def create(*, owner: Any, breakage: Breakage) -> Study:
    """Queues the study. Raises Invalid if this fleet cannot run all three, PermissionDenied as `services.create`."""
    made = feasible(plan(breakage))
    if why := _refusal(made):
        raise Invalid({"plan": why})
    asked = {"scenario": breakage.key, "timed_steps": TIMED_STEPS}
    base = {"model": MODEL, "train": {"global_batch": BATCH}}
    return services.create(owner=owner, name=breakage.title, new=services.NewStudy(KIND, base, made, asked))
