"""The layers of one pipeline stage, and the forward and backward of one micro-batch through them.

With recomputation a transformer block keeps only its input in the forward pass (no graph) and is run again just
before its own backward (Chen et al. 2016): see `segments`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.engine.collectives import Group
from parallel_core.engine.device import Device
from parallel_core.engine.precision import DTYPES, LossScale
from parallel_core.engine.segments import Segment, segments_of
from parallel_core.engine.zero3 import Unsharding
from parallel_core.models.microbatch_context import NOTHING, MicroBatchContext, Sample, follow
from parallel_core.models.registry import build_unit, parameter_name
from parallel_core.observe.scope import Scope
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.parallelise import parallelise
from parallel_core.tensor.replicas import materialise, synchronise
from parallel_core.tensor.sequence import Rows
from parallel_core.tensor.weights import WeightGradient, WeightGradients

LONG_S = 1e-3
"""From how many seconds of its forward on the backward of a layer counts as progress of its own: a hook takes some
microseconds, and shorter ones end long before anything that waits for progress."""


class _Kept(NamedTuple):
    """What a segment keeps of a micro-batch: its input and, unless it is recomputed, its output with the autograd
    graph."""

    x: Tensor
    y: Tensor | None


class Batch(NamedTuple):
    """A rank's part of a step's global batch: `samples` by micro-batch id, and `scale` = 1 / (number of targets of all
    ranks)."""

    step: int
    samples: dict[int, Sample]
    scale: float


class Stage:
    """One stage of a pipeline: the layers `names` (of `ModelSpec.units`), in order."""

    def __init__(
        self,
        spec: RunSpec,
        names: Sequence[str],
        group: TensorGroup,
        weights: WeightGradients,
        loss_scale: LossScale,
        scope: Scope,
    ) -> None:
        self._model, self._weights, self._loss_scale, self._scope = spec.model, weights, loss_scale, scope
        dtype = DTYPES[spec.train.precision]
        self.names = tuple(names)
        rows = Rows(group, spec.model.seq) if spec.parallel.sequence else None
        how = spec.parallel.tensor_split
        self._units = [parallelise(build_unit(spec.model, name, dtype), group, weights, how, rows) for name in names]
        self._passing = MicroBatchContext(spec.train.seed)
        self.segments = segments_of(spec, names, self._units, self._passing, scope)
        self.is_first, self.is_last = names[0] == spec.model.units()[0], names[-1] == "head"
        self._size = spec.micro_batch_size
        for unit in self._units:
            follow(unit, self._passing)
        self._kept: dict[int, list[_Kept]] = {}
        self._batches: Sequence[Batch] = ()
        self._per_step = spec.parallel.per_step
        self._deferred: dict[int, list[WeightGradient]] = {}
        self.unsharder: Unsharding | None = None
        """Gathers the parameters of a layer while it runs (ZeRO-3); None where they are always whole."""

    @property
    def layers(self) -> list[nn.Module]:
        """The layers, one for each of `names`."""
        return self._units

    def prepare(self, replicas: Group, device: Device) -> None:
        """Materializes the layers' buffers on the device, and sets the replicas with which statistics are shared (batch
        norm)."""
        for unit in self._units:
            synchronise(unit, replicas, self._scope)
            materialise(unit, device.torch)

    def buffers(self) -> dict[str, Tensor]:
        """Returns global name -> buffer."""
        named = zip(self.names, self._units, strict=True)
        return {f"{name}.{local}": buffer for name, unit in named for local, buffer in unit.named_buffers()}

    def places(self) -> list[tuple[str, nn.Module, str]]:
        """Returns (global name, holding module, attribute) of every parameter, in layer order."""
        return [place for of_unit in self.places_by_unit() for place in of_unit]

    def places_by_unit(self) -> list[list[tuple[str, nn.Module, str]]]:
        """Returns the same as `places`, as one list per layer."""
        return [
            [
                (parameter_name(self._model, name, f"{path}.{attribute}"), module, attribute)
                for path, module in unit.named_modules()
                for attribute, _ in module.named_parameters(recurse=False)
            ]
            for name, unit in zip(self.names, self._units, strict=True)
        ]

    def arrivals(self) -> Counter[nn.Parameter]:
        """Returns how often the backward of one micro-batch adds to each parameter's gradient."""
        return sum((segment.arrivals() for segment in self.segments), Counter())

    def weight_grad_arrivals(self) -> Counter[nn.Parameter]:
        """Returns how many of the `arrivals` are made by W (weight gradients) where backward is split into B and W."""
        return sum((segment.weight_grad_arrivals() for segment in self.segments), Counter())

    def begin_step(self, batches: Sequence[Batch]) -> None:
        """Sets the batches of this step and of those to come whose micro-batches already go forward in it.

        The ids of a later step's micro-batches continue those of the step before.
        """
        self._batches = batches

    def renumber(self, by: int) -> None:
        """Ends the step: ids of micro-batches in flight count from the next step."""
        self._kept = {micro_batch - by: kept for micro_batch, kept in self._kept.items()}

    def _batch_of(self, micro_batch: int) -> tuple[Batch, int]:
        """Returns the batch that a micro-batch belongs to, and its id there."""
        ahead, own = divmod(micro_batch, self._per_step)
        return self._batches[ahead], own

    def forward(self, micro_batch: int, x: Tensor | None) -> Tensor:
        """Runs the forward of a micro-batch. `x`: input activations (None on the first stage, which reads the samples).

        Returns the output activations, or on the last stage the loss: a sum over targets divided by the global count,
        so that the parts add up over micro-batches and replicas.
        """
        if self.unsharder is None:
            return self._forward(micro_batch, x)
        return self.unsharder.through(lambda: self._forward(micro_batch, x))

    def _forward(self, micro_batch: int, x: Tensor | None) -> Tensor:
        kept = self._kept[micro_batch] = []
        if x is None:
            batch, own = self._batch_of(micro_batch)
            x = batch.samples[own].inputs
        for segment in self.segments:
            start = x.detach().requires_grad_(bool(kept) or not self.is_first)
            with torch.set_grad_enabled(not segment.recompute), self._scope.keeping():
                y = self._run(segment, start, micro_batch)
            kept.append(_Kept(start, None if segment.recompute else y))
            x = y
        return x.detach()

    @torch.no_grad()
    def evaluate(self, micro_batch: int, x: Tensor | None) -> Tensor:
        """Runs the forward of a held-out micro-batch: as `forward`, without dropout, keeping nothing for a backward."""
        self._passing.held_out = True
        try:
            if self.unsharder is None:
                return self._evaluate(micro_batch, x)
            return self.unsharder.through(lambda: self._evaluate(micro_batch, x))
        finally:
            self._passing.held_out = False

    def _evaluate(self, micro_batch: int, x: Tensor | None) -> Tensor:
        batch, own = self._batch_of(micro_batch)
        sample = batch.samples.get(own, NOTHING)
        self._passing.at(batch.step, own * self._size, sample, again=False)
        x = sample.inputs if x is None else x
        for unit in self._units[:-1]:
            x = self._call(unit, (x,), goes_back=False)
        if self.is_last:
            return self._call(self._units[-1], (x, sample.targets), goes_back=False) * batch.scale
        return self._call(self._units[-1], (x,), goes_back=False)

    def backward(self, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """Runs the backward of a micro-batch. `grad`: gradient of the stage's output (None on the last stage, which
        starts from the loss scale).

        Returns the gradient of the stage's input (None on the first stage). Parameter gradients are added to the flat
        buffer.
        """
        kept = self._kept.pop(micro_batch)
        for segment in reversed(self.segments):
            x, y = kept.pop()
            if y is None:
                y = self._recompute(segment, x, micro_batch)
            torch.autograd.backward(y, self._loss_scale.seed(y) if grad is None else grad)
            grad = x.grad
            del x, y
        return grad

    def backward_input(self, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """The B of a split backward: `backward` without the weight gradients of linear layers, whose factors are kept
        for W.

        Gradients of other parameters (norms, embeddings) are small: they are computed here, in the same order.
        """
        with self._weights.put_off() as kept:
            out = self.backward(micro_batch, grad)
        self._deferred[micro_batch] = kept
        return out

    @torch.no_grad()
    def backward_weights(self, micro_batch: int) -> None:
        """The W of a split backward: computes the weight gradients that `backward_input` has put off."""
        kept = self._deferred.pop(micro_batch)
        kept.reverse()
        while kept:  # frees each pair of factors as soon as it is used
            self._weights.add(kept.pop())

    def _recompute(self, segment: Segment, x: Tensor, micro_batch: int) -> Tensor:
        with self._scope.recomputing():
            if self.unsharder is None:
                return self._run(segment, x, micro_batch, again=True)
            return self.unsharder.through(lambda: self._run(segment, x, micro_batch, again=True))

    def _run(self, segment: Segment, x: Tensor, micro_batch: int, again: bool = False) -> Tensor:
        batch, own = self._batch_of(micro_batch)
        sample = batch.samples.get(own, NOTHING)
        self._passing.at(batch.step, own * self._size, sample, again)
        for unit in segment.units[:-1]:
            x = self._call(unit, (x,), again)
        last = segment.units[-1]
        if self.is_last and segment is self.segments[-1]:
            return self._call(last, (x, sample.targets), goes_back=True) * batch.scale
        return self._call(last, (x,), again)

    def _call(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor:
        """Runs one layer; `goes_back`: its backward comes next."""
        moved, began = self._scope.moved, time.perf_counter()
        moved()
        out: Tensor = unit(*inputs) if self.unsharder is None else self.unsharder.run(unit, inputs, goes_back)
        if out.requires_grad and time.perf_counter() - began >= LONG_S:
            out.register_hook(lambda _: moved())
        return out
