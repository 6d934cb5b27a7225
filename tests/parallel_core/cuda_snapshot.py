"""A small snapshot of the CUDA allocator, field by field as torch 2.13 writes it (torch/csrc/cuda/Module.cpp and the
docstring of torch.cuda.memory._snapshot): two parameters from before the recording, one of which is replaced, and two
activations.
"""

from __future__ import annotations

from typing import Any

KIB = 1 << 10
BASE = 0x7F0000000000
STREAM = 0
ATTENTION = [
    {"filename": "/yard/torch/nn/modules/linear.py", "line": 134, "name": "forward"},
    {"filename": "/yard/parallel_core/models/attention.py", "line": 83, "name": "forward"},
    {"filename": "/yard/parallel_core/engine/executor.py", "line": 40, "name": "run"},
]
UPDATE = [{"filename": "/yard/torch/optim/adamw.py", "line": 200, "name": "step"}]


def event(action: str, at: int, slot: int, size: int, frames: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"action": action, "addr": BASE + slot * 512 * KIB, "size": size, "stream": STREAM}
    out |= {"time_us": 1_700_000_000_000_000 + at, "compile_context": "N/A", "user_metadata": ""}
    return out | {"pool_id": (0, 0)} | ({"frames": frames} if frames is not None else {})


def freed(at: int, slot: int, size: int) -> list[dict[str, Any]]:
    return [event("free_requested", at, slot, size), event("free_completed", at, slot, size)]


def block(slot: int, requested: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = {"size": 512 * KIB, "requested_size": requested}
    return {"address": BASE + slot * 512 * KIB, **sizes, "state": state, "frames": frames}


def snapshot() -> dict[str, Any]:
    """Bytes in use: 300 KiB from before; twice 400 KiB more (the peak, 1 100 KiB); 100 + 250 KiB at the end."""
    trace = [
        event("segment_alloc", 0, 0, 2048 * KIB, []),
        event("alloc", 10, 2, 400 * KIB, ATTENTION),
        event("alloc", 20, 3, 400 * KIB, ATTENTION),
        *freed(40, 3, 400 * KIB),
        *freed(50, 2, 400 * KIB),
        *freed(60, 1, 200 * KIB),
        event("alloc", 70, 1, 250 * KIB, UPDATE),
        event("snapshot", 90, 0, 0),
    ]
    blocks = [
        block(0, 100 * KIB, "active_allocated", []),
        block(1, 250 * KIB, "active_allocated", UPDATE),
        block(2, 0, "inactive", []),
        block(3, 0, "inactive", []),
    ]
    segment: dict[str, Any] = {
        "device": 0,
        "address": BASE,
        "total_size": 2048 * KIB,
        "allocated_size": 1024 * KIB,
        "stream": STREAM,
    }
    segment |= {"active_size": 1024 * KIB, "requested_size": 350 * KIB, "segment_type": "large", "frames": []}
    segment |= {"segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks}
    return {
        "segments": [segment],
        "device_traces": [trace],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }
