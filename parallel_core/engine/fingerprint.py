"""Checks every k steps that ranks which should hold the same values hold the same bits, by a 64-bit number per
parameter.

The fingerprint of a tensor is the sum over its elements of bits x A[row] x B[column], modulo 2^64, with pseudo-random
odd factors. An integer sum is exact in any order, and the fingerprints of the shards of a tensor add up to that of the
full tensor: it is the same under every layout, also under ZeRO-3, where no two ranks hold the same values to compare. A
change of one element always changes the sum, since multiplying by an odd factor loses no bit; changes of several
elements cancel out only by chance. Samples are compared too: which were drawn, and what was read.

Under a flush all ranks exchange their numbers at the end of the step. A pipeline that does not flush would drain if
they waited for each other there: like totals, the numbers are sent then, and compared `steps_apart` steps later.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_core.engine.collectives import TableGroup, all_gather
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.host_copies import Download
from parallel_core.engine.norm import held
from parallel_core.engine.shares import split
from parallel_core.models.registry import buffer_shapes, parameter_shapes
from parallel_core.observe.observed_steps import is_nth_or_last
from parallel_core.outline import outline_of
from parallel_core.outline.splits import TensorSplit, split_dim
from parallel_core.schedule.stream import steps_apart

if TYPE_CHECKING:
    from parallel_core.engine.trainer import Trainer

_BLOCK = {"cpu": 1 << 16}
"""Elements processed at a time, by device kind: on a CPU core their 64-bit products stay in the cache."""
_LARGE = 1 << 23
"""The same on other devices, where each block costs several kernel launches: 64 MiB of products."""
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MASK = (1 << 64) - 1
_Part = tuple[Tensor, int, int]
"""A part of a tensor, and the row and column of the tensor at which the part begins."""


class ReplicasDiffer(Exception):
    """Ranks that should hold the same bits do not; the message names the steps in which it can have begun, the
    first differing tensor, and the ranks."""


class Print(NamedTuple):
    """The fingerprints of the whole model and of a step's samples, the same under any layout; `seconds` is the time it
    took."""

    step: int
    parameters: int
    samples: int
    seconds: float


class _Begun(NamedTuple):
    """A check whose numbers are on their way; `seconds`: what it has taken so far."""

    step: int
    mine: Tensor
    """Kept until then: NCCL only keeps what it sends until a stream is told to wait for it."""
    rows: Download
    seconds: float


class Fingerprints:
    """Compares fingerprints over all ranks: every rank calls `after_step` after the same steps.

    `group`: `distributed.Groups.fingerprints`; `first` = first step of the attempt.
    """

    def __init__(self, trainer: Trainer, group: TableGroup, first: int) -> None:
        self._trainer, self._group, self._device = trainer, group, trainer.device.torch
        model, layout = trainer.spec.model, trainer.layout
        self._every = trainer.spec.trace.fingerprint_every
        self._split = trainer.spec.parallel.tensor_split
        units = [[u for s in layout.stages_of(place) for u in _units(trainer, s)] for place in range(layout.pp)]
        self._names = [[*held(model, layout, p), *buffer_shapes(model, units[p])] for p in range(layout.pp)]
        self._shapes = {**parameter_shapes(model), **buffer_shapes(model)}
        self._reads = [bool(outline_of(model).readers & set(names)) for names in units]
        self._width = max(map(len, self._names)) + 2
        self._lag = steps_apart(trainer.spec)
        self._begun: deque[_Begun] = deque()
        table = torch.empty(layout.world * self._width, dtype=torch.int64, device=self._device)
        self._downloads = trainer.device.downloads(table, 1 + self._lag)
        self._unseen = first
        """The first step that is not compared yet."""

    def after_step(self, step: int, *, drained: bool) -> tuple[list[Print], float]:
        """Checks `step` if it is due; returns the checks that have ended by now, possibly of earlier steps, and the
        seconds that this took on this rank. `drained`: no rank is at an earlier step.

        Raises ReplicasDiffer, on every rank, where any differ.
        """
        spent = 0.0
        if self._due(step):
            self._trainer.progress.at(step, "comparing replicas")
            self._begun.append(self._begin(step))
            spent += self._begun[-1].seconds
        ended: list[Print] = []
        while self._begun and self._begun[0].step <= (step if drained else step - self._lag):
            began, check = time.perf_counter(), self._begun.popleft()
            table = self._rows(check.rows)
            try:
                whole, samples = self._compare_tensors(table, check.step), self._compare_samples(table, check.step)
            except ReplicasDiffer:
                self._meet()
                raise
            self._unseen, took = check.step + 1, time.perf_counter() - began
            ended.append(Print(check.step, whole, samples, check.seconds + took))
            spent += took
        return ended, spent

    def _due(self, step: int) -> bool:
        """Whether `step` is to be checked: every k-th step and the last one; never where k is 0."""
        return is_nth_or_last(self._trainer.spec, self._every, step)

    def _begin(self, step: int) -> _Begun:
        """Sends this rank's numbers after `step`."""
        # What this rank, or under a flush another, has yet to do of the step is no cost of the check.
        self._trainer.device.synchronise()
        if self._trainer.spec.parallel.flushes:
            self._meet()
        began = time.perf_counter()
        mine = self._on_device(self._own_numbers(step))
        return _Begun(step, mine, self._send(mine), time.perf_counter() - began)

    def _meet(self) -> None:
        """Waits until every rank has come here. Before a failure: then none ends while others need its messages."""
        for check in self._begun:
            check.rows.wait()
        self._begun.clear()
        mine = self._on_device([0] * self._width)
        self._rows(self._send(mine))

    def _own_numbers(self, step: int) -> list[int]:
        """This rank's numbers: one per tensor, one of the samples drawn for all ranks, one of the samples read here."""
        trainer = self._trainer
        place, layout = trainer.place, trainer.layout
        tensors: dict[str, list[_Part]] = {name: [(tensor, 0, 0)] for name, tensor in trainer.chunks.buffers().items()}
        tensors |= _parts(trainer.flat)
        found, width = [], layout.widths[place.place]
        for name in self._names[place.place]:
            row, column = _origin(name, self._shapes[name], place.tensor, width, self._split)
            sums = [weighted_sum(part, row + r, column + c) for part, r, c in tensors[name]]
            found.append(torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.int64, device=self._device))
        values = [value & _MASK for value in torch.stack(found).tolist()]  # the host waits once, not for each tensor
        values += [0] * (self._width - 2 - len(values))
        return values + (list(trainer.reader.prints(step)) if self._reads[place.place] else [0, 0])

    def _on_device(self, numbers: list[int]) -> Tensor:
        return torch.tensor([_signed(number) for number in numbers], device=self._device)

    def _send(self, mine: Tensor) -> Download:
        """Starts gathering every rank's numbers. `mine` has to be kept until they have come."""
        if self._group is None:
            return self._downloads.begin(mine, None)
        out = mine.new_empty(self._trainer.layout.world * self._width)
        return self._downloads.begin(out, all_gather(out, mine, self._group))

    def _rows(self, table: Download) -> list[list[int]]:
        """Waits for every rank's numbers and returns them, in rank order."""
        return [[value & _MASK for value in row] for row in table.wait().view(-1, self._width).tolist()]

    def _compare_tensors(self, table: list[list[int]], step: int) -> int:
        """Returns the fingerprint of the whole model. Raises ReplicasDiffer where two holders of a share differ."""
        first: dict[tuple[str, int, int], tuple[int, int]] = {}
        sharded = {slot.name for slot in self._trainer.flat} if self._trainer.flat.shard_values else set[str]()
        wrong: dict[str, tuple[int, int]] = {}
        for rank, row in enumerate(table):
            place = self._trainer.layout.coords(rank)
            for name, value in zip(self._names[place.place], row, strict=False):
                part = place.tensor if split_dim(name, self._split) is not None else 0
                share = name, part, place.replica * (name in sharded)
                holder, known = first.setdefault(share, (rank, value))
                if known != value:
                    wrong.setdefault(name, (holder, rank))
        for name in self._shapes:  # in layer order: the first layer that differs is reported
            if name in wrong:
                raise self._differ(f"{name} of rank {wrong[name][1]} is not that of rank {wrong[name][0]}", step)
        return sum(value * _odd_of(name) for (name, *_), (_, value) in first.items()) & _MASK

    def _compare_samples(self, table: list[list[int]], step: int) -> int:
        """Returns the fingerprint of the samples drawn for all ranks. Raises ReplicasDiffer where ranks disagree."""
        layout = self._trainer.layout
        drawn: dict[object, tuple[int, int]] = {}
        for rank, (*_, numbers, content) in enumerate(table):
            place = layout.coords(rank)
            if not self._reads[place.place]:
                continue
            mine = layout.micro_batches_of(place.place, place.replica)
            for what, value in ((None, numbers), (mine, content)):
                holder, known = drawn.setdefault(what, (rank, value))
                if known != value:
                    said = "drew other samples than" if what is None else "read another text for the same samples than"
                    raise self._differ(f"rank {rank} {said} rank {holder}", step)
        return drawn[None][1]

    def _differ(self, what: str, step: int) -> ReplicasDiffer:
        """Returns the error, with the steps since the last comparison: it can have happened in any of them."""
        when = f"in step {step}" if self._unseen == step else f"between steps {self._unseen} and {step}"
        return ReplicasDiffer(f"Replicas began to differ {when}: {what}.")


