"""The fork server, and what it gives its ranks: CUDA is not started in it, and users' settings of CUDA come through."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parallel_core import launch

WATCHED = """
import torch
asked = []
for name in ("is_available", "device_count", "get_device_properties", "current_device", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name, **__: asked.append(name))
from parallel_core import launch_rank, launch_server, processes
launch_server.prewarm()
launch_rank.engine()
print(asked, torch.cuda.is_initialized(), processes.threads())
"""


def test_what_the_fork_server_imports_asks_nothing_of_cuda() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], env=launch.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] False 1"


def test_settings_of_cuda_and_nccl_reach_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDNN_LOGLEVEL_DBG": "0", "FI_PROVIDER": "efa"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    seen = launch.environment()
    assert told.items() <= seen.items() and seen["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
