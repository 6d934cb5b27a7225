"""What the process of a rank is told before CUDA starts in it: which GPU is its own, and how kernels are launched.

A pipeline posts receives long before it needs them, and so does who times its messages; on a GPU such a receive is a
kernel that waits for its sender. Whatever makes other work wait for that kernel closes a circle: the rank never sends
what its peer needs to send.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from parallel_core.observe.gpus import Gpu, gpus, open_nvml

CONCURRENT = {
    # Kernels are loaded when the device is opened, not when they are first launched: that waits until the device is
    # idle (docs.nvidia.com, CUDA Programming Guide, "Lazy Loading", potential hazards).
    "CUDA_MODULE_LOADING": "EAGER",
    # Streams of their own for compute and for every pair of ranks: of the 8 by default, two would share one, in which
    # what waits holds up what is behind it (the same, "CUDA Environment Variables").
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # With 1 a launch returns when its kernel has ended; NVIDIA/nccl issue 750.
    "CUDA_LAUNCH_BLOCKING": "0",
}

FEW_CHANNELS = {
    # A receive that waits holds a block of threads for each of its channels, of which NCCL opens up to 32 to a peer
    # over NVLink: too many of them leave no room on the multiprocessors for the products that go on meanwhile.
    "NCCL_MAX_P2P_NCHANNELS": "4",
}
"""Unless the user says otherwise."""


def take_gpu(device: int, devices: Sequence[int], ahead: bool) -> int:
    """Shows this process its GPU alone, the `device`-th of the host; how many of the ranks on `devices` are on the
    fullest one. `ahead`: ranks post receives, and send behind them. Where the host was given none, none is shown."""
    found = gpus(open_nvml())
    if found or "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(device, found)
    sharing = max(Counter(board(other, found) for other in devices).values())
    if ahead and sharing == 1:
        os.environ.update(FEW_CHANNELS | os.environ | launching(os.environ))
    return sharing


def launching(told: Mapping[str, str]) -> dict[str, str]:
    """What the environment is to say, whatever it says: others of these values hang."""
    for name, value in CONCURRENT.items():
        if told.get(name, value) != value:
            print(f"{name}={told[name]} hangs messages between GPUs: {value} is used")  # noqa: T201
    return CONCURRENT


def visible(device: int, found: Sequence[Gpu]) -> str:
    """The name of our device-th CUDA device among those that the host was given. More devices than GPUs share them in
    turn, as CPU devices share cores."""
    return found[device % len(found)].name if found else str(device)


def board(device: int, found: Sequence[Gpu]) -> str:
    """The GPU that it is on: NCCL takes one rank of each, of a partitioned one, too."""
    return found[device % len(found)].board if found else str(device)
