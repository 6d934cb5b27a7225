"""ZeRO-3 by torch's own `fully_shard` (FSDP2, Zhao et al. 2023), in place of `engine.zero3` and `engine.zero2`.

Each layer is one FSDP group. torch shards each parameter by its first dimension, gathers a layer's parameters before
its forward and before its backward, frees them afterwards, and reduce-scatters its gradients. Everything else is done
by this engine: the owned part is updated by a `FlatOptimizer`, normed, saved by name and compared as in other layouts.
Gradients are summed, not averaged: the loss is already divided by the global count.

In 16-bit runs the sharded parameters are fp32 master weights; a layer is cast when it is gathered
(`MixedPrecisionPolicy`), to the same bits that other layouts keep next to their master weights. Its gradients have the
dtype of the cast parameters, also those that are sums over rows (biases, norms, embeddings), which other layouts keep
in fp32: in fp16 these overflow at a scale at which no other gradient does.

The collectives go through `set_custom_all_gather` and `set_custom_reduce_scatter`, where their spans are recorded. On
CUDA torch runs both on streams of its own, so that they are in flight while the rank computes; where it waits for one,
that is in the span of the operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard

from parallel_core.engine.collectives import all_gather, reduce_scatter
from parallel_core.engine.device import Device
from parallel_core.engine.flat import FlatParameters, Pieces, Slot
from parallel_core.engine.injected import late
from parallel_core.engine.precision import main_dtype
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import FLIGHT, Kind
from parallel_core.tensor.weights import WeightGradients

Layer = tuple[nn.Module, Sequence[tuple[str, nn.Module, str]]]
"""A layer, and (global name, holding module, attribute) of each of its parameters, which are on the meta device."""


class _Collective:
    """Common part of both collectives: records their spans and applies an injected delay."""

    def __init__(self, scope: Scope, delay: float) -> None:
        self.scope, self.delay, self.moved = scope, delay, 0

    def end(self, kind: Kind, begin: Callable[[], Any], moved: int, aside: bool = False) -> None:
        """Runs the collective that `begin` starts, delayed by `delay` seconds, and records its span and bytes: as its
        flight if it runs `aside`, on a stream on which the rank does not compute."""
        start = self.scope.mark()
        with self.scope.named(kind.name):
            late(begin(), self.delay).wait()
        self.scope.span(FLIGHT[kind] if aside else kind, LANE_COLLECTIVE, start, moved)
        self.moved += moved


class _Gather(_Collective, AllGather):
    """The all-gather of a layer's parameters. torch calls it, on CUDA on a stream of its own."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        with self.scope.making("params"):
            return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        begin = partial(all_gather, output_tensor, input_tensor, group)
        self.end(Kind.UNSHARD, begin, output_tensor.nbytes, aside=output_tensor.is_cuda)


class _Scatter(_Collective, ReduceScatter):
    """The reduce-scatter of a layer's gradients; `op` is always a sum, as the layers are configured for it."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        with self.scope.making("grads"):
            return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        kind = Kind.BUCKET if input_tensor.is_cuda else Kind.BUCKET_WAIT  # on CUDA on a stream of its own
        self.end(kind, lambda: reduce_scatter(output_tensor, input_tensor, group), input_tensor.nbytes)


class FullySharded(FlatParameters):
    """Flat parameters sharded by torch: `held` is torch's memory of the owned rows, `grads` is this engine's buffer."""

    def __init__(
        self,
        layers: Sequence[Layer],
        first: Callable[[str, Tensor], object],
        dtype: torch.dtype,
        device: Device,
        mesh: DeviceMesh,
    ) -> None:
        """`first` writes the initial values of the named parameter into a tensor; only one layer is unsharded at a
        time."""
        self.mesh, self._dtype, main = mesh, dtype, main_dtype(dtype)
        policy = MixedPrecisionPolicy(dtype if dtype != main else None, main, cast_forward_inputs=False)
        self.sharded = self.shard_grads = self.shard_values = True
        self.buckets, self.parts = (), []
        self.layers = [module for module, _ in layers]
        found: list[tuple[str, nn.Parameter]] = []
        for module, named in layers:
            for name, holder, attribute in named:
                whole = torch.zeros(getattr(holder, attribute).shape, dtype=dtype, device=device.torch)
                first(name, whole)
                setattr(holder, attribute, nn.Parameter(whole.to(main)))
            fully_shard(module, mesh=self.mesh, mp_policy=policy)
            found += [(name, getattr(holder, attribute)) for name, holder, attribute in named]
        self.slots = _slots(found)
        self.size = self.slots[-1].stop
        self.held = [_local(parameter).view(-1) for _, parameter in found]
        self.values = torch.empty(0, dtype=main, device=device.torch)
        self.owned = [_owned(slot, part, self.mesh) for slot, part in zip(self.slots, self.held, strict=True)]
        self.grads = torch.zeros(sum(map(len, self.held)), dtype=main, device=device.torch)
        self.mine = self._split_grads()

    def _split_grads(self) -> tuple[Tensor, ...]:
        """Returns the part of `grads` for each parameter, and makes torch accumulate there."""
        mine = self.grads.split([len(part) for part in self.held])
        for slot, grad in zip(self.slots, mine, strict=True):
            self._accumulate_in(slot.parameter, grad)
        return mine

    def _accumulate_in(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """Makes torch add the result of each micro-batch's reduce-scatter to `grad`."""
        local = grad.view(_local(parameter).shape)
        shape, stride = parameter.shape, parameter.stride()
        parameter.grad = DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    @property
    def stores(self) -> list[Tensor]:
        return self.held

    def named(self) -> dict[str, Tensor]:
        raise NotImplementedError("no parameter is whole between steps")

    def owned_grads(self) -> dict[str, Tensor]:
        return {slot.name: grad for slot, grad in zip(self.slots, self.mine, strict=True)}

    def owned_values(self) -> dict[str, tuple[int, Tensor]]:
        """As in `FlatParameters`, in the dtype that layers compute in."""
        return {
            slot.name: (owned.start - slot.start, part.to(self._dtype))
            for slot, owned, part in zip(self.slots, self.owned, self.held, strict=True)
        }

    def buffers(self) -> dict[str, Pieces]:
        """As in `FlatParameters`; in 16-bit runs both the master weights and the rounded values, as other layouts save
        them."""
        own = self.loaded_buffers()
        if "value" in own:
            return own
        return {"value": tuple((first, part.to(self._dtype)) for first, part in own["main"]), **own}

    def loaded_buffers(self) -> dict[str, Pieces]:
        own = tuple((owned.start, part) for owned, part in zip(self.owned, self.held, strict=True))
        return {"value" if self._dtype == self.grads.dtype else "main": own}


