"""Settings of a rank's process before CUDA starts in it: its GPU, and how kernels are launched.

A pipeline posts receives long before it needs them, and so does the measurement of messages; on a GPU such a receive
is a kernel that waits for its sender. Whatever makes other work wait for that kernel causes a deadlock: the rank then
never sends what its peer needs before it can send.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from parallel_core.observe.gpus import Gpu, gpus, open_nvml

CONCURRENT = {
    # Loads kernels when the device is opened. Loading at the first launch waits until the device is idle
    # (docs.nvidia.com, CUDA Programming Guide, "Lazy Loading", potential hazards).
    "CUDA_MODULE_LOADING": "EAGER",
    # A hardware queue for compute and one for every pair of ranks: of the default 8, streams would share one, in which
    # waiting work blocks the work after it (the same, "CUDA Environment Variables").
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # With 1 a launch only returns when its kernel has ended; NVIDIA/nccl issue 750.
    "CUDA_LAUNCH_BLOCKING": "0",
}

FEW_CHANNELS = {
    # A waiting receive occupies a thread block for each of its channels, of which NCCL opens up to 32 to a peer over
    # NVLink: too many of them leave no room on the multiprocessors for concurrent computation.
    "NCCL_MAX_P2P_NCHANNELS": "4",
}
"""Defaults, which variables set by the user override."""


def take_gpu(device: int, devices: Sequence[int], ahead: bool, known: Sequence[tuple[str, str]] = ()) -> int:
    """Makes only GPU number `device` of the host visible to this process; returns the ranks on the most shared GPU.

    `devices`: those of all ranks of this host. `ahead`: ranks post receives ahead, and send after them. `known`: as
    `StartCommand.gpus`. Where the host was given no GPU, none is made visible. Raises AmbiguousGpus.
    """
    found = [Gpu(*one) for one in known] or gpus(open_nvml())
    if found or "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(device, found)
    sharing = max(Counter(board(other, found) for other in devices).values())
    if ahead and sharing == 1:
        os.environ.update(FEW_CHANNELS | os.environ | launching(os.environ))
    return sharing


def launching(env: Mapping[str, str]) -> dict[str, str]:
    """Settings that override the environment, since other values would hang; prints a line for each one overridden."""
    for name, value in CONCURRENT.items():
        if env.get(name, value) != value:
            print(f"{name}={env[name]} hangs messages between GPUs: {value} is used")  # noqa: T201
    return CONCURRENT


def visible(device: int, found: Sequence[Gpu]) -> str:
    """Returns the name of CUDA device number `device` among those that the host was given; with more devices than GPUs,
    these are shared round-robin, like CPU cores."""
    return found[device % len(found)].name if found else str(device)


def board(device: int, found: Sequence[Gpu]) -> str:
    """Returns the physical GPU that a device is on: NCCL takes only one rank of each, also if it is partitioned."""
    return found[device % len(found)].board if found else str(device)
