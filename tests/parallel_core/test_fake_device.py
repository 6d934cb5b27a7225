"""The whole engine on a device that is not the host: no operation mixes the two, and the host hardly ever waits."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parallel_core.observe.record_files import events_path
from parallel_core.spec import RunSpec
from tests.parallel_core.fake_device_ranks import (
    generated,
    generated_elsewhere,
    generated_with_nccl,
    mix,
    numbers_set,
    profiled,
    run_elsewhere,
    run_here,
    run_with_nccl,
    saved,
    saved_and_resumed,
)
from tests.parallel_core.ranks import Work, run

GPT = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
STEPS = 4
PIPE = {"pp": 2, "micro_batches": 4}
CASES: dict[str, dict[str, Any]] = {
    "fp64": {"train": {"precision": "fp64"}},
    "bf16, dropout": {"train": {"precision": "bf16"}, "model": {"dropout": 0.1}},
    "fp16, tied": {"train": {"precision": "fp16", "loss_scale": 2.0**19}, "model": {"tied": True}},  # overflows first
    "recomputed": {"parallel": {"recompute": "full"}},
    "selective": {"parallel": {"recompute": "selective"}},
    "MLP": {"model": {"kind": "mlp"}},
    "VGG": {"model": {"kind": "vgg16", "width": 4}},
    # Not clipped: it multiplies a difference in rounding about tenfold a step (`test_rounding`).
    "ResNet": {"model": {"kind": "resnet50", "width": 4}, "train": {"clip_norm": None}},
    "DP": {"parallel": {"dp": 2}},
    "ZeRO-1": {"parallel": {"dp": 2, "zero": 1}},
    "ZeRO-2": {"parallel": {"dp": 2, "zero": 2}},
    "ZeRO-3": {"parallel": {"dp": 2, "zero": 3}},
    "TP": {"parallel": {"tp": 2}},
    "TP, sequence": {"parallel": {"tp": 2, "sequence": True}},
    "TP, columns": {"parallel": {"tp": 2, "tensor_split": "columns"}},
    "GPipe": {"parallel": {**PIPE, "schedule": "gpipe"}},
    "1F1B, tied, fp16": {"parallel": PIPE, "model": {"tied": True}, "train": {"precision": "fp16"}},
    "interleaved": {"parallel": {**PIPE, "schedule": "interleaved", "chunks": 2}},
    "ZB-V": {"parallel": {**PIPE, "schedule": "zb-v"}},
    "DualPipe-V": {"parallel": {**PIPE, "schedule": "dualpipe-v"}},
    "naive": {"parallel": {**PIPE, "schedule": "1f1b-naive"}, "train": {"clip": "stage"}},
    "stash": {"parallel": {**PIPE, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}},
    "vertical": {"parallel": {**PIPE, "schedule": "1f1b-vertical"}, "train": {"clip": "stage"}},
    "2BW": {"parallel": {**PIPE, "schedule": "1f1b-2bw"}, "train": {"clip": "stage"}},
    "3D, recomputed": {"parallel": {"dp": 2, "tp": 2, **PIPE, "recompute": "full"}},
}
QUICK = {"fp16, tied", "ZeRO-2"}
TOLERANCE = {"fp32": 2e-6, "fp64": 1e-14, "bf16": 2e-3, "fp16": 2e-4}
"""Relative tolerance of a loss: attention is not fused on that device, so sums are rounded differently."""


Ran = Callable[[RunSpec, Work, Path], list[Any]]


@pytest.fixture(scope="module")
def run_there() -> Iterator[Ran]:
    """`ranks.run` from a process in which autograd has never run: autograd counts devices at its first use, and forked
    ranks would inherit that count.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as clean:
        yield lambda spec, work, folder: clean.submit(run, spec, work, folder).result()


