"""Measures the layers of a model in two ways, so that what is between them is known: one by one, and as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parallel_core.engine.collectives import Group
from parallel_core.engine.device import Device
from parallel_core.observe.reference import Reference
from parallel_core.profile.cpu_steal import undisturbed
from parallel_core.profile.layers import LayerBench, draw, row
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.repeats import expected
from parallel_core.profile.table import Layers, Part
from parallel_core.spec import RunSpec


class Paced(NamedTuple):
    """A row at the pace of a device whose reference work takes `reference` seconds; `paces`: the pace of each turn."""

    row: Layers
    reference: float
    paces: list[float]


class LayerPair:
    """Measures the layers one by one and as a whole, and keeps the times of all repeats."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        device: Device,
        reference: Reference | None,
        moved: Callable[[], None],
        group: Group = None,
    ) -> None:
        """`reference`: reference work that is done between all passes, relative to which they are measured; None:
        without. `moved` is called when a layer begins."""
        self._reference, self._pacer = reference, PaceProbe(reference, group)
        self._paces = defaultdict[int, list[float]](list)
        self._group, self._device = group, device
        units, made = specs[-1].model.units(), partial(LayerBench, specs[-1], device=device, group=group, moved=moved)
        self.specs, self.each = specs, made([[unit] for unit in units])
        self.whole = made([units])
        self.batches = [draw(spec, device) for spec in specs]
        self.took: dict[tuple[int, int], tuple[dict[Any, list[Any]], dict[Any, list[Any]]]] = {}

    def warm(self, busy: int) -> None:
        """Runs one pass with a split backward for every number of samples, which allocates all buffers."""
        del busy
        for batch in self.batches:
            for bench in (self.each, self.whole):
                bench.read(batch)
                bench.run(split=True)
        if self._reference is not None:
            self._reference.timed_pass()

    def once(self, busy: int) -> None:
        """Runs one pass of every kind for every number of samples."""
        passes: list[tuple[dict[Any, list[Any]], dict[Part, np.ndarray]]] = []
        self._pacer.begin()
        for i, batch in enumerate(self.batches):
            kept = self.took.setdefault((i, busy), ({}, {}))
            for bench, found in zip((self.each, self.whole), kept, strict=True):
                bench.read(batch)
                for split in (False, True):
                    parts, share = undisturbed(partial(bench.run, split), self._group, self._device)
                    passes.append((found, {part: share * np.array(seconds) for part, seconds in parts.items()}))
                    self._pacer.measure()
        paces = self._pacer.paces(len(passes))
        for (found, parts_taken), pace in zip(passes, paces, strict=True):
            for part, taken in parts_taken.items():
                found.setdefault(part, []).append(taken / pace)
        self._paces[busy].append(float(np.mean(paces)))

    def reference(self, busy: int) -> float:
        """Returns the seconds of the reference work between these passes; 0 where it was not done."""
        return expected(self._paces[busy]) if self._reference is not None else 0.0

    def saved(self) -> list[int]:
        self.each.read(self.batches[-1])
        return self.each.saved()

    def rows(self, tp: int, joined: bool = False) -> list[Paced]:
        found: list[Paced] = []
        for (i, busy), (each, whole) in self.took.items():
            if not each:
                continue
            self.each.read(self.batches[i])
            messages = self.each.messages() if tp > 1 and not joined else {}
            pace = self.reference(busy)
            timed = ({part: (pace or 1.0) * np.array(took) for part, took in of.items()} for of in (each, whole))
            made = row(self.specs[i], busy, next(timed), next(timed), messages, joined)
            found.append(Paced(made, pace, self._paces[busy] if pace else []))
        return found
