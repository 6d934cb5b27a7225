"""Runs steps of a rank on CUDA tensors that have a device, shape and dtype but no memory (FakeTensorMode).

`python -m tests.parallel_core.no_gpu LIBRARY CASE ..`, with the library built from no_gpu.cpp, prints one JSON line per
case: "" or what went wrong. The CUDA branches of the engine are executed this way without a GPU, so that mixed devices,
incompatible dtypes and host synchronisation are found. Streams, NCCL and values are not covered.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GPT = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128}
LLAMA = {**GPT, "kv_heads": 2, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
GNMT = {"kind": "gnmt", "layers": 2, "hidden": 32, "seq": 16, "vocab": 64}
PIPE = {"pp": 2, "micro_batches": 4}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "Llama, shared keys in fp32": (LLAMA, {}, "fp32"),
    "dropout, recomputed": ({**GPT, "dropout": 0.1}, {"recompute": "full"}, "bf16"),
    "fp16": (GPT, {"recompute": "selective"}, "fp16"),
    "ResNet-50, replicas": ({"kind": "resnet50", "width": 4}, {"dp": 2}, "bf16"),
    "ZeRO-2": (GPT, {"dp": 2, "zero": 2}, "bf16"),
    "ZeRO-3, LSTM": (GNMT, {"dp": 2, "zero": 3}, "bf16"),
    "TP, sequence": (LLAMA, {"tp": 2, "sequence": True}, "bf16"),
    "TP, columns": (GPT, {"tp": 2, "tensor_split": "columns"}, "fp64"),
    "1F1B, tied": ({**GPT, "tied": True}, {**PIPE, "schedule": "1f1b"}, "bf16"),
    "ZB-V": (GPT, {**PIPE, "schedule": "zb-v"}, "bf16"),
    "2BW, fp16": (GPT, {**PIPE, "schedule": "1f1b-2bw"}, "fp16"),
    "DP x PP x TP": (GPT, {**PIPE, "dp": 2, "tp": 2, "zero": 1, "schedule": "1f1b"}, "bf16"),
}


def main(library: str, *cases: str) -> None:
    where = find_spec("torch")
    assert where is not None and where.origin is not None
    for name in ("libc10.so", "libtorch_cpu.so"):  # before torch asks these libraries for CUDA
        ctypes.CDLL(str(Path(where.origin).parent / "lib" / name), ctypes.RTLD_GLOBAL)
    own = ctypes.CDLL(library)
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from parallel_core.spec import RunSpec
    from tests.parallel_core.no_gpu_trainer import stand_ins, steps

    own.stand_in()
    stand_ins()
    for case in cases:
        model, split, precision = CASES[case]
        train = {
            "global_batch": 16,
            "precision": precision,
            "device": "cuda",
            "clip": "stage" if "2BW" in case else "global",
        }
        spec, found = RunSpec.model_validate({"model": model, "parallel": split, "train": train}), ""
        # the first rank reads the data, the last one computes the loss
        for rank in sorted({0, spec.parallel.world - 1}):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=spec.parallel.world)
            try:
                with tempfile.TemporaryDirectory() as folder, FakeTensorMode(allow_non_fake_inputs=True):
                    steps(spec, rank, Path(folder))
            except Exception:
                found = f"rank {rank}: {traceback.format_exc()}"
            finally:
                dist.destroy_process_group()
        print(json.dumps([case, found]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