def _units(trainer: Trainer, stage: int) -> list[str]:
    units = trainer.spec.model.units()
    return [units[i] for i in trainer.layout.stage_units[stage]]


def _parts(flat: FlatParameters) -> dict[str, list[_Part]]:
    """Returns this rank's part of each parameter, as matrices: its whole share, or under ZeRO-3 what it owns."""
    if not flat.shard_values:
        return {name: [(tensor, 0, 0)] for name, tensor in flat.named().items()}
    shapes = {slot.name: slot.parameter.shape for slot in flat}
    return {name: _matrices(shapes[name], *owned) for name, owned in flat.owned_values().items()}


def _matrices(shape: torch.Size, first: int, elements: Tensor) -> list[_Part]:
    """The elements of a tensor from number `first` on, as matrices: all dimensions but the first count as columns."""
    rows = shape[0] if len(shape) > 1 else 1
    whole = rows, shape.numel() // rows
    return [(memory.view(box.sizes), *box.offsets) for box, memory in split(whole, (0, 0), elements, whole, first)]


def _origin(name: str, full: tuple[int, ...], rank: int, size: int, how: TensorSplit) -> tuple[int, int]:
    """Returns the row and column of the full tensor, as a matrix, at which the share of tensor rank `rank` begins."""
    dim = split_dim(name, how)
    if dim is None or size == 1:
        return 0, 0
    begin = full[dim] // size * rank
    return (begin, 0) if dim == 0 and len(full) > 1 else (0, begin)


