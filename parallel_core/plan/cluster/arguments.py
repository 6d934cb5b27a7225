"""A plan as the arguments of torchrun and of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import Plan

ADAPTERS = "Adapters on a frozen base are no argument of Megatron-LM."


def torchrun(cluster: Cluster, plan: Plan) -> list[str]:
    """The launcher: one process a device."""
    here = min(plan.devices, cluster.per_host)
    hosts = -(-plan.devices // here)
    more = ["--rdzv-backend=c10d", "--rdzv-endpoint=$HEAD:29500"] if hosts > 1 else ["--standalone"]
    return ["torchrun", f"--nnodes={hosts}", f"--nproc-per-node={here}", *more, "pretrain_gpt.py"]


def megatron(job: Job, plan: Plan) -> tuple[list[str], list[str]]:
    """(arguments, what Megatron-LM has no argument for)."""
    model = job.model
    out = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.ffn}",
        f"--num-attention-heads {model.heads}",
        f"--seq-length {model.seq}",
        f"--max-position-embeddings {model.seq}",
        f"--tensor-model-parallel-size {plan.tp}",
        f"--pipeline-model-parallel-size {plan.pp}",
        f"--micro-batch-size {plan.micro_batch}",
        f"--global-batch-size {job.batch}",
    ]
    if model.kv_heads != model.heads:
        out += ["--group-query-attention", f"--num-query-groups {model.kv_heads}"]
    if model.gated:
        out += ["--swiglu", "--disable-bias-linear", "--normalization RMSNorm", "--position-embedding-type rope"]
    if not model.tied:
        out.append("--untie-embeddings-and-output-weights")
    return out + _split(job, plan), [*_missing(plan), *[ADAPTERS] * (job.adapters > 0)]


def _split(job: Job, plan: Plan) -> list[str]:
    out = []
    if plan.schedule == "interleaved" and plan.pp > 1:
        out.append(f"--num-layers-per-virtual-pipeline-stage {-(-job.model.layers // (plan.pp * plan.chunks))}")
    if job.model.layers % (plan.pp * plan.chunks):
        out += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    if plan.sequence_parallel:
        out.append("--sequence-parallel")
    if plan.recompute == "selective":
        out.append("--recompute-activations")
    if plan.recompute == "full":
        out += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    if plan.zero == 1:
        out += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    if plan.zero > 1:
        kind = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        out += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {kind}"]
    if plan.offload:
        out.append("--optimizer-cpu-offload")
    if plan.precision != "fp32":
        out.append("--bf16")
    if job.software.flash:
        out.append("--use-flash-attn")
    return out


def _missing(plan: Plan) -> list[str]:
    columns = ["Megatron-LM splits linear layers in column-row pairs, not all by columns."] * plan.by_columns
    return columns + _no_schedule(plan)


def _no_schedule(plan: Plan) -> list[str]:
    if plan.pp > 1 and plan.schedule.startswith("zb"):
        return [
            f"{plan.schedule} needs the zero-bubble fork of Megatron-LM (sail-sg/zero-bubble-pipeline-parallelism)."
        ]
    if plan.pp > 1 and plan.schedule in ("1f1b-stash", "1f1b-2bw"):
        return [f"{plan.schedule} is asynchronous; Megatron-LM runs 1F1B with a flush instead."]
    return ["GPipe is not one of its schedules; it runs 1F1B."] if plan.schedule == "gpipe" and plan.pp > 1 else []
