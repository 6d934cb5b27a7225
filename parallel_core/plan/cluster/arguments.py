"""A plan as command-line arguments of torchrun and of Megatron-LM's `pretrain_gpt.py`.

Combinations of arguments follow its `megatron/training/arguments.py` @8c090f2 (FSDP: its user guide @8c090f2).
"""

from __future__ import annotations

from collections.abc import Callable

from parallel_core.plan.cluster.hardware import Cluster, Device
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import STATES, Plan
from parallel_core.schedule.traits import flushes

ADAPTERS = "Adapters on a frozen base are no argument of Megatron-LM."


def torchrun(cluster: Cluster, plan: Plan) -> list[str]:
    """The launcher's command line: one process a device, the same number on each host."""
    here = max(n for n in range(1, min(plan.devices, cluster.per_host) + 1) if plan.devices % n == 0)
    hosts = plan.devices // here
    more = ["--rdzv-backend=c10d", "--rdzv-endpoint=$HEAD:29500"] if hosts > 1 else ["--standalone"]
    return [
        *_environment(plan),
        "torchrun",
        f"--nnodes={hosts}",
        f"--nproc-per-node={here}",
        *more,
        "pretrain_gpt.py",
    ]


def _environment(plan: Plan) -> list[str]:
    """Megatron-LM requires this variable for tensor parallelism on GPUs up to Hopper, and refuses it with its FSDP."""
    return ["CUDA_DEVICE_MAX_CONNECTIONS=1"] * (plan.tp > 1 and plan.zero < 2)


def to_time(job: Job) -> str:
    """Arguments that `megatron` leaves to the user, here for timing the plan without data. NullTokenizer adds an
    end-of-document token of its own to the vocabulary."""
    vocabulary = f"--tokenizer-type NullTokenizer --vocab-size {job.model.vocab - 1}"
    return f"--mock-data --split 99,1,0 {vocabulary} --lr 1e-4 --train-iters 20"


def megatron(job: Job, cluster: Cluster, plan: Plan) -> tuple[list[str], list[str]]:
    """(arguments, sentences on what Megatron-LM has no argument for)."""
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
        out += ["--attention-dropout 0", "--hidden-dropout 0"]
    if not model.tied:
        out.append("--untie-embeddings-and-output-weights")
    flags = [*out, *_pipeline(job, plan), *_activations(plan), *_data_parallel(job, plan)]
    flags += _optimizer(plan) + _numbers(job, cluster.device, plan)
    return flags, [*_missing(job, cluster.device, plan), *[ADAPTERS] * (job.adapters > 0)]


def _pipeline(job: Job, plan: Plan) -> list[str]:
    out = []
    uneven = job.model.layers % (plan.pp * plan.chunks)
    if plan.schedule == "interleaved" and plan.pp > 1:
        out.append(f"--num-layers-per-virtual-pipeline-stage {-(-job.model.layers // (plan.pp * plan.chunks))}")
    if plan.pp > 1 and plan.schedule in _FORK:
        return out + _FORK[plan.schedule](plan.pp) + ["--allow-padding-num-layers"] * bool(uneven)
    if uneven:
        out += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    return out


_FORK: dict[str, Callable[[int], list[str]]] = {
    "zb-h1": lambda stages: ["--enable-zero-bubble", f"--zero-bubble-max-pending-backward {stages}"],
    "zb-h2": lambda stages: ["--enable-zero-bubble", f"--zero-bubble-max-pending-backward {2 * stages}"],
    "zb-v": lambda stages: ["--zero-bubble-v-schedule"],
}
"""Arguments of the zero-bubble fork, as named in its README."""


def _activations(plan: Plan) -> list[str]:
    out = ["--sequence-parallel"] * plan.sequence_parallel
    if plan.recompute == "selective":
        out.append("--recompute-activations")
    if plan.recompute == "full":
        out += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    return out


