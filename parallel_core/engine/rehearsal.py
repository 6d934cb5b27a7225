"""Runs one micro-batch through all stages of a rank before the first step, without messages; the state is restored.

On a GPU a receive posted ahead is a kernel that waits for its sender, and a library may load one of its kernels at
first launch, which waits until the device is idle (docs.nvidia.com, CUDA Programming Guide, "Lazy Loading", potential
hazards; meta-pytorch/torchcomms pull 2334). In the first step of a pipeline the two together can deadlock.
`launch.gpu` makes CUDA load kernels eagerly; libraries that load their own kernels are covered here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parallel_core.engine.precision import DTYPES
from parallel_core.engine.stage import Stage
from parallel_core.engine.trainer import Trainer
from parallel_core.plan.units import boundary_shapes


def is_due(trainer: Trainer) -> bool:
    """Whether messages between stages are kernels, so that a rehearsal is needed."""
    return trainer.layout.pp > 1 and trainer.device.backend == "nccl"


def rehearse(trainer: Trainer, step: int) -> None:
    """Runs forward and backward of every stage, with samples of `step` where the stage reads them, otherwise with
    zeros.

    All ranks call it, since layers may communicate. The reducer starts no step, so it reduces nothing over replicas:
    these may have different numbers of micro-batches, and one that is done would wait forever for another that is not.
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
        if trainer.spec.train.eval_every:  # without gradients, attention may choose other kernels
            stage.evaluate(ids[0], _input(stage, shape, trainer))
    trainer.reducer.finish()
    chunks.flat.grads.zero_()
    for name, buffer in chunks.buffers().items():
        buffer.copy_(before[name])
    torch.zeros((), device=trainer.device.torch).item()  # allocates the host memory that scalars are copied through
    trainer.device.synchronise()


def _input(stage: Stage, shape: tuple[int, ...], trainer: Trainer) -> Tensor | None:
    """Zeros in place of what a stage receives; None for the first, which reads samples."""
    dtype = DTYPES[trainer.spec.train.precision]
    return None if stage.is_first else torch.zeros(shape, dtype=dtype, device=trainer.device.torch)


def _through(stage: Stage, micro_batch: int, shape: tuple[int, ...], split: bool, trainer: Trainer) -> None:
    """Runs forward and backward of a stage; with `split`, the backward as B and W."""
    out = stage.forward(micro_batch, _input(stage, shape, trainer))
    grad: Tensor | None = None if stage.is_last else torch.zeros_like(out)
    if split:
        stage.backward_input(micro_batch, grad)
        stage.backward_weights(micro_batch)
    else:
        stage.backward(micro_batch, grad)
