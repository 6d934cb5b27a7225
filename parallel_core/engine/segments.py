"""The layers of a stage in segments: those that go forward and backward together.

Layers of one block on one stage are recomputed together, so a cut within a block yields two shorter segments. Embedding
and head keep their graph: recomputing them would save little. Nor is the last product of a block computed again: only
the block's output is made of it, which no backward reads. (torch.utils.checkpoint stops early for the same reason.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import nn

from parallel_core.models.attention import Core
from parallel_core.models.microbatch_context import MicroBatchContext
from parallel_core.observe.scope import Scope
from parallel_core.outline import block_of, outline_of
from parallel_core.outline.recompute import recomputed
from parallel_core.spec import RunSpec
from parallel_core.tensor.linear import SplitLinear


@dataclass(frozen=True)
class Segment:
    """Consecutive layers that go forward and backward together; with `recompute` only their input is kept."""

    units: tuple[nn.Module, ...]
    recompute: bool

    def arrivals(self) -> Counter[nn.Parameter]:
        """How often one backward adds to each gradient: autograd once per segment, a `SplitLinear` once per layer."""
        by_autograd = {
            parameter
            for module in self._modules()
            if not isinstance(module, SplitLinear)
            for parameter in module.parameters(recurse=False)
        }
        return self.weight_grad_arrivals() + Counter(by_autograd)

    def weight_grad_arrivals(self) -> Counter[nn.Parameter]:
        """Returns how often linear layers (`SplitLinear`) do so: in W, where backward is split."""
        linear = (module for module in self._modules() if isinstance(module, SplitLinear))
        return Counter(parameter for module in linear for parameter in module.parameters(recurse=False))

    def _modules(self) -> Iterator[nn.Module]:
        return (module for unit in self.units for module in unit.modules())


def segments_of(
    spec: RunSpec, names: Sequence[str], units: Sequence[nn.Module], passing: MicroBatchContext, scope: Scope
) -> tuple[Segment, ...]:
    """Returns the segments of a stage with the layers `units`, called `names`, through which `passing` passes; prepares
    their layers for the run's recomputation."""
    how, chosen = spec.parallel.recompute, recomputed(spec.parallel, spec.model.units())
    for name, unit in zip(names, units, strict=True):
        if block_of(name) not in chosen:
            continue
        if how == "selective":
            _recompute_core(unit, scope)
        elif layer := outline_of(spec.model).unread(name):
            _leave_out(unit.get_submodule(layer), passing)
    return _grouped(names, units, chosen if how == "full" else None)


def _leave_out(linear: nn.Module, passing: MicroBatchContext) -> None:
    assert isinstance(linear, SplitLinear)
    linear.passing = passing


def _recompute_core(unit: nn.Module, scope: Scope) -> None:
    for module in unit.modules():
        if isinstance(module, Core):
            module.recomputing = scope.recomputing


def _grouped(names: Sequence[str], units: Sequence[nn.Module], chosen: frozenset[str] | None) -> tuple[Segment, ...]:
    """Returns a segment for each block and for each layer outside of blocks; those of `chosen` blocks are recomputed.
    With `chosen` None, returns one segment of all layers."""
    if chosen is None:
        return (Segment(tuple(units), False),)
    pairs = zip(names, units, strict=True)
    return tuple(
        Segment(tuple(unit for _, unit in group), block in chosen)
        for block, group in groupby(pairs, key=lambda pair: block_of(pair[0]) or pair[0])
    )
