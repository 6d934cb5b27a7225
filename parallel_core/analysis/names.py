"""Display names of the components of a step and the categories of memory."""

from __future__ import annotations

COMPONENT_NAMES = {
    "compute": "compute",
    "recompute": "recomputation",
    "exposed_p2p": "point-to-point communication not hidden",
    "exposed_collective": "collectives not hidden",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "data": "reading data",
    "other": "other",
}
CATEGORY_NAMES = {
    "params": "parameters",
    "grads": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "buffers": "buffers",
}
