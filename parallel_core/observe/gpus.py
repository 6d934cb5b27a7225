"""The GPUs of this host that a process may use: how CUDA calls each, and where the driver's library (NVML) finds it.

Both go by unique names. By number they differ: NVML counts in the order of the bus, CUDA by default begins with the
fastest one. A GPU that is partitioned (MIG) is its instances, of which CUDA shows a process one.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    """`name` is for CUDA_VISIBLE_DEVICES; instances of a GPU have one `board`; `handle` is NVML's, None without it."""

    name: str
    board: str
    handle: Any = None


def open_nvml() -> Any:
    """The NVML module once it answers; None on a host without driver, or where PyTorch is a build for CPUs alone."""
    try:
        import pynvml
    except ImportError:
        return None
    if not built_for_gpus():
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def built_for_gpus() -> bool:
    """Whether the PyTorch that is installed can use any, without importing it."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    text = Path(found.origin).with_name("version.py").read_text()
    return re.search(r"^cuda\b[^=\n]*= *['\"]", text, re.MULTILINE) is not None


def gpus(nvml: Any) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order, else all; none where it is empty. As to CUDA, what stands
    behind a name that is nobody's is not there."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = None if given is None else [name.strip() for name in given.split(",")]
    if nvml is None:
        return [Gpu(name, name) for name in takewhile(_says_one, named or ())]
    boards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    every = [_parts(nvml, board, str(index)) for index, board in enumerate(boards)]
    if named is None:
        return [gpu for parts in every for gpu in parts]
    found = (_called(name, every) for name in named)
    return [gpu for gpu in takewhile(lambda gpu: gpu is not None, found) if gpu is not None]


def _says_one(name: str) -> bool:
    return bool(name) and not name.startswith("-")


def _called(name: str, every: list[list[Gpu]]) -> Gpu | None:
    """By number that of this place on the bus (of instances the first, as CUDA does), else by how its name begins."""
    if name.isdigit():
        return every[int(name)][0] if int(name) < len(every) and every[int(name)] else None
    matching = [gpu for parts in every for gpu in parts if name and gpu.name.startswith(name)]
    return matching[0] if len(matching) == 1 else None


def _parts(nvml: Any, board: Any, number: str) -> list[Gpu]:
    """The GPU, or its instances where it is partitioned."""
    name = _uuid(nvml, board) or number
    try:
        divided = nvml.nvmlDeviceGetMigMode(board)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:  # a GPU that cannot be partitioned
        divided = False
    if not divided:
        return [Gpu(name, name, board)]
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)
        except nvml.NVMLError:  # no instance has this number
            continue
        if own := _uuid(nvml, part):
            found.append(Gpu(own, name, part))
    return found


def _uuid(nvml: Any, handle: Any) -> str:
    try:
        told = nvml.nvmlDeviceGetUUID(handle)
    except nvml.NVMLError:
        return ""
    return told if isinstance(told, str) else str(told.decode())
