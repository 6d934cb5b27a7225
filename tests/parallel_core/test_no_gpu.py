"""Every way of training runs steps on a simulated CUDA device; see `no_gpu`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core import launch
from tests.parallel_core.no_gpu import CASES

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("g++") is None, reason="missing: g++"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch is a build for GPUs: see test_gpu"),
]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Results of all selected cases, from one process, so that torch is imported only once."""
    own: list[Any] = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params["case"] for item in own]
    library, torchs = tmp_path_factory.mktemp("no_gpu") / "no_gpu.so", Path(torch.__file__).parent
    include = [f"-I{torchs / 'include'}", f"-I{torchs / 'include/torch/csrc/api/include'}"]
    build = ["g++", "-std=c++20", "-shared", "-fPIC", *include, str(HERE / "no_gpu.cpp"), "-o", str(library)]
    subprocess.run([*build, f"-L{torchs / 'lib'}", "-lc10", "-ltorch_cpu"], check=True, capture_output=True, text=True)
    command = [sys.executable, "-m", "tests.parallel_core.no_gpu", str(library), *asked]
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=launch.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("case", CASES)
def test_devices_and_number_types_agree_and_nobody_waits(case: str, found: dict[str, str]) -> None:
    assert found[case] == ""