def fingerprint(tensor: Tensor, row: int = 0, column: int = 0) -> int:
    """Returns the fingerprint of a tensor that begins at (row, column) of a full one; all dimensions but the first
    count as columns."""
    return int(weighted_sum(tensor, row, column)) & _MASK


@torch.no_grad()
def weighted_sum(tensor: Tensor, row: int = 0, column: int = 0) -> Tensor:
    """Returns the same as a signed 64-bit number on the tensor's device, for which the host does not wait."""
    bits = tensor.detach().contiguous().view(_WORDS[tensor.element_size()])
    matrix = bits.view(1, -1) if bits.dim() < 2 else bits.flatten(1)
    rows, columns = matrix.shape
    a, b = factors(row, rows, 1, matrix.device), factors(column, columns, 2, matrix.device)
    at_once = max(1, _BLOCK.get(matrix.device.type, _LARGE) // max(1, columns))
    total = torch.zeros((), dtype=torch.int64, device=matrix.device)
    for first in range(0, rows, at_once):
        block = matrix[first : first + at_once] * b  # widens to 64 bits in the product, without a second copy
        total += (block.sum(1) * a[first : first + at_once]).sum()
    return total


@lru_cache(maxsize=256)
def factors(first: int, count: int, key: int, device: torch.device) -> Tensor:
    """Returns odd 64-bit numbers for the positions first .. first + count - 1 (the mixing of SplitMix64, Steele et al.
    2014)."""
    x = torch.arange(first, first + count, dtype=torch.int64, device=device)
    x = (x + key * (1 << 40)) * -7046029254386353131
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return (x ^ (x >> 31)) | 1


def of_arrays(arrays: Iterable[np.ndarray]) -> int:
    """Returns a 64-bit hash of the arrays' contents."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "little")


def _odd_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") | 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
