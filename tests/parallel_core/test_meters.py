"""Utilisation by the papers' formulas, peaks of devices, and shares of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from parallel_core.analysis.meters import Work, step_shares
from parallel_core.engine import peak, run
from parallel_core.engine.device import CpuDevice, Device
from parallel_core.engine.peak import device_peak
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.records import SPAN
from parallel_core.plan.chips import listed
from parallel_core.plan.cluster.hardware import devices
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import DeviceKind, RunSpec

MODEL = {"layers": 3, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128, "bias": False}


def spec_of(**parallel: Any) -> RunSpec:
    return RunSpec.model_validate({"model": MODEL, "parallel": parallel, "train": {"global_batch": 8}})


def test_mfu_is_palms() -> None:
    """PaLM's formula: tokens/s x (6 N + 12 L H Q T) over the peak, with N the weights used in matmuls, H Q the width, T
    the sequence length.
    """
    spec = spec_of(dp=2)
    shapes = parameter_shapes(spec.model)
    multiply = sum(rows * columns for name, (rows, *rest) in shapes.items() for columns in rest if "embed" not in name)
    palm = 6 * multiply + 12 * spec.model.layers * spec.model.hidden * spec.model.seq
    seconds, peak = 0.25, 2e9
    found = Work.of(spec).speeds(seconds, peak)
    rate = spec.tokens_per_step / seconds
    assert found["tokens_per_s"] == rate
    assert found["mfu"] == pytest.approx(rate * palm / peak, rel=1e-12)
    assert found["tflops"] == pytest.approx(found["mfu"] * peak / 2 / 1e12, rel=1e-12)


def test_hfu_counts_recomputation_once_more() -> None:
    """All of a block but its last product, which a recomputation leaves out."""
    spec = spec_of(recompute="full")
    found, flops = Work.of(spec).speeds(1.0, 1e9), spec.model
    per_token = 2 * (8 * flops.hidden**2) + 4 * flops.seq * flops.hidden
    again = spec.tokens_per_step * flops.layers * per_token
    assert (found["hfu"] - found["mfu"]) * 1e9 == pytest.approx(again, rel=1e-12)
    plain_run = Work.of(spec_of()).speeds(1.0, 1e9)
    assert plain_run["hfu"] == plain_run["mfu"] == found["mfu"]


def test_without_a_peak_there_is_no_utilisation() -> None:
    assert set(Work.of(spec_of()).speeds(1.0)) == {"tokens_per_s", "tflops"}


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.0),
        ("NVIDIA H100 PCIe", "fp16", 756.0),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
    ],
)
def test_listed_peaks(name: str, precision: Any, tflops: float) -> None:
    found = listed(name, precision)
    assert found is not None
    assert found.flops_per_s == tflops * 1e12


def test_a_listed_peak_is_the_one_that_plans_are_made_with() -> None:
    driver = {"H100-SXM5-80GB": "NVIDIA H100 80GB HBM3", "T4": "Tesla T4", "B200-SXM": "NVIDIA B200"}
    for name, called in driver.items():
        peak = listed(called, "fp16")
        assert peak is not None and peak.flops_per_s == devices()[name].half and "NVIDIA" in peak.source


def test_what_is_not_listed_is_measured() -> None:
    assert listed("Tesla V100-SXM2-16GB", "bf16") is None  # it has no bf16 units
    assert listed("NVIDIA L40S", "bf16") is None  # not the L4
    assert listed("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16") is None  # a seventh of one
    assert listed("NVIDIA H100 NVL", "bf16") is None  # a card with less power, whose peak is not in the catalogue
    for other in ("RTX 4090 Laptop GPU", "RTX 4090 D", "RTX 4090 with Max-Q Design"):
        assert listed(f"NVIDIA GeForce {other}", "bf16") is None  # fewer multiprocessors or less power
    for share in ("GRID T4-8C", "NVIDIA A100-40C", "NVIDIA L4-12Q", "NVIDIA H100-40C", "NVIDIA A100-1-5CME"):
        assert listed(share, "fp16") is None  # virtual GPUs
    peak = device_peak(CpuDevice(), "fp64")
    assert peak.flops_per_s > 1e7
    assert "measured" in peak.source


class UnlistedGpu(CpuDevice):
    """A GPU on which the run has used 4 bytes at most; the matmuls that measure its peak take `took` bytes."""

    kind: DeviceKind = "cuda"
    name = "NVIDIA H100 NVL"

    def __init__(self, took: int) -> None:
        self.torch, self._peaks, self.forgotten = torch.device("cpu"), iter((4, max(4, took))), 0

    def memory_peak(self) -> int:
        return next(self._peaks)

    def forget_memory_peak(self) -> None:
        self.forgotten += 1


@pytest.mark.parametrize(("took", "forgotten"), [(2, 0), (9, 1)])
def test_products_that_measure_a_gpu_are_no_memory_of_the_run(
    took: int, forgotten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peak.SIDES, "cuda", (8,))
    device = UnlistedGpu(took)
    assert device_peak(device, "bf16").source == "bf16 matrix product, measured"
    assert device.forgotten == forgotten


class LoadingGpu(UnlistedGpu):
    """A GPU with a clock of its own, whose first matmul takes longer than all measured ones may."""

    waits, seconds = 0, 0.0

    def synchronise(self) -> None:
        self.waits += 1
        self.seconds += 2 * peak.BUDGET_S if self.waits == 1 else peak.BUDGET_S / 4


def test_what_a_library_loads_first_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peak.SIDES, "cuda", (8, 16))
    device = LoadingGpu(4)
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=lambda: device.seconds))
    found = peak.measured(device, "fp32")
    assert device.waits == 2 + 2 + 2, "both of the smaller size, and the larger ones until the budget is spent"
    assert found.flops_per_s == pytest.approx(2 * 16**3 / (peak.BUDGET_S / 4))


@pytest.mark.parametrize("fast", [True, False], ids=["transposed", "plain"])
def test_a_measured_peak_is_that_of_the_faster_kind_of_product(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU multiplies by a transposed matrix, as linear layers do, several times as fast in fp16: such a run was said
    to use 116 % of the peak."""
    device, product = UnlistedGpu(4), torch.mm
    clock = SimpleNamespace(seconds=0.0)

    def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        clock.seconds += peak.BUDGET_S / (16 if b.is_contiguous() != fast else 4)
        return product(a, b, out=out)

    monkeypatch.setitem(peak.SIDES, "cuda", (8, 16))
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    monkeypatch.setattr(torch, "mm", mm)
    assert peak.measured(device, "fp16").flops_per_s == pytest.approx(2 * 16**3 / (peak.BUDGET_S / 16))


