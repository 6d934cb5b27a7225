"""The training state of a rank as named shares of full tensors: what of a checkpoint it writes and reads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from parallel_core.engine.flat import FlatParameters, Pieces
from parallel_core.engine.shares import Box, Share, split
from parallel_core.layout import Coords
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline.splits import split_dim
from parallel_core.spec import RunSpec

Buffers = dict[str, Pieces]
"""Kind of state -> the parts of that flat buffer which this rank holds. Kinds: "value", "main", and the optimizer's:
"mean" and "square" of AdamW, "momentum" of SGD."""


class Holds(Protocol):
    """What `State` needs to know of the holder of the parameters: a `Trainer`, or a text generator."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def flat(self) -> FlatParameters: ...
    @property
    def place(self) -> Coords: ...
    @property
    def units(self) -> tuple[str, ...]: ...


class State:
    """The training state of one rank, as named shares of full (unsharded) tensors."""

    def __init__(self, trainer: Holds) -> None:
        self._slots, self._size = trainer.flat.slots, trainer.flat.size
        self._place, self._units = trainer.place, trainer.units
        self._how = trainer.spec.parallel.tensor_split
        self._shapes = parameter_shapes(trainer.spec.model, list(trainer.units))

    def shares(self, buffers: Buffers, writing: bool = False) -> dict[str, Share]:
        """Returns `<kind>/<parameter>` -> share. With `writing`, only the shares that this rank has to write."""
        found = {}
        for kind, pieces in buffers.items():
            whole = self._whole(pieces)
            slots = [slot for slot in self._slots if not writing or self._writes(slot.name, whole)]
            starts = [slot.start for slot in slots]  # ascending: a piece is compared with the slots next to it alone
            for first, memory in pieces:
                near = slice(max(bisect_right(starts, first) - 1, 0), bisect_left(starts, first + len(memory)))
                for slot in slots[near]:
                    if (share := self._share(slot, first, memory)) is not None:
                        found[f"{kind}/{slot.name}"] = share
        return found

    def statistics(self, tensors: Mapping[str, Tensor]) -> dict[str, Share]:
        """Returns `stat/<name>` -> share for state other than parameters (running statistics); each tensor is whole."""
        return {
            f"stat/{name}": Share(tensor.shape, [(Box((0,) * tensor.dim(), tuple(tensor.shape)), tensor.view(-1))])
            for name, tensor in tensors.items()
        }

    def mine(self, buffers: Buffers) -> Buffers:
        """Returns the buffers of which this rank writes at least a part."""
        return {kind: pieces for kind, pieces in buffers.items() if not self._whole(pieces) or not self._place.replica}

    def _whole(self, pieces: Pieces) -> bool:
        """Whether every replica holds the entire buffer; otherwise each replica holds its own part (ZeRO)."""
        return sum(len(memory) for _, memory in pieces) == self._size

    def _writes(self, name: str, whole: bool) -> bool:
        """Whether this rank, of all that hold the same share, is the one to write it: replica 0, tensor rank 0 where
        the parameter is not split, and the stage whose layer gives the parameter its name."""
        if (whole and self._place.replica) or (split_dim(name, self._how) is None and self._place.tensor):
            return False
        return any(name.startswith(f"{unit}.") for unit in self._units)

    def _share(self, slot: Any, first: int, memory: Tensor) -> Share | None:
        """Returns the part of the parameter that lies in the buffer `memory`, which begins at element `first` of the
        flat buffer; None where they do not overlap."""
        start, stop = max(slot.start, first), min(slot.stop, first + len(memory))
        if start >= stop:
            return None
        full, local = self._shapes[slot.name], tuple(slot.parameter.shape)
        origin = [0 if n == whole else n * self._place.tensor for n, whole in zip(local, full, strict=True)]
        return Share(full, split(full, origin, memory[start - first : stop - first], local, start - slot.start))
