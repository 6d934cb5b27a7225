"""The state of a rank on its way to the host for a checkpoint: what is copied, and which time is no step's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import checkpoint, host_copies
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups
from parallel_core.engine.end_of_step import EndOfStep, save
from parallel_core.engine.host_copies import Copies, PinnedCopies, PlainCopies
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.step_times import StepTimes
from parallel_core.engine.stop import Reason
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from tests.parallel_core.test_checkpoint import spec_of

PIECE = 24


class Pinned(Tensor):
    """Memory whose copies come when their event is waited for, as late as a GPU may make them."""

    queued: list[tuple[Any, ...]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            cls.queued.append(args)
            return args[0]
        return super().__torch_function__(func, types, args, kwargs)


class Event:
    """A CUDA event: behind the copies that were queued before it."""

    def record(self) -> None:
        self._before, Pinned.queued = Pinned.queued, []

    def synchronize(self) -> None:
        for target, source in self._before:
            target.copy_(source)
        self._before = []


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "_RING_BYTES", PIECE)
    monkeypatch.setattr(
        host_copies, "_pinned", lambda count, size: torch.zeros(count, size, dtype=torch.uint8).as_subclass(Pinned)
    )
    monkeypatch.setattr(torch.cuda, "Event", Event)


def state(factor: float) -> list[Tensor]:
    """Tensors of less than a piece, of several, of none, and one that is not contiguous."""
    sizes = {torch.bfloat16: (3,), torch.float32: (40,), torch.float64: (), torch.int64: (0,)}
    own = [(torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape) * factor).to(t) for t, shape in sizes.items()]
    return [*own, (torch.arange(12.0) * factor).view(3, 4).t()]


@pytest.mark.usefixtures("small_ring")
def test_what_goes_through_a_ring_of_small_buffers_is_whole() -> None:
    """Each buffer is emptied once its copy has come, and before the next one is queued; the memory is used again."""
    copies = PinnedCopies()
    places = []
    for factor in (1.0, -2.0):
        got, want = copies(state(factor)), state(factor)
        assert all(torch.equal(one, other) and one.dtype is other.dtype for one, other in zip(got, want, strict=True))
        places.append([copy.data_ptr() for copy in got])
    assert places[0] == places[1]
    assert [copy.shape for copy in copies([torch.ones(2, 2)])] == [(2, 2)]


class Clock:
    """A clock that stands still, and a device whose work and copies take time on it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Slow(CpuDevice):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def synchronise(self) -> None:
        self.clock.now += 100.0

    def copies(self) -> Copies:
        def copy(tensors: Sequence[Tensor]) -> list[Tensor]:
            self.clock.now += 7.0
            return PlainCopies()(tensors)

        return copy


def test_a_save_says_how_long_it_took_without_what_was_left_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    trainer = Trainer(spec_of({}, {"checkpoint_every": 2}), 0, Groups(), Slow(clock), Progress(tmp_path, 0))
    saver = checkpoint.Saver(trainer, CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))
    monkeypatch.setattr(checkpoint, "time", clock)
    assert [saver.after_step(done) for done in (1, 2, 3)] == [0.0, 7.0, 0.0]
    saver.wait()
    assert saver.save(2) == 0.0, "it is saved already"


def test_the_time_of_a_save_is_counted_in_no_step() -> None:
    saver = SimpleNamespace(due=lambda done: False, after_step=lambda done, held_out, *, last: 5.0)
    times = StepTimes(0)
    before = times._last
    save(cast(checkpoint.Saver, saver), cast(Reporter, None), times, EndOfStep(3, Reason.NONE, None), steps=9)
    assert times._last == before + 5.0
