"""GPUs that count as several devices. There is no driver here: its library is stood in for by what it would answer."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from parallel_core import launch_rank
from workers import devices
from workers.devices import Devices
from workers.settings import Settings

GIB = 2**30


def driver(gpus: int) -> Any:
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = RuntimeError
    nvml.nvmlDeviceGetCount = lambda: gpus
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=80 * GIB, used=(handle + 1) * GIB)
    nvml.nvmlDeviceGetName = lambda handle: f"GPU {handle}"
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=50)
    return nvml


def test_each_gpu_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_open_nvml", lambda: driver(2))
    found = Devices().read()
    assert [(one["index"], one["name"], one["memory_total"]) for one in found] == [
        (0, "GPU 0", 80 * GIB),
        (1, "GPU 1", 80 * GIB),
    ]


def test_shares_go_round_the_gpus_and_ranks_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_open_nvml", lambda: driver(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = Devices(gpu_shares=2).read()
    assert [one["index"] for one in found] == [0, 1, 2, 3]
    assert [one["name"] for one in found[1:3]] == ["GPU 1, share 1 of 2", "GPU 0, share 2 of 2"]
    assert {one["memory_total"] for one in found} == {40 * GIB}
    assert [launch_rank.visible(one["index"]) for one in found] == ["0", "1", "0", "1"]


def test_a_gpu_has_at_least_one_share() -> None:
    assert Settings.from_env({}).gpu_shares == 1
    with pytest.raises(ValueError, match="TRAINYARD_GPU_SHARES='0' must be above 0"):
        Settings.from_env({"TRAINYARD_GPU_SHARES": "0"})
