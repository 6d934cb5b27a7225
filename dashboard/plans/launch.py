"""*Launch this plan*: a plan of the planner as a run of this yard, if its fleet has the devices and its engine can run
it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.fleet.words import apart_text
from dashboard.ledger.fleet_page import run_address
from dashboard.runs.form.form_words import first_error
from dashboard.runs.waiting.fleet_checks import Capacity, capacity
from parallel_core.analysis.quantities import count_text
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import Transformer
from parallel_core.plan.cluster.plans import STATES, Plan
from parallel_core.rules import field_errors
from parallel_core.schedule.traits import TRAITS, flushes
from parallel_core.spec import RunSpec


def launch(job: Job, plan: Plan) -> tuple[str, str]:
    """(address of New run with this plan, '') or ('', why this yard cannot run it)."""
    offered = _offered(plan.devices)
    if plan.devices > offered.total:
        takes = f"the plan takes {count_text(plan.devices)}.{apart_text(offered.apart)}"
        return "", f"This yard has {offered.text if offered.total else 'no devices'}, {takes}"
    lacks = [word for word, on in (("adapters", job.adapters), ("offload", plan.offload)) if on]
    if lacks:
        return "", f"This yard's engine has no {' and no '.join(lacks)}."
    try:
        asked = run_of(job, plan, offered.kind).model_dump(mode="json", exclude_defaults=True)
        return run_address(asked), ""
    except ValidationError as error:
        return "", f"This yard cannot run it: {first_error(field_errors(error))}"


def _offered(devices: int) -> Capacity:
    """What one run can have of GPUs if that is enough, else of CPU devices if these are, else of what there is more
    of."""
    fleet = FleetSnapshot.now()
    kinds = [capacity(kind, fleet=fleet) for kind in ("cuda", "cpu")]
    return next((one for one in kinds if devices <= one.total), max(kinds, key=lambda one: one.total))


def run_of(job: Job, plan: Plan, device: str) -> RunSpec:
    """The plan as a RunSpec on devices of that kind, without fields that change nothing.

    Raises ValidationError if the engine has no such run.
    """
    parallel: dict[str, Any] = {
        "dp": plan.dp,
        "tp": plan.tp,
        "pp": plan.pp,
        "schedule": plan.schedule,
        "micro_batches": max(1, job.batch // (plan.dp * plan.micro_batch)),
        "sequence": plan.sequence_parallel and plan.tp > 1,
        "tensor_split": "columns" if plan.by_columns else "pairs",
        "recompute": plan.recompute,
        "zero": plan.zero if plan.dp > 1 else 0,
    }
    if TRAITS[plan.schedule].most is None:
        parallel["chunks"] = plan.chunks
    precision = "fp32" if plan.precision == "fp32" else "bf16"
    train = {"global_batch": job.batch, "precision": precision, "device": device}
    if (optimizer := STATES[plan.state].optimizer_name) != "Adam":
        train |= {"optimizer": "sgd", "momentum": 0.9 if optimizer != "SGD" else 0.0}
    if not flushes(plan.schedule):
        train["clip"] = "stage"  # without a flush there is no other clipping
    return RunSpec.model_validate({"model": _model(job.model), "parallel": parallel, "train": train})


def _model(model: Transformer) -> dict[str, Any]:
    sizes = {name: getattr(model, name) for name in ("layers", "hidden", "heads", "seq", "vocab", "ffn", "tied")}
    if model.kv_heads != model.heads:
        sizes["kv_heads"] = model.kv_heads
    if model.gated:
        sizes |= {"activation": "swiglu", "norm": "rmsnorm", "positions": "rope", "bias": False}
    return sizes
