"""The model chunks of one rank: one or several pipeline stages over one pair of flat buffers (values and gradients)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from parallel_core.engine.collectives import Group
from parallel_core.engine.device import Device
from parallel_core.engine.flat import FlatParameters, Shard
from parallel_core.engine.fully_sharded import FullySharded, mesh_of
from parallel_core.engine.precision import DTYPES, LossScale
from parallel_core.engine.stage import Batch, Stage
from parallel_core.engine.zero3 import Unsharding
from parallel_core.models.initial import fill
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.scope import Scope
from parallel_core.outline.splits import split_dim
from parallel_core.plan.grad_buckets import BucketKey, alone_of, bucket_bytes, bucket_key, shards_of
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.weights import WeightGradients

First = Callable[[str, Tensor], None]


class Chunks:
    """The stages of a rank. `stages`: stage number -> names of its layers (units of `ModelSpec.units`), ascending.

    Optimizer, norm and gradient reduction work on `flat` alone. A tied parameter whose two layers are both on this
    rank is a single parameter.
    """

    def __init__(
        self,
        spec: RunSpec,
        stages: Mapping[int, Sequence[str]],
        group: TensorGroup,
        replicas: Group,
        device: Device,
        scope: Scope,
        shards: dist.ProcessGroup | None = None,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """`shards`: the replicas over which torch's `fully_shard` shards parameters; None where this engine shards
        them, if anything does. `tell` is called once for each parameter as it is initialized."""
        self.weights, self.loss_scale = WeightGradients(scope), LossScale(spec.train)
        self.stages = {
            number: Stage(spec, names, group, self.weights, self.loss_scale, scope) for number, names in stages.items()
        }
        self.names = tuple(name for names in stages.values() for name in names)
        first = self._initializer(spec, group, tell)
        if shards is not None:
            self.flat: FlatParameters = self._fully_sharded(spec, device, mesh_of(shards, device), first)
        else:
            self.flat = self._flat_parameters(spec, replicas, device, scope)
            self.flat.fill(first)
        for stage in self.stages.values():
            stage.prepare(replicas, device)

    def _fully_sharded(self, spec: RunSpec, device: Device, mesh: DeviceMesh, first: First) -> FlatParameters:
        layers = [
            layer for stage in self.stages.values() for layer in zip(stage.layers, stage.places_by_unit(), strict=True)
        ]
        return FullySharded(layers, first, DTYPES[spec.train.precision], device, mesh)

    def _flat_parameters(self, spec: RunSpec, replicas: Group, device: Device, scope: Scope) -> FlatParameters:
        shard = Shard(shards_of(spec), scope.replica if spec.parallel.zero else 0, alone_of(spec))
        if spec.parallel.zero > 1 and replicas is not None:
            values, keys = spec.parallel.zero > 2, self._bucket_keys(spec)
            bucket = bucket_bytes(spec)
            shard = replace(shard, shard_grads=True, shard_values=values, bucket=bucket, bucket_keys=keys)
        named = [place for stage in self.stages.values() for place in stage.places()]
        return FlatParameters(named, DTYPES[spec.train.precision], device, shard)

    def _bucket_keys(self, spec: RunSpec) -> dict[str, BucketKey]:
        """Returns the key `plan.grad_buckets.bucket_key` of every parameter; of a tied one, that of its first layer."""
        units = spec.model.units()
        return {
            name: bucket_key(spec, number, units.index(unit))
            for number, stage in reversed(self.stages.items())
            for unit, held in reversed(list(zip(stage.names, stage.places_by_unit(), strict=True)))
            for name, *_ in held
        }

    def _initializer(self, spec: RunSpec, group: TensorGroup, tell: Callable[[], None]) -> First:
        """Returns a function that fills a tensor with the initial values of the parameter of that name: with this
        tensor rank's share of the full parameter."""
        shapes = parameter_shapes(spec.model, list(self.names))

        def first(name: str, target: Tensor) -> None:
            tell()
            split = split_dim(name, spec.parallel.tensor_split) if group.size > 1 else None
            dim = split or 0
            at = 0 if split is None else group.rank * target.shape[dim]
            fill(target, spec.model, spec.train.seed, name, shapes[name], dim, at)

        return first

    def buffers(self) -> dict[str, torch.Tensor]:
        """Returns global name -> layer state that is not a parameter: running statistics."""
        return {name: buffer for stage in self.stages.values() for name, buffer in stage.buffers().items()}

    def unshard_by(self, unsharder: Unsharding | None) -> None:
        """Sets what gathers a layer's parameters while the layer runs (ZeRO-3); None where they are always whole."""
        for stage in self.stages.values():
            stage.unsharder = unsharder

    def begin_step(self, batches: Sequence[Batch]) -> None:
        """Sets the batches that the following calls to the stages refer to (`Stage.begin_step`)."""
        for stage in self.stages.values():
            stage.begin_step(batches)

    def renumber(self, by: int) -> None:
        """Ends the step: ids of micro-batches in flight count from the next step, lower by `by`."""
        for stage in self.stages.values():
            stage.renumber(by)

    def arrivals(self) -> Counter[nn.Parameter]:
        """Returns how often the backward of one micro-batch, through all stages, adds to each parameter's gradient."""
        return sum((stage.arrivals() for stage in self.stages.values()), Counter())

    def weight_grad_arrivals(self) -> Counter[nn.Parameter]:
        """Returns how many of the `arrivals` are made by W (weight gradients) where backward is split into B and W."""
        return sum((stage.weight_grad_arrivals() for stage in self.stages.values()), Counter())
