"""The planner against published measurements: each row with prediction, measurement and error.

Errors are (predicted - measured) / measured. Rows that the constants were fitted on are marked; all others are held
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from parallel_core.plan.cluster import activations, memory, step, work
from parallel_core.plan.cluster.efficiency import Efficiency, Machine, fitted
from parallel_core.plan.cluster.hardware import GIB, clusters
from parallel_core.plan.cluster.job import MEGATRON_2021, MEGATRON_2022, Job
from parallel_core.plan.cluster.model import Transformer
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.plan.cluster.store import rows, table


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A published step time: `key` names the row, `seconds` is the measurement."""

    key: str
    job: Job
    plan: Plan
    seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; `fitted` if the constants were fitted on it."""

    key: str
    measured: float
    predicted: float
    unit: str
    source: str
    fitted: bool = False

    @property
    def error(self) -> float:
        """Relative error, (predicted - measured) / measured."""
        return self.predicted / self.measured - 1


def step_times() -> list[Row]:
    """The 18 rows: Korthikanti et al. 2022, Table 5 (8), and Narayanan et al. 2021b, Table 1 (10)."""
    found = []
    for case in cases():
        seconds = predicted(case, fitted())
        found.append(Row(case.key, case.seconds, seconds, "s", case.source, case.key in fitted_rows()))
    return found


def predicted(case: PublishedStep, efficiency: Efficiency) -> float:
    """Seconds of a step on Selene, the cluster that both papers used."""
    return float(step.of(case.job, clusters()["selene"], Plans.of([case.plan]), efficiency).total[0])


def fitted_rows() -> tuple[str, ...]:
    """Keys of the rows that the constants were fitted on."""
    return tuple(table("efficiency")["fitted_on"])


@lru_cache(maxsize=1)
def cases() -> tuple[PublishedStep, ...]:
    """The published step times as jobs and plans."""
    return (*_korthikanti(), *_megatron())


def _korthikanti() -> list[PublishedStep]:
    found = []
    for row in rows("korthikanti_2022"):
        job = Job(_gpt(row), row["batch"], MEGATRON_2022)
        for key, name, recompute, split in (
            ("full_s", "full recompute", "full", False),
            ("present_s", "selective + SP", "selective", True),
        ):
            plan = _plan(row, 1, recompute=recompute, sequence_parallel=split)
            source = "Korthikanti et al. 2022, Table 5"
            found.append(PublishedStep(f"{row['model']}, {row['gpus']} GPUs, {name}", job, plan, row[key], source))
    return found


def _megatron() -> list[PublishedStep]:
    """Step times computed from the achieved FLOP/s by equation 3 of the paper."""
    found = []
    for row in rows("megatron_2021"):
        model = _gpt(row)
        b, s, h, n = row["batch"], model.seq, model.hidden, model.layers
        flops = 96 * b * s * n * h * h * (1 + s / (6 * h) + model.vocab / (16 * n * h))
        seconds = flops / (row["tflops_per_gpu"] * 1e12 * row["gpus"])
        # fp16 in 2021: gradients are reduced in 16 bits and copied to fp32 for the step, 20 bytes a parameter.
        plan = _plan(row, row["dp"], recompute="full", state=20)
        key = f"{row['model']}, {row['gpus']} GPUs"
        found.append(PublishedStep(key, Job(model, b, MEGATRON_2021), plan, seconds, "Narayanan et al. 2021b, Table 1"))
    return found


def _gpt(row: dict[str, Any]) -> Transformer:
    h, a = row["hidden"], row["heads"]
    return Transformer(row["model"], h, row["layers"], a, a, 4 * h, 51200, row.get("seq", 2048))


def _plan(row: dict[str, Any], dp: int, **more: Any) -> Plan:
    schedule = "interleaved" if row["chunks"] > 1 else "1f1b"
    return Plan(dp, row["tp"], row["pp"], row["chunks"], row["micro_batch"], schedule, **more)


def layer_times() -> list[Row]:
    """Korthikanti et al. 2022, Table 4: forward and backward of one layer of the 22 B model, in ms; none was fitted."""
    row = rows("korthikanti_2022")[0]
    job = Job(_gpt(row), row["batch"], MEGATRON_2022)
    kinds = [("none", False), ("none", True), ("full", False), ("selective", False), ("selective", True)]
    plans = Plans.of([_plan(row, 1, recompute=kind, sequence_parallel=split) for kind, split in kinds])
    found = work.layer(job, plans, Machine(clusters()["selene"], fitted(), plans))
    ahead = found.forward + found.collective_forward
    out = []
    for i, line in enumerate(table("korthikanti_2022")["layer_22B"]):
        back = float((found.total - ahead)[i])
        for word, measured, seconds in (("forward", line["fwd"], float(ahead[i])), ("backward", line["bwd"], back)):
            out.append(
                Row(f"{line['case']}, {word}", measured, seconds * 1e3, "ms", "Korthikanti et al. 2022, Table 4")
            )
    return out


def with_replicas() -> list[Row]:
    """Korthikanti et al. 2022, section 6.3: 530 B with 8 replicas, whose gradient reduction is not overlapped."""
    (line,) = table("korthikanti_2022")["replicas"]
    row = next(row for row in rows("korthikanti_2022") if row["model"] == line["model"])
    job = Job(_gpt(row), row["batch"] * line["dp"], MEGATRON_2022)
    plan = _plan(row, line["dp"], recompute="selective", sequence_parallel=True)
    source = "Korthikanti et al. 2022, section 6.3"
    case = PublishedStep(f"530B, {line['gpus']} GPUs, 8 replicas", job, plan, line["present_s"], source)
    return [Row(case.key, case.seconds, predicted(case, fitted()), "s", case.source)]


def figure_1() -> list[Row]:
    """Korthikanti et al. 2022, Figure 1: state (18 bytes for each element of the layers' matrices) and activations of
    the first stage (equation 5), in GiB."""
    out = []
    for row in rows("korthikanti_2022"):
        model, source = _gpt(row), "Korthikanti et al. 2022, Figure 1"
        state = 18 * model.layers * model.layer_matrices / (row["tp"] * row["pp"]) / GIB
        found = first_stage(row, [("none", False), ("selective", True)])
        values = zip(("state", "baseline", "present"), (state, *found), strict=True)
        words = {
            "state": "weights and optimizer",
            "baseline": "activations, TP",
            "present": "activations, SP + selective",
        }
        out += [Row(f"{row['model']}, {words[n]}", row[f"fig1_{n}_GiB"], v, "GiB", source) for n, v in values]
    return out


def figure_7() -> list[Row]:
    """Korthikanti et al. 2022, Figure 7: activations in percent of the tensor-parallel baseline (read off the
    figure)."""
    names = {
        "sequence_parallel": ("SP", "none", True),
        "selective": ("selective", "selective", False),
        "seq_plus_selective": ("SP + selective", "selective", True),
        "full_recompute": ("full recompute", "full", False),
    }
    out = []
    for row in rows("korthikanti_2022"):
        base, *found = first_stage(row, [("none", False), *((kind, split) for _, kind, split in names.values())])
        for (key, (word, *_)), value in zip(names.items(), found, strict=True):
            percent, source = row["fig7_percent"][key], "Korthikanti et al. 2022, Figure 7"
            out.append(Row(f"{row['model']}, {word}", percent, 100 * value / base, "%", source))
    return out


def first_stage(row: dict[str, Any], kinds: Sequence[tuple[str, bool]]) -> list[float]:
    """GiB of the layers' activations on the first stage, for each (recomputation, sequence parallel) in `kinds`."""
    job = Job(_gpt(row), row["batch"], MEGATRON_2022)
    plans = Plans.of([_plan(row, 1, recompute=kind, sequence_parallel=split) for kind, split in kinds])
    layers = memory.layers_per_chunk(job, plans) * plans.chunks
    kept = activations.of_layer(job, plans).kept * activations.in_flight(job, plans, 0) * layers
    return [float(x) / GIB for x in kept]


@dataclass(frozen=True, slots=True)
class Summary:
    """Relative errors of some rows: how many rows, mean and largest absolute error, and the signed mean (`bias`)."""

    count: int
    mean: float
    worst: float
    bias: float


def summary(found: Sequence[Row]) -> Summary:
    """Summary of the errors of these rows; at least one."""
    errors = [row.error for row in found]
    n = len(errors)
    return Summary(n, sum(map(abs, errors)) / n, max(map(abs, errors)), sum(errors) / n)