def test_a_gpu_is_measured_once_before_its_pipeline_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first matmul of a size may wait until the device is idle, but posted receives would keep it busy."""
    asked: list[str] = []
    found = peak.Peak(1.0, "measured")

    def measured(device: Device, precision: str) -> peak.Peak:
        asked.append("measured")
        return found

    monkeypatch.setattr(peak, "measured", measured)
    monkeypatch.setattr(run, "rehearse", lambda trainer, step: asked.append("rehearsed"))
    device = UnlistedGpu(4)
    device.backend = "nccl"
    trainer: Any = SimpleNamespace(device=device, layout=SimpleNamespace(pp=2), spec=spec_of(), progress=Mock())
    run._prepare(trainer, 0, False, None)
    assert device_peak(device, trainer.spec.train.precision) == found
    assert asked == ["rehearsed", "measured"]


def test_bubble_of_1f1b_is_the_one_of_the_formula() -> None:
    """(p - 1) / (m + p - 1) of the step (Huang et al. 2019), including the flush before the norm over all ranks."""
    spec = spec_of(pp=2, micro_batches=4)
    spans, layout = simulate(build(spec), Costs.uniform(2, 1_000, 1_000, 1_000)), Layout.of(spec)
    last = max(int(rows["end"].max()) for rows in spans.values())
    whole = {layout.tensor_group(q)[0]: np.concatenate([_barrier(rows, last), rows]) for q, rows in spans.items()}
    found = step_shares(whole, layout)
    assert found["bubble_share"] == pytest.approx(1 / 5, rel=1e-12)
    assert (found["exposed_share"], found["recompute_share"]) == (0, 0)


def _barrier(rows: np.ndarray, last: int) -> np.ndarray:
    """The STEP span of a rank, and the NORM collective in which it waits for the last rank."""
    step, norm = (Kind.STEP, 3, 0, -1, 0, 0, 0, last, 0), (Kind.NORM, 2, 0, -1, 0, 0, rows["end"].max(), last, 0)
    return np.array([step, norm], SPAN)