class FullyShardedReducer:
    """Runs layers with torch's hooks (`zero3.Unsharding`), and is the step's `reduction.Reducer`, for which torch has
    already done the work."""

    def __init__(
        self, flat: FullySharded, weights: WeightGradients, scope: Scope, delay: float, recomputes: bool
    ) -> None:
        self._scope, self._scatter = scope, _Scatter(scope, delay)
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # no layer's output is changed in place
        gather = _Gather(scope, delay)
        weights.sums = self._sums
        for layer in flat.layers:
            assert isinstance(layer, FSDPModule)
            layer.set_custom_all_gather(gather)
            layer.set_custom_reduce_scatter(self._scatter)
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)
            layer.register_forward_pre_hook(self._register_gathered)
        self._root = _Root(flat.layers)
        fully_shard(self._root, mesh=flat.mesh)
        if recomputes:  # a recomputation gathers the layers that it runs by itself
            _disable_prefetch(flat.layers[-1])

    def through(self, walk: Callable[[], Tensor]) -> Tensor:
        """Runs a forward pass through several layers under one root module, so that torch prefetches the next layer."""
        out: Tensor = self._root(walk)
        if not torch.is_grad_enabled():  # no backward follows, after which torch forgets the order of these layers
            assert isinstance(self._root, FSDPModule)
            self._root.reset_iter_state()
        return out

    def run(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor:
        """Returns the layer's output. With `goes_back` its parameters stay gathered, since its backward comes next."""
        assert isinstance(unit, FSDPModule)
        unit.set_reshard_after_forward(not goes_back, recurse=False)
        out: Tensor = unit(*inputs)
        return out

    def begin_step(self) -> None:
        return

    def finish(self) -> int:
        """Returns the bytes reduced since the last call; torch has already waited at the end of each backward."""
        moved, self._scatter.moved = self._scatter.moved, 0
        return moved

    def gather(self) -> int:
        return 0

    def _register_gathered(self, unit: nn.Module, inputs: Any) -> None:
        """Forward pre-hook that runs after torch's own: registers the gathered parameters with the memory meter, as
        storages that are resized."""
        if self._scope.meter is not None:
            for parameter in unit.parameters():
                self._scope.meter.register(parameter, "params", elastic=True)

    def _sums(self, parameter: nn.Parameter) -> Tensor:
        """Returns the tensor that the gradient of `parameter` is added to, created at its first use."""
        if parameter.grad is None:
            with self._scope.making("grads"):
                parameter.grad = torch.zeros_like(parameter)
        return parameter.grad


class _Root(nn.Module):
    """The module that torch takes for the whole model: its layers share streams and prefetch each other."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, walk: Callable[[], Tensor]) -> Tensor:
        return walk()


def _disable_prefetch(layer: nn.Module) -> None:
    """Makes the layer's backward prefetch no other layer."""
    assert isinstance(layer, FSDPModule)
    layer.set_modules_to_backward_prefetch([layer])


def _slots(found: Sequence[tuple[str, nn.Parameter]]) -> list[Slot]:
    out, at = [], 0
    for name, parameter in found:
        out.append(Slot(name, parameter, at, at + parameter.numel()))
        at += parameter.numel()
    return out


@torch.no_grad()
def _local(parameter: nn.Parameter) -> Tensor:
    """Returns this replica's rows, in torch's memory."""
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def _owned(slot: Slot, part: Tensor, mesh: DeviceMesh) -> slice:
    """Returns the elements of a replica's rows: ceil(rows / replicas) rows each, fewer or none on the last replicas."""
    rows = slot.parameter.shape[0]
    first = min(mesh.get_local_rank() * -(-rows // mesh.size()), rows)
    start = slot.start + first * (slot.parameter.numel() // rows)
    return slice(start, start + len(part))


def mesh_of(group: dist.ProcessGroup, device: Device) -> DeviceMesh:
    """Returns the device mesh of a group of replicas."""
    return DeviceMesh.from_group(group, device.kind)