def _data_parallel(job: Job, plan: Plan) -> list[str]:
    overlapped = job.software.overlap_dp and plan.dp > 1
    out = ["--use-distributed-optimizer"] * (plan.zero > 0 or plan.offload)
    out += ["--overlap-grad-reduce"] * (overlapped or plan.zero > 1)
    out += ["--overlap-param-gather"] * (plan.zero > 1 or (overlapped and plan.zero == 1))
    if plan.zero > 1:
        kind = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        out += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {kind}"]
        out += ["--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor"]
    if plan.offload:
        out += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]
    return out


def _optimizer(plan: Plan) -> list[str]:
    """Arguments for SGD, which Megatron-LM refuses together with its distributed optimizer: `_no_state` says so."""
    name = STATES[plan.state].optimizer_name
    return [] if name == "Adam" else ["--optimizer sgd", f"--sgd-momentum {0.9 if name != 'SGD' else 0}"]


def _numbers(job: Job, device: Device, plan: Plan) -> list[str]:
    """Arguments for precision, and for the bytes a parameter takes. With --bf16 Megatron-LM sums gradients in fp32
    unasked, with --fp16 it does not."""
    if plan.precision == "fp32":
        return []
    if not device.bf16:
        return ["--fp16", *["--accumulate-allreduce-grads-in-fp32"] * (plan.state not in (16, 20))]
    out = ["--fp16" if plan.state == 20 else "--bf16"]
    if plan.state == 16:
        out += ["--grad-reduce-in-bf16", *["--main-grads-dtype bf16"] * _aware(plan)]
        out += ["--use-precision-aware-optimizer"] * (_aware(plan) and not plan.offload)
    return out + ["--use-flash-attn"] * job.software.flash


def _aware(plan: Plan) -> bool:
    """Whether the optimizer can take 16-bit gradients as they are: only the distributed optimizer does."""
    return plan.zero > 0 or plan.offload


def _missing(job: Job, device: Device, plan: Plan) -> list[str]:
    columns = ["Megatron-LM splits linear layers in column-row pairs, not all by columns."] * plan.by_columns
    return [*columns, *_no_state(device, plan), *_no_kernels(job, device, plan), *_no_schedule(plan)]


def _no_state(device: Device, plan: Plan) -> list[str]:
    """Sentences on bytes a parameter that no argument gives."""
    out = []
    if plan.precision != "fp32" and plan.state == 8:
        out.append("Megatron-LM keeps master weights: 8 bytes a parameter are none of its arguments, these take 18.")
    if plan.precision != "fp32" and plan.state == 16 and not device.bf16:
        out.append("Megatron-LM copies fp16 gradients to fp32 for its optimizer: these take 20 bytes.")
    elif plan.precision != "fp32" and plan.state == 16 and not _aware(plan):
        out.append("Without ZeRO Megatron-LM copies the gradients to fp32 for its optimizer: these take 20 bytes.")
    if STATES[plan.state].optimizer_name != "Adam" and _aware(plan):
        out.append("Megatron-LM shards and offloads the states of Adam only: it refuses SGD with these arguments.")
    if plan.offload and not plan.zero and plan.dp > 1:
        out.append("Megatron-LM offloads a distributed optimizer only: with these arguments ZeRO-1 is on.")
    return out


def _no_kernels(job: Job, device: Device, plan: Plan) -> list[str]:
    """Sentences on what a device before Ampere lacks: bf16, and FlashAttention 2 (its README, installation)."""
    if device.bf16 or plan.precision == "fp32":
        return []
    flash = "FlashAttention 2 needs an Ampere GPU or newer: without it attention keeps more memory than predicted, "
    flash += "unless it is recomputed."
    return [f"{device.name} has no bf16: these train in fp16.", *[flash] * job.software.flash]


def _no_schedule(plan: Plan) -> list[str]:
    name = plan.schedule
    if plan.pp == 1 or name in ("1f1b", "interleaved"):
        return []
    if name in _FORK:
        return [f"{name} needs the zero-bubble fork of Megatron-LM (sail-sg/zero-bubble-pipeline-parallelism)."]
    if not flushes(name):
        return [f"{name} is asynchronous; Megatron-LM runs 1F1B with a flush instead."]
    return [f"{'GPipe' if name == 'gpipe' else name} is not one of its schedules; it runs 1F1B."]
