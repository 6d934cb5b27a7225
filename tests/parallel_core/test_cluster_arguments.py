"""A plan as a command line: as many processes as devices, and every argument comes with those it requires."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from parallel_core.plan.cluster.arguments import megatron, to_time, torchrun
from parallel_core.plan.cluster.hardware import clusters, devices
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plans import Plan
from parallel_core.plan.cluster.search import Space, search
from parallel_core.schedule.traits import TRAITS

SELENE = clusters()["selene"]
JOB = Job(presets()["gpt-22b"], 64)
ASKS = {
    "--use-megatron-fsdp": (
        "--use-distributed-optimizer",
        "--ckpt-format fsdp_dtensor",
        "--no-gradient-accumulation-fusion",
        "--overlap-param-gather",
    ),
    "--overlap-param-gather": ("--use-distributed-optimizer", "--overlap-grad-reduce"),
    "--optimizer-cpu-offload": ("--use-precision-aware-optimizer",),
    "--use-precision-aware-optimizer": ("--use-distributed-optimizer",),
    "--main-grads-dtype bf16": ("--grad-reduce-in-bf16", "--use-precision-aware-optimizer"),
}
"""Arguments that Megatron-LM asserts, or that its guide requires, in combination with another argument."""


def flags(plan: Plan, job: Job = JOB) -> list[str]:
    return megatron(job, SELENE, plan)[0]


@pytest.mark.parametrize("state", [8, 16, 18, 20])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_no_argument_lacks_what_it_asks_for(zero: int, offload: bool, state: int) -> None:
    made = flags(Plan(dp=8, tp=2, pp=1, zero=zero, offload=offload, state=state))
    assert len(made) == len(set(made))
    for flag, needed in ASKS.items():
        assert flag not in made or set(needed) <= set(made), flag


def test_each_argument_that_asks_for_others_is_used_by_some_plan() -> None:
    kinds = product((0, 1, 2, 3), (False, True), (8, 16, 18, 20))
    made = {
        flag for zero, offload, state in kinds for flag in flags(Plan(dp=8, zero=zero, offload=offload, state=state))
    }
    assert set(ASKS) <= made


@pytest.mark.parametrize("plan", [Plan(dp=12), Plan(dp=3, tp=4), Plan(tp=48), Plan(dp=5, pp=7), Plan(dp=64, tp=8)])
def test_as_many_processes_as_devices(plan: Plan) -> None:
    line = torchrun(SELENE, plan)
    hosts, here = (
        int(next(w for w in line if w.startswith(f"--{n}=")).split("=")[1]) for n in ("nnodes", "nproc-per-node")
    )
    assert hosts * here == plan.devices and here <= SELENE.per_host
    assert ("--standalone" in line) == (hosts == 1)


def test_one_connection_under_tensor_parallelism_but_not_under_fsdp() -> None:
    found = {(tp, zero): torchrun(SELENE, Plan(dp=8, tp=tp, zero=zero))[0] for tp in (1, 2) for zero in (1, 3)}
    assert found.pop((2, 1)) == "CUDA_DEVICE_MAX_CONNECTIONS=1"
    assert set(found.values()) == {"torchrun"}


def test_bytes_of_a_parameter_are_asked_for_or_said_to_be_others() -> None:
    assert "--fp16" in flags(Plan(dp=8, state=20)) and "--bf16" not in flags(Plan(dp=8, state=20))
    assert "--grad-reduce-in-bf16" not in flags(Plan(dp=8, zero=1))
    assert {"--grad-reduce-in-bf16", "--main-grads-dtype bf16"} <= set(flags(Plan(dp=8, zero=1, state=16)))
    said = {state: " ".join(megatron(JOB, SELENE, Plan(dp=8, state=state))[1]) for state in (8, 16, 18, 20)}
    assert "18" in said[8] and "20 bytes" in said[16] and not said[18] and not said[20]
    whole = flags(Plan(dp=8, precision="fp32"))
    assert not {"--bf16", "--fp16", "--use-flash-attn"} & set(whole)


@pytest.mark.parametrize(("state", "momentum"), [(10, "0"), (14, "0.9")])
def test_sgd_is_asked_for_and_where_megatron_shards_adam_alone_that_is_said(state: int, momentum: str) -> None:
    made, said = megatron(JOB, SELENE, Plan(dp=8, state=state))
    assert {"--optimizer sgd", f"--sgd-momentum {momentum}"} <= set(made) and not said
    assert "--optimizer sgd" not in flags(Plan(dp=8))
    for sharded in (Plan(dp=8, zero=1, state=state), Plan(dp=8, offload=True, state=state)):
        assert "states of Adam only: it refuses SGD" in " ".join(megatron(JOB, SELENE, sharded)[1])


@pytest.mark.parametrize("state", [8, 16, 18, 20])
def test_a_device_before_ampere_trains_in_fp16_without_flash_attention(state: int) -> None:
    """With --fp16 gradients are summed in fp32 only if asked for: 18 bytes a parameter, else 20."""
    volta, plan = clusters()["v100"], Plan(dp=8, zero=1, state=state)
    made, said = megatron(JOB, volta, plan)
    assert "--fp16" in made and not [flag for flag in made if "bf16" in flag or "flash" in flag]
    assert ("--accumulate-allreduce-grads-in-fp32" in made) == (state in (8, 18))
    text = " ".join(said)
    assert "V100-SXM2-16GB has no bf16" in text and "FlashAttention 2 needs an Ampere GPU" in text
    assert ("these take 20 bytes" in text) == (state == 16)
    assert megatron(JOB, volta, Plan(dp=8, precision="fp32"))[1] == []
    assert not {"--accumulate-allreduce-grads-in-fp32"} & set(flags(plan))


def test_the_catalogue_knows_which_devices_have_bf16() -> None:
    assert {name for name, device in devices().items() if not device.bf16} == {
        "V100-SXM2-16GB",
        "V100-SXM2-32GB",
        "V100-PCIE-16GB",
        "T4",
    }


@pytest.mark.parametrize("name", [name for name in TRAITS if name not in ("1f1b", "interleaved")])
def test_a_schedule_that_megatron_lacks_is_said_to_be_another(name: str) -> None:
    assert any(name in line.lower() for line in megatron(JOB, SELENE, Plan(pp=4, schedule=name))[1])
    assert not megatron(JOB, SELENE, Plan(dp=4, schedule=name))[1], "without a pipeline there is no schedule"


def test_layers_that_do_not_divide_count_their_ends_and_so_does_the_fork() -> None:
    llama = Job(presets()["llama-405b"], 64)
    assert "--account-for-loss-in-pipeline-split" in flags(Plan(pp=16), llama)
    fork = flags(Plan(pp=16, schedule="zb-h2"), llama)
    assert "--allow-padding-num-layers" in fork and "--zero-bubble-max-pending-backward 32" in fork
    assert not [flag for flag in fork if flag.startswith("--account-for")]
    assert "--zero-bubble-v-schedule" in flags(Plan(pp=8, chunks=2, schedule="zb-v"))
    virtual = flags(Plan(pp=4, chunks=8, schedule="interleaved"), llama)
    assert "--num-layers-per-virtual-pipeline-stage 4" in virtual, "(126 + 2) / (4 x 8)"


def test_llama_has_no_dropout_and_gpt_has_the_default() -> None:
    assert "--hidden-dropout 0" in flags(Plan(), Job(presets()["llama-8b"], 64))
    assert not [flag for flag in flags(Plan()) if "dropout" in flag]


def test_the_vocabulary_without_data_is_the_models() -> None:
    """The null tokenizer adds its end-of-document token."""
    assert f"--vocab-size {JOB.model.vocab - 1}" in to_time(JOB)


def test_every_plan_that_a_search_times_has_a_command_line() -> None:
    found = search(JOB, replace(SELENE, devices=64), Space())
    for i in range(0, len(found.plans), 97):
        plan = found.plans.row(i)
        made = flags(plan)
        assert f"--tensor-model-parallel-size {plan.tp}" in made
        for flag, needed in ASKS.items():
            assert flag not in made or set(needed) <= set(made), plan.label()
