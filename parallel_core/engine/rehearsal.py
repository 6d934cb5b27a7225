"""A micro-batch through all stages of a rank before the first step, without messages; nothing of it stays.

On a GPU a receive that was posted ahead is a kernel that waits for its sender, and a library may load a kernel of its
own when it is first launched, which waits until the device is idle (docs.nvidia.com, CUDA Programming Guide, "Lazy
Loading", potential hazards; meta-pytorch/torchcomms pull 2334). In a pipeline's first step both together close a
circle. `launch_gpu` has kernels loaded early as far as CUDA is asked; libraries that load their own are met here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parallel_core.engine.precision import DTYPES
from parallel_core.engine.stage import Stage
from parallel_core.engine.trainer import Trainer
from parallel_core.plan.units import boundary_shapes


def is_due(trainer: Trainer) -> bool:
    """Whether messages between stages are kernels."""
    return trainer.layout.pp > 1 and trainer.device.backend == "nccl"


def rehearse(trainer: Trainer, step: int) -> None:
    """With the samples of `step` where some are read, else with zeros. All ranks do it: layers may talk.

    The reducer begins no step, so it sums nothing of replicas that do not have as many micro-batches: where one of
    them is through with its own, it would wait for ever for another that is not.
    """
    chunks, ids = trainer.chunks, trainer.layout.micro_batches_of(trainer.place.place, trainer.place.replica)
    if not ids:
        return
    before = {name: buffer.clone() for name, buffer in chunks.buffers().items()}
    chunks.begin_step([trainer.reader.read(step)])
    shapes = boundary_shapes(trainer.spec)
    for number, stage in chunks.stages.items():
        shape = shapes[trainer.layout.stage_units[number][0]]
        for split in (False, True):
            _through(stage, ids[0], shape, split, trainer)
    trainer.reducer.finish()
    chunks.flat.grads.zero_()
    for name, buffer in chunks.buffers().items():
        buffer.copy_(before[name])
    torch.zeros((), device=trainer.device.torch).item()  # takes the host memory that numbers come out through
    trainer.device.synchronise()


def _through(stage: Stage, micro_batch: int, shape: tuple[int, ...], split: bool, trainer: Trainer) -> None:
    """Forward and backward; `split`: in two, as B and W."""
    dtype, x = DTYPES[trainer.spec.train.precision], None
    if not stage.is_first:
        x = torch.zeros(shape, dtype=dtype, device=trainer.device.torch)
    out = stage.forward(micro_batch, x)
    grad: Tensor | None = None if stage.is_last else torch.zeros_like(out)
    if split:
        stage.backward_input(micro_batch, grad)
        stage.backward_weights(micro_batch)
    else:
        stage.backward(micro_batch, grad)
