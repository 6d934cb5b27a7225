"""Measures what this engine's ZeRO-2 and ZeRO-3 add to a pass through a model's layers, apart from their messages.

That is the cost of hooks, views and new memory, as parameters of each layer are gathered and gradients allocated, and
both freed again. Passes with and without it alternate; the difference is the cost. A single rank acts as all replicas:
it copies its own data in place of messages, and the time of these copies is subtracted, as links account for messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.device import Device
from parallel_core.engine.host_group import HostGroup, HostWork
from parallel_core.engine.stage import Batch
from parallel_core.outline import outline_of
from parallel_core.profile.layers import LayerBench, draw
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.repeats import expected
from parallel_core.profile.table import Level
from parallel_core.spec import ModelSpec, RunSpec

LEVELS: tuple[Level, ...] = (2, 3)
_REPLICAS = 2
_WARM, _LEAST, _MOST = 2, 4, 40
_Times = tuple[float, float]
"""Processor seconds of a forward and of a backward, which exclude delays by other processes. The rank waits for no
other."""


def sizes(model: ModelSpec, samples: Sequence[int]) -> tuple[int, ...]:
    """Returns which of `samples`, numbers of samples of a micro-batch, it is measured with. Batch norms over replicas
    compute for longer the more there are: a forward of a ResNet-50 by 15 ms with 4 and by 25 with 32."""
    if outline_of(model).batch_norm:
        return tuple(dict.fromkeys((samples[0], samples[-1])))
    return (samples[len(samples) // 2],)


class LoopbackGroup(HostGroup):
    """A group of `size` replicas that are all this rank; `seconds` is the processor time of its messages so far."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.seconds = 0, size, 0.0
        self._begun: deque[HostWork] = deque()

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> HostWork:
        return self._begin(lambda: None)

    def all_gather(self, out: Tensor, mine: Tensor) -> HostWork:
        return self._begin(lambda: self._copy(out.view(self.size, -1), mine))

    def reduce_scatter(self, out: Tensor, tensor: Tensor) -> HostWork:
        return self._begin(lambda: self._copy(out, tensor.view(self.size, -1)[0]))

    def _copy(self, to: Tensor, what: Tensor) -> None:
        """Copies twice: the first copy also faults in new memory, which is not part of a message, so only the second is
        timed."""
        to.copy_(what)
        began = time.thread_time()
        to.copy_(what)
        self.seconds += 2 * (time.thread_time() - began)


class Added(NamedTuple):
    """Seconds added to a forward and to a backward, on a device that takes `pace` seconds for the reference work."""

    forward: float
    backward: float
    pace: float


def measure(
    plain: RunSpec,
    device: Device,
    pacer: PaceProbe,
    level: Level,
    seconds: float,
    moved: Callable[[], None] = lambda: None,
) -> Added:
    """Measures what ZeRO `level` adds to one forward and backward of `plain`, a run on one device; `moved` is called
    when a layer begins."""
    group, units = LoopbackGroup(_REPLICAS), [plain.model.units()]
    benches = (
        LayerBench(plain, units, device, moved=moved),
        LayerBench(sharded(plain, level), units, device, replicas=group, moved=moved),
    )
    took, paces = _in_turns(benches, draw(plain, device), group, pacer, time.monotonic() + seconds)
    pace, (own, cut) = expected(paces), ([expected(part) for part in zip(*kept, strict=True)] for kept in took)
    forward, backward = (pace * max(0.0, more - less) for more, less in zip(cut, own, strict=True))
    return Added(forward, backward, pace)


def _in_turns(
    benches: Sequence[LayerBench], batch: Batch, group: LoopbackGroup, pacer: PaceProbe, until: float
) -> tuple[list[list[_Times]], list[float]]:
    """Runs turns `until` this time (of time.monotonic), _LEAST to _MOST after those to warm up. Returns the times of
    each bench in units of the reference work beside them, and the seconds of that."""
    took: list[list[_Times]] = [[] for _ in benches]
    paces: list[float] = []
    for turn in range(_WARM + _MOST):
        each = _turn(benches, batch, group, pacer)
        if turn < _WARM:
            continue
        found = pacer.paces(len(each))
        paces += found
        for kept, pair, pace in zip(took, each, found, strict=True):
            kept.append((pair[0] / pace, pair[1] / pace))
        if turn >= _WARM + _LEAST and time.monotonic() > until:
            break
    return took, paces


def _turn(benches: Iterable[LayerBench], batch: Batch, group: LoopbackGroup, pacer: PaceProbe) -> list[_Times]:
    """Runs a pass of each, with the reference work around it."""
    each = []
    pacer.begin()
    for bench in benches:
        bench.read(batch)
        each.append(_pass(bench, group))
        pacer.measure()
    return each


def sharded(plain: RunSpec, level: int) -> RunSpec:
    """Returns the run with two replicas under ZeRO `level`, each with as many samples."""
    told = plain.model_dump()
    told["parallel"] |= {"dp": _REPLICAS, "zero": level}
    told["train"]["global_batch"] *= _REPLICAS
    return RunSpec.model_validate(told)


def _pass(bench: LayerBench, group: LoopbackGroup) -> _Times:
    """Runs a pass and returns its times without those of messages."""
    (stage,), marks = bench.stages, []
    bench.recorder.begin_step(0)
    marks.append(time.thread_time() - group.seconds)
    stage.forward(0, None)
    marks.append(time.thread_time() - group.seconds)
    stage.backward(0, None)
    marks.append(time.thread_time() - group.seconds)
    bench.finish()
    bench.recorder.end_step()
    return marks[1] - marks[0], marks[2] - marks[1]
