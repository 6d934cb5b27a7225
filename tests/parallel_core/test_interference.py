"""How much processor time other processes took on a run's devices: the busiest device counts, since its rank delays
all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest

from parallel_core.engine import interference
from parallel_core.engine.device import CpuDevice, CudaDevice, open_device
from parallel_core.engine.interference import Interference
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.run import _begin_timed
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.host import CpuOthers
from parallel_core.observe.records import FileSink, read_stream
from parallel_core.spec import RunSpec

NAN = float("nan")
T = TypeVar("T")


@pytest.mark.parametrize(("ranks", "share"), [([0.0, 0.8, 0.0, 0.0], 0.8), ([0.1, NAN], None), ([0.0, 0.0], 0.0)])
def test_the_share_is_that_of_the_device_used_most(
    ranks: list[float], share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over four devices would call a run undisturbed whose steps all waited for one of them."""
    every = Interference(open_device("cpu"), None, len(ranks))
    monkeypatch.setattr(every, "_exchange", lambda mine: [[rank] for rank in ranks])
    assert every.share() == share


class Placed(CpuDevice):
    """A CPU core, or the GPU of a number, which is not opened."""

    def __init__(self, core: int | None, gpu: int | None = None) -> None:
        self._core, self._gpu = core, gpu

    def core(self) -> int | None:
        return self._core

    def number(self) -> int | None:
        return self._core if self._gpu is None else self._gpu


@pytest.mark.parametrize(
    ("placed", "gpu", "devices"),
    [
        ([(0, 0), (0, 1), (0, 0), (0, 1)], False, 2),  # four ranks on two cores: the host has the peak of two
        ([(0, 0), (0, 1), (0, 0)], False, 2),
        ([(0, 0), (1, 0)], False, 2),  # core 0 of each of two hosts
        ([(0, 0)], False, 1),
        ([(0, 0), (0, 0)], True, 1),  # two ranks on one GPU
        ([(0, 7), (0, 9), (0, 7)], True, 2),
        ([(0, None)] * 6, False, 2),  # bound to no core, on a host of two
        ([(0, None)], False, 1),
    ],
)
def test_the_peak_of_a_device_counts_once_whatever_ranks_share_it(
    placed: list[tuple[int, int | None]], gpu: bool, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`placed` = host and device of each rank. Each measures 100: a core shared by two has 100 all the same."""
    monkeypatch.setattr(interference, "cores", lambda: [0, 1])
    every = [Interference(Placed(None, at) if gpu else Placed(at), None, len(placed), node) for node, at in placed]
    _together(every, lambda one: one.start(), monkeypatch)
    found = _together(every, lambda one: one.of_devices(100.0), monkeypatch)
    assert found == [(pytest.approx(100.0 * devices), devices)] * len(placed)


def test_only_ranks_with_the_same_gpu_made_visible_are_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device, numbers = object.__new__(CudaDevice), []
    for visible in ("GPU-1", "GPU-2", "GPU-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        numbers.append(device.number())
    assert numbers[0] == numbers[2] != numbers[1]


def _together(every: list[Interference], act: Callable[[Interference], T], patch: pytest.MonkeyPatch) -> list[T]:
    """What each of these ranks returns if all `act` at once, with one exchange of numbers among them."""
    given: list[list[float]] = []

    def tell(mine: list[float]) -> list[list[float]]:
        given.append(mine)
        return [mine]

    for one in every:
        patch.setattr(one, "_exchange", tell)
        act(one)
    for one in every:
        patch.setattr(one, "_exchange", lambda mine: given)
    return [act(one) for one in every]


def test_a_rank_knows_its_own_share_without_the_others() -> None:
    one = Interference(open_device("cpu"), None, 1)
    assert one.own_share() is None, "nothing was measured yet"
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: 0.25))
    assert one.own_share() == 0.25
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: NAN))
    assert one.own_share() is None, "the system does not report it"


def test_the_share_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    """An attempt that is cut off has no summary, so its share has to be in what it emitted before."""
    spec, device = RunSpec(), open_device("cpu")
    report = Reporter(spec, 0, FileSink(tmp_path, 0), device)
    one = Interference(device, None, 1)
    report.step(0, [], 0.1, None, 0.01, last=True)
    _begin_timed(cast(Trainer, SimpleNamespace(device=device, spec=spec)), report, one, None)
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: 0.25))
    report.step(1, [], 0.1, None, 0.01, last=True)
    assert report._peak is not None and report._peak.devices == 1
    told = [frame.header["series"] for frame in read_stream(tmp_path, 0) if frame.kind == "points"]
    assert [any(name == "cpu_others" for name, _ in each) for each in told] == [False, True]
