"""Measures a model's layers in a rank with the engine's own code: each layer is a stage, all stages on one device.

So a layer finds caches, buffers and the allocator in the same state as in a run. Tensors are split for a
tensor-parallel group of t as in a run, but collectives are counted, not executed: their time is that of the links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from parallel_core.analysis.rows import durations
from parallel_core.data.dataset import stand_in
from parallel_core.data.sampler import Sampler
from parallel_core.engine.chunks import Chunks
from parallel_core.engine.collectives import Group, rank_in
from parallel_core.engine.device import Device
from parallel_core.engine.precision import DTYPES
from parallel_core.engine.reducers import reducer_of
from parallel_core.engine.stage import Batch
from parallel_core.models.microbatch_context import Sample
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.recorder import LANE_COMPUTE
from parallel_core.observe.scope import Scope
from parallel_core.outline import outline_of
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut, cut_fields
from parallel_core.profile.curves import What
from parallel_core.profile.repeats import expected, noise
from parallel_core.profile.table import MOST_JITTER, PARTS, LayerBytes, Layers, Part
from parallel_core.schedule.ir import Kind
from parallel_core.spec import ModelSpec, Precision, RunSpec
from parallel_core.tensor.group import Begun, TensorGroup

_KIND: dict[Part, Kind] = {"forward": Kind.F, "backward": Kind.BW, "input": Kind.B, "weights": Kind.W}


class _Sent:
    """The work of a message that is not sent."""

    def wait(self) -> bool:
        return True


class CountingGroup(TensorGroup):
    """A tensor-parallel group of `size` with only its first rank: collectives are counted, not executed."""

    def __init__(self, size: int, scope: Scope) -> None:
        super().__init__(0, size, None, scope)
        self.messages: list[tuple[What, int]] = []

    def begin_gather(self, mine: Tensor) -> Begun:
        out = mine.repeat(1, self.size, 1)
        return self._begun("all_gather", out, out.nbytes)

    def begin_scatter(self, tensor: Tensor) -> Begun:
        rows = tensor.reshape(1, -1, tensor.shape[-1])
        mine = rows[:, : rows.shape[1] // self.size].contiguous()
        return self._begun("reduce_scatter", mine, tensor.nbytes)

    def _begin(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        return self._counted("all_reduce", tensor.nbytes)

    def _begun(self, what: What, out: Tensor, moved: int) -> Begun:
        return Begun(out, self._counted(what, moved), moved, self._scope.mark())

    def _counted(self, what: What, moved: int) -> _Sent:
        self.messages.append((what, moved))
        return _Sent()


def spec_of(
    model: ModelSpec,
    precision: Precision,
    tp: int,
    recompute: Recompute,
    samples: int,
    kind: str,
    cut: Cut = "pairs",
) -> RunSpec:
    """Returns the run whose layers are measured: one micro-batch of `samples` samples."""
    corpus = outline_of(model).profiled
    train = {
        "corpus": corpus,
        "global_batch": samples,
        "precision": precision,
        "device": kind,
        "steps": 2,
        "warmup_steps": 1,
    }
    parallel = {"tp": tp, "recompute": recompute, **cut_fields(cut)}
    return RunSpec.model_validate({"model": model.model_dump(), "parallel": parallel, "train": train})


class LayerBench:
    """The layers of a model as `stages` (lists of unit names), ready to be measured."""

    def __init__(
        self,
        spec: RunSpec,
        stages: Sequence[Sequence[str]],
        device: Device,
        group: Group = None,
        shards: dist.ProcessGroup | None = None,
        replicas: Group = None,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`group`: a tensor-parallel group that communicates (None: its collectives are counted). `shards`: the
        replicas over which `fully_shard` shards parameters; `replicas`: those over which this engine does (None: no
        sharding). `moved` is called when a layer begins."""
        self.device, self.recorder = device, device.recorder(0, 0)
        self.scope, tp = Scope(self.recorder), spec.parallel.tp
        self.scope.moved = moved
        self.group = CountingGroup(tp, self.scope)
        talking = TensorGroup(rank_in(group), tp, group, self.scope) if group else self.group
        self.chunks = Chunks(spec, dict(enumerate(stages)), talking, replicas, device, self.scope, shards)
        self._reducer = reducer_of(spec, self.chunks, replicas, self.scope, micro_batches=1)
        self.stages = list(self.chunks.stages.values())

    def read(self, batch: Batch) -> None:
        """Sets the micro-batch (number 0) of the next passes, and zeroes gradients."""
        self.chunks.flat.grads.zero_()
        self.chunks.begin_step([batch])
        self._reducer.begin_step()

    def finish(self) -> None:
        """Waits for the gradient reduction over `replicas` after passes."""
        self._reducer.finish()

    def run(self, split: bool) -> dict[Part, list[float]]:
        """Runs one forward and backward pass and returns the seconds of each stage; `split`: backward as B and W."""
        self.recorder.begin_step(0)
        x: Tensor | None = None
        for i, stage in enumerate(self.stages):
            self._begin(i)
            x = stage.forward(0, x)
            self._end(Kind.F)
        grad: Tensor | None = None
        for i, stage in reversed(list(enumerate(self.stages))):
            self._begin(i)
            grad = stage.backward_input(0, grad) if split else stage.backward(0, grad)
            self._end(Kind.B if split else Kind.BW)
            if split:
                self._begin(i)
                stage.backward_weights(0)
                self._end(Kind.W)
        return self._seconds(self.recorder.end_step())

    def messages(self) -> dict[Any, list[list[tuple[What, int]]]]:
        """Returns (kind, bytes) of each tensor-parallel collective of each stage, in its forward and its backward."""
        self._noted()  # discards those of earlier passes
        found: dict[Any, list[list[tuple[What, int]]]] = {"forward": [], "backward": []}
        x: Tensor | None = None
        for stage in self.stages:
            x = stage.forward(0, x)
            found["forward"].append(self._noted())
        grad: Tensor | None = None
        for stage in reversed(self.stages):
            grad = stage.backward(0, grad)
            found["backward"].insert(0, self._noted())
        return found

    def saved(self) -> list[int]:
        """Returns the bytes that each stage's forward leaves live, its output included."""
        meter, live = MemoryMeter(kind=self.device.kind), [0]
        with meter.measure():
            self.scope.meter = meter
            x: Tensor | None = None
            for stage in self.stages:
                x = stage.forward(0, x)
                live.append(meter.final["activations"])
            self.scope.meter = None
        self._back()
        return [after - before for before, after in pairwise(live)]

    def _back(self) -> None:
        grad: Tensor | None = None
        for stage in reversed(self.stages):
            grad = stage.backward(0, grad)

    def _noted(self) -> list[tuple[What, int]]:
        noted, self.group.messages = self.group.messages, []
        return noted

    def _begin(self, stage: int) -> None:
        self.scope.stage = stage
        self._start = self.scope.mark()

    def _end(self, kind: Kind) -> None:
        self.scope.span(kind, LANE_COMPUTE, self._start)

    def _seconds(self, rows: np.ndarray) -> dict[Part, list[float]]:
        found: dict[Part, list[float]] = {}
        for part, kind in _KIND.items():
            own = np.sort(rows[rows["kind"] == kind], order="stage")
            if len(own):
                found[part] = (durations(own) / 1e9).tolist()
        return found