def spec_of(name: str, device: str) -> RunSpec:
    case = CASES[name]
    model = case.get("model", {})
    train = {"steps": STEPS, "warmup_steps": 1, "global_batch": 8, "device": device, **case.get("train", {})}
    return RunSpec.model_validate(
        {
            "model": model if "kind" in model else {**GPT, **model},
            "parallel": case.get("parallel", {}),
            "train": train,
            "trace": {"fingerprint_every": 2},
        }
    )


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_it_trains_there_what_it_trains_here(name: str, run_there: Ran, tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    on_host = run(spec_of(name, "cpu"), run_here, here)
    on_device = run_there(spec_of(name, "cuda"), run_elsewhere, there)
    precision = CASES[name].get("train", {}).get("precision", "fp32")
    told = [(one, other) for one, (other, _) in zip(on_host, on_device, strict=True) if one]
    assert told and all(len(one) == STEPS for one, _ in told)
    for one, other in told:
        assert other == pytest.approx(one, rel=TOLERANCE[precision])
    alone = len(on_device) == 1 or not spec_of(name, "cpu").parallel.flushes  # else totals are exchanged by the host
    for _, waits in on_device:
        assert waits.prints == [1, 1] and waits.updates
        assert not alone or not any(waits.updates), "updates are queued without waiting for the norm"


@pytest.mark.parametrize(
    "name", ["ZeRO-2", *(pytest.param(n, marks=pytest.mark.full) for n in ("1F1B, tied, fp16", "ZB-V", "2BW"))]
)
def test_with_a_gpu_a_rank_the_memory_of_the_set_up_is_no_part_of_the_peak(
    name: str, run_there: Ran, tmp_path: Path
) -> None:
    """Its first messages are of up to 64 MiB. Fingerprints, which the meter does not see, take less than one here."""
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    on_host = run(spec_of(name, "cpu"), run_here, here)
    tolerance = TOLERANCE[CASES[name].get("train", {}).get("precision", "fp32")]
    for one, (other, memory) in zip(on_host, run_there(spec_of(name, "cuda"), run_with_nccl, there), strict=True):
        assert other == pytest.approx(one, rel=tolerance)
        assert memory["peak_total"] <= memory["rss_delta"] <= memory["peak_total"] + 2**20


@pytest.mark.parametrize("name", [pytest.param("recomputed", marks=pytest.mark.full), "bf16, dropout"])
def test_the_host_waits_for_the_device_once_a_step(name: str, run_there: Ran, tmp_path: Path) -> None:
    ((_, waits),) = run_there(spec_of(name, "cuda"), run_elsewhere, tmp_path)
    assert waits.steps == [1] * (STEPS + 1)  # including the metered step


def test_the_host_waits_where_a_number_is_put_into_one_element(run_there: Ran, tmp_path: Path) -> None:
    assert run_there(RunSpec(), numbers_set, tmp_path) == [[1, 1, 0, 0]]


def test_a_checkpoint_from_there_goes_on_here_and_there(run_there: Ran, tmp_path: Path) -> None:
    """Saved from the device with ZeRO-1, resumed by a run on a single device."""

    def spec(device: str, **parallel: int) -> RunSpec:
        train = {"steps": STEPS, "warmup_steps": 1, "global_batch": 8, "checkpoint_every": 2, "device": device}
        return RunSpec.model_validate({"model": GPT, "parallel": parallel, "train": train})

    first = run_there(spec("cuda", dp=2, zero=1), saved_and_resumed, tmp_path)
    (tmp_path / "resumes").touch()
    for rank in (0, 1):
        events_path(tmp_path, rank).unlink()
    again = run_there(spec("cuda"), saved_and_resumed, tmp_path)
    (told,) = (losses for losses in first if losses)
    assert again[0] == pytest.approx(told[2:], rel=TOLERANCE["fp32"])


def test_text_is_generated_there_as_here(run_there: Ran, tmp_path: Path) -> None:
    train = {"steps": 2, "warmup_steps": 1, "global_batch": 8, "checkpoint_every": 2}
    spec = RunSpec.model_validate({"model": GPT, "parallel": {"tp": 2}, "train": train})
    run(spec, saved, tmp_path)
    assert run_there(spec, generated_elsewhere, tmp_path) == run(spec, generated, tmp_path)


@pytest.mark.full
def test_with_a_gpu_a_rank_the_memory_of_the_set_up_is_no_part_of_the_peak_of_generation(
    run_there: Ran, tmp_path: Path
) -> None:
    train = {"steps": 2, "warmup_steps": 1, "global_batch": 8, "checkpoint_every": 2}
    spec = RunSpec.model_validate({"model": GPT, "parallel": {"tp": 2}, "train": train})
    run(spec, saved, tmp_path)
    for memory in run_there(spec, generated_with_nccl, tmp_path):
        assert memory["peak_total"] <= memory["rss_delta"] <= memory["peak_total"] + 2**20


@pytest.mark.full
def test_layers_and_links_are_measured_there(run_there: Ran, tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": GPT, "parallel": {"dp": 2}, "train": {"device": "cuda", "global_batch": 2}})
    told = run_there(spec, profiled, tmp_path)
    assert {"device", "layers"} <= set(told[0])


def test_what_a_gpu_would_refuse_is_refused(run_there: Ran, tmp_path: Path) -> None:
    (said,) = run_there(RunSpec(), mix, tmp_path)
    assert "here and elsewhere" in said
