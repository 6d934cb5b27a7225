"""One rank's layers, and how one micro-batch goes through them forward and backward.

With recomputation a transformer block keeps only its input in the forward pass (no graph) and is run again, just before
its own backward (Chen et al. 2016): the layers that share a block index and a stage are recomputed together, so a cut
inside a block leaves two shorter ones. Embedding and head keep their graph: running them again would save little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.engine.device import Device
from parallel_core.engine.flat import FlatParameters
from parallel_core.models.gpt import build_unit, parameter_name, parameter_shapes
from parallel_core.models.initial import initial
from parallel_core.observe.recorder import LANE_COMPUTE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind
from parallel_core.spec import ModelSpec, RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.parallelise import parallelise, shard

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Segment:
    """Layers that go forward and backward together; `recompute` = only their input is kept in between."""

    units: tuple[nn.Module, ...]
    recompute: bool

    def parameters(self) -> set[nn.Parameter]:
        return {parameter for unit in self.units for parameter in unit.parameters()}


class _Kept(NamedTuple):
    """What a segment keeps of a micro-batch: its input and, where it is not recomputed, its output with the graph."""

    x: Tensor
    y: Tensor | None


class Stage:
    """The units `names` (of `ModelSpec.units`) on this rank."""

    def __init__(self, spec: RunSpec, names: Sequence[str], group: TensorGroup, device: Device, scope: Scope) -> None:
        dtype = DTYPES[spec.train.precision]
        self._group, self._scope = group, scope
        self.names = tuple(names)
        units = [parallelise(build_unit(spec.model, name, dtype), group) for name in names]
        self.flat = FlatParameters(_places(spec.model, names, units), dtype, device)
        self._fill(spec)
        self.segments = _segments(names, units, spec.parallel.recompute == "full")
        self.is_last = names[-1] == "head"
        self._scale = 1.0 / spec.tokens_per_step
        self._kept: dict[int, list[_Kept]] = {}
        self._targets: dict[int, Tensor] = {}

    def _fill(self, spec: RunSpec) -> None:
        """Give every parameter its first value: the full one, cut to this rank's share."""
        shapes = parameter_shapes(spec.model, list(self.names))
        with torch.no_grad():
            for slot in self.flat:
                full = initial(spec.model, spec.train.seed, slot.name, shapes[slot.name])
                slot.parameter.copy_(shard(full, slot.name, self._group.rank, self._group.size))

    def forward(self, micro_batch: int, x: Tensor, targets: Tensor | None) -> Tensor:
        """Tokens or activations in; activations out, or on the last stage the micro-batch's part of the loss.

        The loss is the sum over targets divided by the global count, so parts add up over micro-batches and replicas.
        """
        kept = self._kept[micro_batch] = []
        if targets is not None:
            self._targets[micro_batch] = targets
        for segment in self.segments:
            start = x.detach().requires_grad_(x.is_floating_point())
            with torch.set_grad_enabled(not segment.recompute), self._scope.keeping():
                y = self._run(segment, start, targets)
            kept.append(_Kept(start, None if segment.recompute else y))
            x = y
        return x.detach()

    def backward(self, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """Gradient of the stage's output in (None on the last stage), of its input out (None on the first).

        Parameter gradients are added to the flat buffer.
        """
        kept, targets = self._kept.pop(micro_batch), self._targets.pop(micro_batch, None)
        for segment in reversed(self.segments):
            x, y = kept.pop()
            if y is None:
                y = self._again(segment, x, targets)
            torch.autograd.backward(y, grad)
            grad = x.grad
            del x, y
        return grad

    def _again(self, segment: Segment, x: Tensor, targets: Tensor | None) -> Tensor:
        start = self._scope.mark()
        with torch.enable_grad(), self._scope.keeping():
            y = self._run(segment, x, targets)
        self._scope.span(Kind.R, LANE_COMPUTE, start)
        return y

    def _run(self, segment: Segment, x: Tensor, targets: Tensor | None) -> Tensor:
        for unit in segment.units[:-1]:
            x = unit(x)
        last = segment.units[-1]
        if self.is_last and segment is self.segments[-1]:
            loss: Tensor = last(x, targets) * self._scale
            return loss
        out: Tensor = last(x)
        return out


def _places(model: ModelSpec, names: Sequence[str], units: list[nn.Module]) -> list[tuple[str, nn.Module, str]]:
    """(global name, holding module, attribute) of every parameter, in layer order."""
    return [
        (parameter_name(model, name, f"{path}.{attribute}"), module, attribute)
        for name, unit in zip(names, units, strict=True)
        for path, module in unit.named_modules()
        for attribute, _ in module.named_parameters(recurse=False)
    ]


def _segments(names: Sequence[str], units: list[nn.Module], recompute: bool) -> tuple[Segment, ...]:
    if not recompute:
        return (Segment(tuple(units), False),)
    pairs = zip(names, units, strict=True)
    return tuple(
        Segment(tuple(unit for _, unit in group), block.startswith("block"))
        for block, group in groupby(pairs, key=lambda pair: pair[0].rsplit(".", 1)[0])
    )
