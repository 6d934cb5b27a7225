"""The GPUs of this host that a process may use: their names for CUDA, and their handles in the driver's library (NVML).

Unique names (UUIDs) are the same in both. Numbers differ: NVML counts in the order of the PCI bus, CUDA by default
starts with the fastest one (CUDA C++ Programming Guide, CUDA_DEVICE_ORDER). Of GPUs that are alike both orders are the
same; among others a number is refused. A partitioned GPU (MIG) is represented by its instances, of which CUDA shows a
process only one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.analysis.quantities import listed_text

CHANGED = "What was here when this worker started is gone, or partitioned otherwise: start the worker again."
"""A fault: runs may still be on other devices, whose places must not change."""


class AmbiguousGpus(ValueError):
    """CUDA_VISIBLE_DEVICES has numbers that mean one GPU to CUDA and another to NVML; the message says what to set."""


class Gpu(NamedTuple):
    """`name`: for CUDA_VISIBLE_DEVICES; `board`: the same for all instances of a GPU; `handle`: of NVML, None without
    it; `fault`: why it cannot be used, as a sentence, while it keeps its place among the others; '' if it can."""

    name: str
    board: str
    handle: Any = None
    fault: str = ""


Places = dict[int, list[Gpu]]
"""By number of a GPU on the bus: what it was when this process first looked, itself or its instances."""


def open_nvml() -> Any:
    """Returns the initialized NVML module; None on a host without driver, or with a CPU-only build of PyTorch."""
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
    """Whether the installed PyTorch can use GPUs; does not import it."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    text = Path(found.origin).with_name("version.py").read_text()
    return re.search(r"^cuda\b[^=\n]*= *['\"]", text, re.MULTILINE) is not None


def gpus(nvml: Any, places: Places | None = None) -> list[Gpu]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES selects, in its order; all if it is not set, none if it is empty.

    With the same `places` at each call, each keeps its place among the others whatever becomes of those: an instance of
    a GPU that the driver cannot reach, or that is partitioned otherwise by now, is there with its fault.

    As in CUDA, names after one that matches no GPU are ignored; but while the driver cannot reach a GPU, a unique name
    that matches none is taken for that one, so that the others keep their places. Raises AmbiguousGpus, and NVMLError
    if the driver cannot even count.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = None if given is None else [name.strip() for name in given.split(",")]
    if nvml is None:
        return [Gpu(name, name) for name in takewhile(_says_one, named or ())]
    boards = [_board(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    every = [_parts(nvml, board) for board in boards]
    if places is not None:
        every += [[] for _ in range(len(every), len(places))]  # a driver that is loaded again counts no lost ones
        every = [_in_place(parts, places.get(index, parts)) for index, parts in enumerate(every)]
        places.update(enumerate(every))
    if named is None:
        return [gpu for parts in every for gpu in parts]
    if any(name.isdigit() for name in named) and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        _need_alike(sorted(_models(nvml, boards)))
    found = (_called(name, every) for name in named)
    return [gpu for gpu in takewhile(lambda gpu: gpu is not None, found) if gpu is not None]


def model(nvml: Any, handle: Any) -> str:
    """Returns the product name of a GPU, such as `NVIDIA H100 80GB HBM3`. Raises NVMLError."""
    name = nvml.nvmlDeviceGetName(handle)
    return name if isinstance(name, str) else str(name.decode())


def lost(nvml: Any, error: Exception) -> bool:
    """Whether this NVMLError means that nothing can use the GPU before it is reset or the host is started again
    (NVML API Reference Guide, nvmlReturn_t); most others mean that the GPU does not report a quantity."""
    return getattr(error, "value", None) in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)


def unreadable(error: Exception) -> str:
    """The fault of a GPU of which the driver says this."""
    return f"The driver cannot read it ({error}): reset it, or start the host again."


def _board(nvml: Any, index: int) -> Gpu:
    """Returns the GPU with this number on the bus, as a whole. It has that number as its name if it reports no UUID."""
    handle = None
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = _uuid(nvml, handle) or str(index)
    except nvml.NVMLError as error:
        fault = unreadable(error) if handle is None or lost(nvml, error) else ""
        return Gpu(str(index), str(index), handle, fault)
    return Gpu(name, name, handle)


def _models(nvml: Any, boards: Iterable[Gpu]) -> set[str]:
    """Returns the models of the GPUs that the driver can reach."""
    found = set()
    for board in boards:
        with contextlib.suppress(nvml.NVMLError):
            if not board.fault:
                found.add(model(nvml, board.handle))
    return found


def _need_alike(models: list[str]) -> None:
    if len(models) > 1:
        raise AmbiguousGpus(
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} has numbers, and the GPUs of this host differ "
            f"({listed_text(models)}): CUDA counts the fastest first, nvidia-smi by bus. Name them by UUID "
            "(nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID to count by bus."
        )


def _says_one(name: str) -> bool:
    return bool(name) and not name.startswith("-")


def _called(name: str, every: list[list[Gpu]]) -> Gpu | None:
    """Returns the GPU by its number on the bus (its first instance, as in CUDA), or by a unique prefix of its name."""
    if name.isdigit():
        return every[int(name)][0] if int(name) < len(every) and every[int(name)] else None
    gpus = [gpu for parts in every for gpu in parts]
    matching = [gpu for gpu in gpus if name and gpu.name.startswith(name)]
    nameless = next((gpu for gpu in gpus if gpu.fault), None)
    if not matching and nameless is not None and name.startswith(("GPU-", "MIG-")):
        return nameless._replace(name=name, board=name)
    return matching[0] if len(matching) == 1 else None


def _parts(nvml: Any, board: Gpu) -> list[Gpu]:
    """Returns the GPU, or its instances where it is partitioned."""
    try:
        divided = not board.fault and nvml.nvmlDeviceGetMigMode(board.handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError as error:  # most cannot be partitioned
        return [board._replace(fault=unreadable(error) if lost(nvml, error) else "")]
    if not divided:
        return [board]
    try:
        found = [_part(nvml, board, index) for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board.handle))]
    except nvml.NVMLError as error:
        return [board._replace(fault=unreadable(error))]
    return [part for part in found if part is not None]


def _part(nvml: Any, board: Gpu, index: int) -> Gpu | None:
    """Returns an instance of a GPU, None if none has this number. Raises NVMLError if the GPU is lost."""
    try:
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board.handle, index)
    except nvml.NVMLError as error:
        if lost(nvml, error):
            raise
        return None
    try:
        return Gpu(_uuid(nvml, handle), board.name, handle)
    except nvml.NVMLError as error:
        return Gpu(f"{board.name}/{index}", board.name, handle, unreadable(error))


def _in_place(now: list[Gpu], first: list[Gpu]) -> list[Gpu]:
    """Returns the devices of a GPU as they were first, in the same order, with the handles and faults that they have
    now. One whose name was, or is, not known is the same if it was and is the whole GPU."""
    if len(now) == len(first) == 1 and not now[0].fault and (now[0].name.isdigit() or first[0].name.isdigit()):
        known = first[0] if now[0].name.isdigit() else now[0]
        return [now[0]._replace(name=known.name, board=known.board)]
    usable = {gpu.name: gpu for gpu in now if not gpu.fault}
    why = next((gpu.fault for gpu in now if gpu.fault), CHANGED)
    return [usable.get(gpu.name) or gpu._replace(handle=None, fault=why) for gpu in first]


def _uuid(nvml: Any, handle: Any) -> str:
    """Raises NVMLError."""
    told = nvml.nvmlDeviceGetUUID(handle)
    return told if isinstance(told, str) else str(told.decode())
