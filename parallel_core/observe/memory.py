"""Measures memory by following live storages by category, in metered steps (never the timed ones).

    meter = MemoryMeter(cap=None)
    meter.register(parameter, "params")             # what exists already
    with meter.measure():                           # from here on every new storage is followed ...
        with meter.category("activations"):         # ... and counted under the category that is set
            loss = model(x)
            loss.backward()
    meter.peak, meter.peak_total, meter.final, meter.curve()

A `TorchDispatchMode` sees the outputs of every operation, also in the backward pass; a finaliser on each storage
reports when it is freed. So tensors saved by autograd, temporaries and views (which share a storage) are counted for
exactly as long as they live. Not counted: workspace within a kernel, and the allocator's rounding. The operations
themselves run unchanged, so a metered step has bitwise the same results.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_text
from parallel_core.observe.records import CATEGORIES, MEMORY

_INDEX = {name: i for i, name in enumerate(CATEGORIES)}


class MemoryCapExceeded(MemoryError):
    """The rank holds more live bytes than `TraceSpec.memory_cap` allows; `.live` (by category) and `.cap` are bytes."""

    def __init__(self, live: dict[str, int], cap: int) -> None:
        self.live, self.cap = live, cap
        total = sum(live.values())
        most = max(live, key=lambda name: live[name])
        digits = 4 if 10 * (total - cap) < cap else 3  # enough for the three sizes to add up
        super().__init__(
            f"{bytes_text(total, digits)} live, {bytes_text(total - cap, 3)} above the cap of "
            f"{bytes_text(cap, digits)}; "
            f"{100 * live[most] // max(total, 1)} % of it {CATEGORY_NAMES[most]}"
        )


class MemoryMeter:
    """Measures live bytes by category. `cap`: bytes above which an allocation raises MemoryCapExceeded (None =
    unlimited).

    Only storages on devices of the given `kind` are followed: on a rank with a GPU, host tensors are not counted.
    """

    def __init__(self, cap: int | None = None, kind: str = "cpu") -> None:
        self.cap, self.kind = cap, kind
        self._live = [0] * len(CATEGORIES)
        self._total = 0
        self._peak = tuple(self._live)
        self.peak_total = 0
        self._category = _INDEX["buffers"]
        self._held: dict[int, list[int]] = {}  # key -> [category, bytes]
        self._keys: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._freed: deque[int] = deque()  # finalisers run in any thread, so they only append, which is atomic
        self._elastic: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._next = 0
        self._rows: list[tuple[int, ...]] = []
        self._measuring = False

    # Results

    @property
    def peak(self) -> dict[str, int]:
        """Bytes of each category at the moment of the largest total."""
        return dict(zip(CATEGORIES, self._peak, strict=True))

    @property
    def final(self) -> dict[str, int]:
        """Bytes of each category that are live now."""
        self._settle()
        return dict(zip(CATEGORIES, self._live, strict=True))

    def curve(self, points: int = 2000) -> np.ndarray:
        """Returns the MEMORY rows of the measured time; if there are more than `points`, the highest row of each of as
        many intervals."""
        rows = np.array(self._rows, dtype=MEMORY)
        if len(rows) <= points:
            return rows
        totals = np.sum([rows[name] for name in CATEGORIES], axis=0)
        edges = np.linspace(0, len(rows), points + 1).astype(int)
        return rows[[low + int(np.argmax(totals[low:high])) for low, high in itertools.pairwise(edges)]]

    # Inputs

    def register(self, tensor: torch.Tensor, category: str, *, elastic: bool = False) -> None:
        """Counts the tensor's storage under `category`; if it was counted before, it is moved there.

        `elastic`: its memory may be resized while the storage lives, so its size is checked at every operation.
        """
        self._settle()
        storage = tensor.untyped_storage()
        self._count(storage, _INDEX[category], move=True)
        if elastic:
            self._elastic.add(storage)

    def follow(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Registers parameters as 'params', and each `.grad` as 'grads' as soon as autograd creates it."""

        def on_grad(parameter: torch.Tensor) -> None:
            if self._measuring and parameter.grad is not None:
                self.register(parameter.grad, "grads")

        for parameter in parameters:
            self.register(parameter, "params")
            if parameter.requires_grad and parameter.is_leaf:
                parameter.register_post_accumulate_grad_hook(on_grad)
            if parameter.grad is not None:
                self.register(parameter.grad, "grads")

    @contextmanager
    def category(self, name: str) -> Iterator[None]:
        """Sets the category of new storages inside the context (outside of any: 'buffers')."""
        before, self._category = self._category, _INDEX[name]
        try:
            yield
        finally:
            self._category = before

    @contextmanager
    def measure(self) -> Iterator[MemoryMeter]:
        """Follows all storages inside the context. The peak starts from what is live now; the curve starts anew."""
        self._settle()
        self._rows.clear()
        self._peak, self.peak_total = tuple(self._live), self._total
        self._row()
        self._measuring = True
        try:
            with _Follow(self):
                yield self
        finally:
            self._measuring = False
            self._settle()

    # Counting

    def seen(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage that an operation returned (or a view of it)."""
        if self._freed:
            self._settle()
        for own in self._elastic:
            self._count(own, self._category, move=False)
        self._count(storage, self._category, move=False)

    def _count(self, storage: torch.UntypedStorage, category: int, *, move: bool) -> None:
        key = self._keys.get(storage)
        if key is None:
            key = self._adopt(storage, category)
        held, size = self._held[key], storage.nbytes()
        if held[1] == size and (held[0] == category or not move):
            return
        target = category if move else held[0]
        self._add(held[0], -held[1])
        self._add(target, size)
        held[:] = [target, size]
        self._risen()

    def _adopt(self, storage: torch.UntypedStorage, category: int) -> int:
        key, self._next = self._next, self._next + 1
        self._keys[storage] = key
        self._held[key] = [category, 0]
        weakref.finalize(storage, self._freed.append, key).atexit = False
        return key

    def _add(self, category: int, size: int) -> None:
        self._live[category] += size
        self._total += size

    def _settle(self) -> None:
        """Subtracts the storages that were freed since the last call."""
        while self._freed:
            held = self._held.pop(self._freed.popleft(), None)
            if held is not None:
                self._add(held[0], -held[1])
        if self._measuring:
            self._row()

    def _risen(self) -> None:
        if self._measuring:
            self._row()
        if self._total > self.peak_total:
            self.peak_total, self._peak = self._total, tuple(self._live)
        if self._measuring and self.cap is not None and self._total > self.cap:
            raise MemoryCapExceeded(dict(zip(CATEGORIES, self._live, strict=True)), self.cap)

    def _row(self) -> None:
        self._rows.append((time.monotonic_ns(), *self._live))


class _Follow(TorchDispatchMode):
    """Runs each operation unchanged and passes the storages of its outputs to the meter."""

    def __init__(self, meter: MemoryMeter) -> None:
        super().__init__()
        self.meter = meter

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and True would make PyTorch import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._show(out)
        return out

    def _show(self, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            if out.device.type == self.meter.kind:  # a meta tensor has a size, but no memory
                self.meter.seen(out.untyped_storage())
        elif isinstance(out, (tuple, list)):
            for item in out:
                self._show(item)
