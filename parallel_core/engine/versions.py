"""Older weight versions of a rank, and the selection of the version that its layers use.

The parameters are views of the flat buffer, which always holds the newest version. A stashed version is a copy of
that buffer; to use it, the parameters' `data` is pointed at the copy, so nothing is moved. Autograd saves parameters
as objects, so a backward uses what they point at when it runs; for layers that save views of parameters instead
(`views_of_weights`), `saving` stores positions in the version.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.engine.buffer_view import BufferView
from parallel_core.engine.flat import FlatParameters
from parallel_core.observe.scope import Scope


class _Copy(NamedTuple):
    """A buffer like the flat one, its view of each parameter, and the number of updates that it has received."""

    values: Tensor
    views: list[Tensor]
    updates: int


class WeightVersions:
    """The newest and all stashed versions, numbered as in `schedule.ir.Op.version`, relative to the current step."""

    def __init__(self, flat: FlatParameters, scope: Scope) -> None:
        self._flat, self._scope = flat, scope
        self._parameters = [slot.parameter for slot in flat]
        self._live = self._seen = _Copy(flat.values, _views(flat, flat.values), 0)
        self._kept: dict[int, _Copy] = {}
        self._spare: list[_Copy] = []
        self.newest = 0
        self.updates = 0
        """Updates so far; the age of a version is the difference from its own count."""

    def buffers(self) -> list[Tensor]:
        """Returns the buffers of all copies, in use or spare."""
        return [copy.values for copy in (*self._kept.values(), *self._spare)]

    def use(self, version: int) -> int:
        """Makes layers use `version` from now on; returns its number of updates. Raises KeyError if it is not kept."""
        if version == self.newest:
            self._show(self._live)
            return self.updates
        kept = self._kept[version]
        self._show(kept)
        return kept.updates

    def use_newest(self) -> None:
        self.use(self.newest)

    @torch.no_grad()
    def stash(self, version: int) -> None:
        """Copies the newest version, which must be `version`, so that it outlasts the next update."""
        spare = self._spare.pop() if self._spare else self._new()
        spare.values.copy_(self._flat.values)
        self._kept[version] = spare._replace(updates=self.updates)

    def drop(self, version: int) -> None:
        """Frees a stashed version for reuse. Raises KeyError if it is not kept."""
        self._spare.append(self._kept.pop(version))

    def updated(self, version: int, changed: bool = True) -> None:
        """Records that the flat buffer now holds `version`; not `changed`: with the values of the last one (a skipped
        update)."""
        self.newest, self.updates = version, self.updates + changed

    def renumber(self, by: int) -> None:
        """Ends the step: version numbers count from the next step, lower by `by`."""
        self.newest -= by
        self._kept = {version - by: copy for version, copy in self._kept.items()}

    def _new(self) -> _Copy:
        values = torch.empty_like(self._flat.values)
        self._scope.kept(values, "params")
        return _Copy(values, _views(self._flat, values), 0)

    def saving(self) -> AbstractContextManager[None]:
        """Returns a context for a forward pass whose backward will use the weights of the version in use then, without
        keeping the memory of those in use now."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, saved: Tensor) -> Tensor | BufferView:
        return BufferView.of(saved, self._seen.values) or saved

    def _unpack(self, kept: Tensor | BufferView) -> Tensor:
        return kept.within(self._seen.values) if isinstance(kept, BufferView) else kept

    def _show(self, copy: _Copy) -> None:
        if copy.values is not self._seen.values:
            for parameter, view in zip(self._parameters, copy.views, strict=True):
                parameter.data = view
            self._seen = copy


def views_of_weights(layer: nn.Module) -> bool:
    """Whether autograd saves views of the layer's parameters in place of the parameters themselves."""
    return any(isinstance(module, nn.RNNBase) for module in layer.modules())


def _views(flat: FlatParameters, values: Tensor) -> list[Tensor]:
    return [values[slot.start : slot.stop].view(slot.parameter.shape) for slot in flat]
