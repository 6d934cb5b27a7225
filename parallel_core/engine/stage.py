"""One stage's layers, and how one micro-batch goes through them forward and backward.

With recomputation a transformer block keeps only its input in the forward pass (no graph) and is run again, just before
its own backward (Chen et al. 2016): the layers that share a block index and a stage are recomputed together, so a cut
inside a block leaves two shorter ones. Embedding and head keep their graph: running them again would save little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.engine.collectives import Group
from parallel_core.engine.device import Device
from parallel_core.engine.precision import DTYPES, LossScale
from parallel_core.engine.zero3 import Unsharding
from parallel_core.models.attention import Core
from parallel_core.models.microbatch_context import NOTHING, MicroBatchContext, Sample, follow
from parallel_core.models.registry import build_unit, parameter_name
from parallel_core.observe.scope import Scope
from parallel_core.outline import block_of
from parallel_core.outline.recompute import recomputed
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.linear import SplitLinear
from parallel_core.tensor.parallelise import parallelise
from parallel_core.tensor.replicas import materialise, synchronise
from parallel_core.tensor.sequence import Rows
from parallel_core.tensor.weights import WeightGradient, WeightGradients


@dataclass(frozen=True)
class Segment:
    """Layers that go forward and backward together; `recompute` = only their input is kept in between."""

    units: tuple[nn.Module, ...]
    recompute: bool

    def arrivals(self) -> Counter[nn.Parameter]:
        """How many times one backward adds to each gradient: autograd once a segment, a split linear once a layer."""
        by_autograd = {
            parameter
            for module in self._modules()
            if not isinstance(module, SplitLinear)
            for parameter in module.parameters(recurse=False)
        }
        return self.handed_in() + Counter(by_autograd)

    def handed_in(self) -> Counter[nn.Parameter]:
        """How many times linear layers do so: in W, where backward is split."""
        linear = (module for module in self._modules() if isinstance(module, SplitLinear))
        return Counter(parameter for module in linear for parameter in module.parameters(recurse=False))

    def _modules(self) -> Iterator[nn.Module]:
        return (module for unit in self.units for module in unit.modules())


class _Kept(NamedTuple):
    """What a segment keeps of a micro-batch: its input and, where it is not recomputed, its output with the graph."""

    x: Tensor
    y: Tensor | None


class Batch(NamedTuple):
    """A rank's part of a step's global batch: each of its micro-batches by id, and 1 / (targets of all ranks)."""

    step: int
    samples: dict[int, Sample]
    scale: float


class Stage:
    """The units `names` (of `ModelSpec.units`), one after the other."""

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
        chosen, again = recomputed(spec.parallel, spec.model.units()), spec.parallel.recompute
        self.segments = _segments(names, self._units, chosen if again == "full" else None)
        if again == "selective":
            for unit in (unit for name, unit in zip(names, self._units, strict=True) if block_of(name) in chosen):
                _recompute_core(unit, scope)
        self.is_first, self.is_last = names[0] == spec.model.units()[0], names[-1] == "head"
        self._passing, self._size = MicroBatchContext(spec.train.seed), spec.micro_batch_size
        for unit in self._units:
            follow(unit, self._passing)
        self._kept: dict[int, list[_Kept]] = {}
        self._batches: Sequence[Batch] = ()
        self._per_step = spec.parallel.per_step
        self._put_off: dict[int, list[WeightGradient]] = {}
        self.unsharder: Unsharding | None = None
        """Makes the parameters of a layer whole while it works (ZeRO-3)."""

    @property
    def layers(self) -> list[nn.Module]:
        """One for each of `names`."""
        return self._units

    def prepare(self, replicas: Group, device: Device) -> None:
        """Everything of the layers that is no parameter: their buffers, and whom their statistics are shared with."""
        for unit in self._units:
            synchronise(unit, replicas, self._scope)
            materialise(unit, device.torch)

    def buffers(self) -> dict[str, Tensor]:
        """Global name -> buffer."""
        named = zip(self.names, self._units, strict=True)
        return {f"{name}.{local}": buffer for name, unit in named for local, buffer in unit.named_buffers()}

    def places(self) -> list[tuple[str, nn.Module, str]]:
        """(global name, holding module, attribute) of every parameter, in layer order."""
        return [place for of_unit in self.places_by_unit() for place in of_unit]

    def places_by_unit(self) -> list[list[tuple[str, nn.Module, str]]]:
        """The same, layer by layer."""
        return [
            [
                (parameter_name(self._model, name, f"{path}.{attribute}"), module, attribute)
                for path, module in unit.named_modules()
                for attribute, _ in module.named_parameters(recurse=False)
            ]
            for name, unit in zip(self.names, self._units, strict=True)
        ]

    def arrivals(self) -> Counter[nn.Parameter]:
        """How many times the backward of one micro-batch adds to each parameter's gradient."""
        return sum((segment.arrivals() for segment in self.segments), Counter())

    def handed_in(self) -> Counter[nn.Parameter]:
        """How many of them wait for W, where backward is split."""
        return sum((segment.handed_in() for segment in self.segments), Counter())

    def begin_step(self, batches: Sequence[Batch]) -> None:
        """The micro-batches that the next calls are about: those of the step and, where some go forward before their
        own step, of steps to come, whose ids go on where the ones before end."""
        self._batches = batches

    def renumber(self, by: int) -> None:
        """The step is over: ids of micro-batches that are still under way count from the next one."""
        self._kept = {micro_batch - by: kept for micro_batch, kept in self._kept.items()}

    def _drawn(self, micro_batch: int) -> tuple[Batch, int]:
        """The batch that it is of, and its id there."""
        ahead, own = divmod(micro_batch, self._per_step)
        return self._batches[ahead], own

    def forward(self, micro_batch: int, x: Tensor | None) -> Tensor:
        """Activations in (None on the first stage: the samples); out, or on the last stage the micro-batch's loss.

        The loss is the sum over targets divided by the global count, so parts add up over micro-batches and replicas.
        """
        if self.unsharder is None:
            return self._forward(micro_batch, x)
        return self.unsharder.through(lambda: self._forward(micro_batch, x))

    def _forward(self, micro_batch: int, x: Tensor | None) -> Tensor:
        kept = self._kept[micro_batch] = []
        if x is None:
            batch, own = self._drawn(micro_batch)
            x = batch.samples[own].inputs
        for segment in self.segments:
            start = x.detach().requires_grad_(bool(kept) or not self.is_first)
            with torch.set_grad_enabled(not segment.recompute), self._scope.keeping():
                y = self._run(segment, start, micro_batch)
            kept.append(_Kept(start, None if segment.recompute else y))
            x = y
        return x.detach()

    def backward(self, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """Gradient of the stage's output in (None on the last stage: it starts from the loss scale), of its input out
        (None on the first).

        Parameter gradients are added to the flat buffer.
        """
        kept = self._kept.pop(micro_batch)
        for segment in reversed(self.segments):
            x, y = kept.pop()
            if y is None:
                y = self._again(segment, x, micro_batch)
            torch.autograd.backward(y, self._loss_scale.seed(y) if grad is None else grad)
            grad = x.grad
            del x, y
        return grad

    def backward_input(self, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """`backward` without the products for the weights of linear layers; their factors are kept.

        Gradients of other parameters (norms, embeddings) are small: they are added here, in the same order.
        """
        with self._weights.put_off() as kept:
            out = self.backward(micro_batch, grad)
        self._put_off[micro_batch] = kept
        return out

    @torch.no_grad()
    def backward_weights(self, micro_batch: int) -> None:
        """The rest of `backward_input`."""
        kept = self._put_off.pop(micro_batch)
        kept.reverse()
        while kept:  # each pair is let go as soon as it is used
            self._weights.add(kept.pop())

    def _again(self, segment: Segment, x: Tensor, micro_batch: int) -> Tensor:
        with self._scope.recomputing():
            if self.unsharder is None:
                return self._run(segment, x, micro_batch, again=True)
            return self.unsharder.through(lambda: self._run(segment, x, micro_batch, again=True))

    def _run(self, segment: Segment, x: Tensor, micro_batch: int, again: bool = False) -> Tensor:
        batch, own = self._drawn(micro_batch)
        sample = batch.samples.get(own, NOTHING)
        self._passing.at(batch.step, own * self._size, sample, again)
        for unit in segment.units[:-1]:
            x = self._call(unit, (x,), again)
        last = segment.units[-1]
        if self.is_last and segment is self.segments[-1]:
            return self._call(last, (x, sample.targets), goes_back=True) * batch.scale
        return self._call(last, (x,), again)

    def _call(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor:
        """One layer; `goes_back`: its backward is the next thing."""
        if self.unsharder is not None:
            return self.unsharder.run(unit, inputs, goes_back)
        out: Tensor = unit(*inputs)
        return out


def _recompute_core(unit: nn.Module, scope: Scope) -> None:
    for module in unit.modules():
        if isinstance(module, Core):
            module.recomputing = scope.recomputing


def _segments(names: Sequence[str], units: list[nn.Module], chosen: frozenset[str] | None) -> tuple[Segment, ...]:
    """One for each block and each layer outside of blocks, the `chosen` recomputed; None: one of all layers."""
    if chosen is None:
        return (Segment(tuple(units), False),)
    pairs = zip(names, units, strict=True)
    return tuple(
        Segment(tuple(unit for _, unit in group), block in chosen)
        for block, group in groupby(pairs, key=lambda pair: block_of(pair[0]) or pair[0])
    )
