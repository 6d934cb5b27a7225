"""The engine on CUDA. With fewer GPUs than ranks, they share one and communicate through the host; otherwise through
NCCL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.analysis.allocations import allocations, place
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.launch import EXIT_FAULT
from parallel_core.local import LocalRunner
from parallel_core.models.attention import Core
from parallel_core.observe import host
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.observe.snapshot import unpacked
from parallel_core.observe.trace_request import TraceRequest, ask
from parallel_core.outcome import Outcome
from parallel_core.profile.measure import measure
from parallel_core.profile.request import ProfileRequest
from parallel_core.spec import ModelSpec, RunSpec
from parallel_core.tensor.weights import WeightGradient, WeightGradients
from tests.parallel_core.failing_ranks import failed
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_deterministic import KINDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not host.cuda_devices(), reason="needs a GPU"),
]
TWO_GPUS = pytest.mark.skipif(len(host.cuda_devices()) < 2, reason="needs two GPUs")
MODEL = {"layers": 4, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128}
STRAGGLER = {"kind": "straggler", "rank": 1, "factor": 1.5}
SPLITS: dict[str, dict[str, Any]] = {
    "DP": {"dp": 2},
    "ZeRO-3": {"dp": 2, "zero": 3},
    "TP": {"tp": 2},
    "TP, sequence": {"tp": 2, "sequence": True},
    "1F1B": {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
    "ZB-V": {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    "stash": {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4},
    "DP x PP, recomputed": {"dp": 2, "pp": 2, "schedule": "1f1b", "micro_batches": 2, "recompute": "full"},
}


def trained(folder: Path, split: dict[str, Any], inject: tuple[dict[str, Any], ...] = (), **train: Any) -> Outcome:
    train = {"global_batch": 8, "steps": 4, "precision": "fp64", "device": "cuda", **train}
    model = {**MODEL, **train.pop("model", {})}
    clip = "stage" if "stash" in split.get("schedule", "") else "global"
    told = {"model": model, "parallel": split, "train": {**train, "clip": clip}, "inject": inject}
    spec = RunSpec.model_validate({**told, "trace": {"trace_every": 1}})
    with LocalRunner() as runner:
        outcome = runner.run(spec, folder)
    assert outcome.ok, outcome.failure()
    return outcome


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return trained(tmp_path_factory.mktemp("gpu") / "single", {})


def test_one_gpu_trains_what_a_core_does(single: Outcome, tmp_path: Path) -> None:
    core = trained(tmp_path / "cpu", {}, device="cpu")
    assert single.series("loss")["value"] == pytest.approx(core.series("loss")["value"], rel=1e-9)


@pytest.mark.parametrize("name", SPLITS)
def test_every_split_trains_what_one_gpu_does(name: str, single: Outcome, tmp_path: Path) -> None:
    done = trained(tmp_path / "run", SPLITS[name])
    if name != "stash":  # its updates are delayed
        assert done.series("loss")["value"] == pytest.approx(single.series("loss")["value"], rel=1e-12)
    ranks, gpus = len(done.frames), len(host.cuda_devices())
    hello = done.last(0, "hello")
    assert hello is not None and hello["sharing"] == -(-ranks // gpus)


@TWO_GPUS
@pytest.mark.parametrize("name", ["1F1B", "ZB-V", "stash"])
def test_a_straggler_that_looks_at_the_clock_of_its_gpu_closes_no_circle(name: str, tmp_path: Path) -> None:
    """Each of its operations waits for the computed results, while posted receives wait for what it has yet to send: no
    deadlock. Ranks that share a GPU post no receives there.
    """
    done = trained(tmp_path / "run", SPLITS[name], inject=(STRAGGLER,), steps=6)
    assert len(done.series("loss")) == 6 and set(done.traced()) == {0, 1}


@pytest.mark.parametrize("kind", KINDS)
def test_two_deterministic_runs_end_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """An operation of which CUDA has no deterministic version would raise."""
    train = {"steps": 4, "warmup_steps": 1, "global_batch": 8, "deterministic": True, "device": "cuda"}
    spec, found = RunSpec.model_validate({"model": KINDS[kind], "train": {**train, "precision": "bf16"}}), []
    for name in ("first", "second"):
        with LocalRunner() as runner:
            outcome = runner.run(spec, tmp_path / name)
        assert outcome.ok, outcome.failure()
        found.append(((outcome.last(0, "summary") or {})["fingerprint"], outcome.series("loss")["value"].tobytes()))
    assert found[0][0]["parameters"] == found[1][0]["parameters"] and found[0][1] == found[1][1]


def test_in_fp16_an_overflow_skips_an_update_on_the_gpu(tmp_path: Path) -> None:
    """The first loss scales are too high, so the GPU skips updates; parameters stay finite, and training goes on."""
    done = trained(tmp_path / "run", {}, precision="fp16", loss_scale=2.0**20, steps=12)
    skipped, losses = done.series("skipped_steps")["value"], done.series("loss")["value"]
    assert 0 < skipped[-1] < len(skipped)
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_the_meter_finds_what_the_allocator_does(tmp_path: Path) -> None:
    """Except for cuBLAS's workspaces: 32 MiB on a Hopper GPU for each thread that multiplies (the rank's own and
    autograd's), 1.1 % of the memory used here.
    """
    wide = {"layers": 8, "hidden": 1024, "heads": 16, "seq": 512, "vocab": 8192}
    done = trained(tmp_path / "run", {}, model=wide, precision="bf16", global_batch=24)
    memory = done.last(0, "memory")
    assert memory is not None and memory["peak_total"] == pytest.approx(memory["rss_delta"], rel=0.02)


def test_the_allocations_of_an_asked_step_are_recorded(tmp_path: Path) -> None:
    """The peak of a recorded step is the allocator's own except for rounding, and blocks allocated in the step have
    their stacks.
    """
    ask(tmp_path, TraceRequest(3, "memory"))
    train = {"steps": 6, "warmup_steps": 1, "global_batch": 4, "device": "cuda"}
    spec = RunSpec.model_validate({"model": MODEL, "train": train})
    run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), Progress(tmp_path, 0))
    pieces = [frame for frame in read_file(events_path(tmp_path, 0)) if frame.header["kind"] == "snapshot"]
    assert {frame.header["step"] for frame in pieces} == {3} and len(pieces) == pieces[0].header["of"]
    found = allocations(unpacked(b"".join(frame.blob for frame in pieces)))
    own = torch.cuda.max_memory_allocated()
    assert 0.5 * own < found.peak <= own
    assert found.peak > found.before > 0
    assert any(place(alive.frames) for alive in found.alive)
    files = {frame.filename for alive in found.alive for frame in alive.frames}
    assert any("parallel_core" in file for file in files)


def test_another_process_on_the_gpu_is_seen() -> None:
    device = open_device("cuda")
    torch.zeros(1, device=device.torch)
    if device.processes() is None:
        pytest.skip("the driver does not list the processes here")
    program = "import sys, torch; torch.zeros(1, device='cuda'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        pids = device.processes()
        assert pids is not None and {os.getpid(), other.pid} <= pids


def test_gradients_of_16_bits_are_added_in_fp32() -> None:
    """The products themselves are not rounded to 16 bits before they are added."""
    weights, grad = WeightGradients(Scope(SpanRecorder())), torch.randn(512, 96, device="cuda").bfloat16()
    x, weight = torch.randn(512, 64, device="cuda").bfloat16(), torch.nn.Parameter(torch.empty(96, 64, device="cuda"))
    weight.grad = torch.ones_like(weight)
    with torch.no_grad():
        weights.add(WeightGradient(x, grad, weight, None))
    want = 1 + grad.double().t() @ x.double()
    torch.testing.assert_close(weight.grad.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_keeps_no_matrix_of_probabilities(dtype: torch.dtype, kv_heads: int) -> None:
    seq, hidden = 2048, 64
    core = Core(ModelSpec(layers=1, hidden=hidden, heads=4, kv_heads=kv_heads, seq=seq))
    qkv = torch.randn(1, seq, (4 + 2 * kv_heads) * 16, device="cuda", dtype=dtype, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    core(qkv).sum().backward()
    matrix = 4 * seq**2 * dtype.itemsize
    assert torch.cuda.max_memory_allocated() - before < matrix / 2


@TWO_GPUS
def test_a_profile_times_the_messages_between_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a single connection, which Megatron-LM requires, a receive would block the send that its answer waits for."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    order = ProfileRequest(samples=(1,), tps=(1, 2), devices=2, seconds=0.05, sizes=(1024, 65536))
    table = measure(ModelSpec.model_validate(MODEL), order, ranks=2, device="cuda")
    assert {link.what for link in table.links} == {"all_reduce", "all_gather", "reduce_scatter", "send"}
    assert all(seconds > 0 for link in table.links for seconds in link.time.seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_kernels_can_be_profiled(kind: str) -> None:
    """An operation of which CUDA has no deterministic version would raise."""
    order = ProfileRequest(samples=(4,), recompute=("none", "full"), seconds=0.05)
    table = measure(ModelSpec.model_validate(KINDS[kind]), order, ranks=1, device="cuda", deterministic=True)
    assert table.deterministic and all(row.seconds["forward"] for row in table.layers)


@TWO_GPUS
def test_a_rank_that_fails_under_posted_receives_ends_the_run(tmp_path: Path) -> None:
    """The posted receives of all ranks are kernels that would wait forever."""
    outcome = failed(tmp_path, "cuda")
    rank, code = outcome.exits[0].rank, outcome.exits[0].code
    assert (rank, code) == (1, EXIT_FAULT) and "ValueError: a fault of the code" in outcome.failure()