def draw(spec: RunSpec, device: Device) -> Batch:
    """Returns the single micro-batch of a run's first step."""
    drawn = Sampler(spec, stand_in(spec)).micro_batches(0, (0,))
    arrays = [torch.from_numpy(array[0]) for array in (drawn.inputs, drawn.targets)]
    dtype = DTYPES[spec.train.precision]
    moved = [t.to(device.torch, dtype if t.is_floating_point() else t.dtype) for t in arrays]
    return Batch(0, {0: Sample(*moved)}, 1.0 / drawn.global_count)


def row(
    spec: RunSpec,
    busy: int,
    each: Mapping[Part, ArrayLike],
    whole: Mapping[Part, ArrayLike],
    messages: Any,
    joined: bool = False,
) -> Layers:
    """Summarizes repeats as a row: for each layer median and spread, for the whole pass the mean of undisturbed
    repeats."""
    seconds, spread = {}, {}
    for part in PARTS:
        low, middle, high = np.percentile(np.array(each[part]), (10, 50, 90), axis=0)
        seconds[part], spread[part] = tuple(middle.tolist()), tuple(((high - low) / 2).tolist())
    return Layers(
        tp=spec.parallel.tp,
        recompute=spec.parallel.recompute,
        samples=spec.train.global_batch,
        busy=busy,
        seconds=seconds,
        spread=spread,
        whole={part: expected(np.array(whole[part])[:, 0]) for part in PARTS},
        tensor_split=spec.parallel.cut,
        messages={way: tuple(tuple(size for _, size in unit) for unit in units) for way, units in messages.items()},
        whats={way: tuple(tuple(what for what, _ in unit) for unit in units) for way, units in messages.items()},
        joined=joined,
        jitter=_jitter(np.array(whole["forward"])[:, 0], np.array(whole["backward"])[:, 0]),
        noise=float(np.mean([noise(each[part]) for part in ("forward", "backward")])),
    )


def _jitter(forward: np.ndarray, backward: np.ndarray) -> float:
    """Returns the relative spread of whole passes; where there are twice as many forwards, every other one belongs to a
    split backward."""
    low, middle, high = np.percentile(forward[:: len(forward) // len(backward)] + backward, (10, 50, 90))
    return min(MOST_JITTER, float((high - low) / 2 / middle))  # a rank paused for a while must not invalidate the table


def layer_bytes(spec: RunSpec, bench: LayerBench, saved: Sequence[int]) -> list[LayerBytes]:
    """Returns the bytes of each layer of `bench`, each of whose stages is a layer."""
    from parallel_core.plan.units import boundary_elements

    size = spec.element_bytes
    leaving = [*boundary_elements(spec)[1:], 0]
    parameters = [sum(p.nbytes for _, m, a in stage.places() for p in (getattr(m, a),)) for stage in bench.stages]
    return [
        LayerBytes(unit=unit, parameters=p, saved=max(0, kept), boundary=size * edge)
        for unit, p, kept, edge in zip(spec.model.units(), parameters, saved, leaving, strict=True)
    ]
