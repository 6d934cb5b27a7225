"""How much processor time other processes took on a run's devices: the busiest device counts, since its rank delays
all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from parallel_core.engine import interference
from parallel_core.engine.device import CpuDevice, CudaDevice, Device, open_device
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.interference import Interference
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.trainer import Trainer
from parallel_core.engine.training_loop import begin_timed
from parallel_core.observe import gpu_processes
from parallel_core.observe.host import CpuOthers
from parallel_core.observe.record_files import FileSink, read_stream
from parallel_core.spec import RunSpec
from tests.workers.test_shared_gpus import driver

NAN = float("nan")
T = TypeVar("T")


def of(device: Device, world: int = 1, node: int = 0) -> Interference:
    """That of a rank which exchanges nothing with the other ones; the tests say what all of them have."""
    return Interference(device, Exchange(device, None, world), node)


@pytest.mark.parametrize(("ranks", "share"), [([0.0, 0.8, 0.0, 0.0], 0.8), ([0.1, NAN], None), ([0.0, 0.0], 0.0)])
def test_the_share_is_that_of_the_device_used_most(
    ranks: list[float], share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over four devices would call a run undisturbed whose steps all waited for one of them."""
    every = of(open_device("cpu"), len(ranks))
    monkeypatch.setattr(every._exchange, "rows", lambda mine: [[rank] for rank in ranks])
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
    every = [of(Placed(None, at) if gpu else Placed(at), len(placed), node) for node, at in placed]
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
        patch.setattr(one._exchange, "rows", tell)
        act(one)
    for one in every:
        patch.setattr(one._exchange, "rows", lambda mine: given)
    return [act(one) for one in every]


def test_a_rank_knows_its_own_share_without_the_others() -> None:
    one = of(open_device("cpu"))
    assert one.own_share() is None, "nothing was measured yet"
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: 0.25))
    assert one.own_share() == 0.25
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: NAN))
    assert one.own_share() is None, "the system does not report it"


def test_the_share_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    """An attempt that is cut off has no summary, so its share has to be in what it emitted before."""
    spec, device = RunSpec(), open_device("cpu")
    report = Reporter(spec, 0, FileSink(tmp_path, 0), device)
    one = of(device)
    report.step(0, [], 0.1, None, 0.01, last=True)
    begin_timed(cast(Trainer, SimpleNamespace(device=device, spec=spec)), report, one, None)
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: 0.25))
    report.step(1, [], 0.1, None, 0.01, last=True)
    assert report._peak is not None and report._peak.devices == 1
    told = [frame.header["series"] for frame in read_stream(tmp_path, 0) if frame.kind == "points"]
    assert [any(name == "cpu_others" for name, _ in each) for each in told] == [False, True]


class Gpu(CpuDevice):
    """A device that lists these processes in turn, as `gpu_processes.listed` does."""

    def __init__(self, *listed: set[int] | None) -> None:
        super().__init__()
        self.listed = [*listed]

    def core(self) -> int | None:
        return None

    def processes(self) -> frozenset[int] | None:
        pids = self.listed.pop(0)
        return None if pids is None else frozenset(pids)


OWN, PEER, STRANGER = os.getpid(), 70_001, 70_002


@pytest.mark.parametrize(
    ("before", "after", "complete", "count"),
    [
        ({OWN, PEER}, {OWN}, True, 0),
        ({OWN, PEER}, {OWN}, False, None),  # those of other containers may be hidden
        ({OWN, STRANGER}, {OWN}, True, 1),
        ({OWN}, {OWN, PEER, STRANGER, 70_003}, False, 2),
        (None, {OWN, STRANGER}, False, 1),
        ({OWN}, None, True, None),
        (None, None, True, None),
    ],
)
def test_processes_on_a_gpu_are_counted_unless_they_are_of_the_run(
    before: set[int] | None, after: set[int] | None, complete: bool, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever share they used of it: that is not known, and none is invented."""
    monkeypatch.setattr(gpu_processes, "sees_all", lambda: complete)
    one = of(Gpu(before, after), 2)
    with monkeypatch.context() as patch:  # a peer on this host, and one on another whose pid is the stranger's here
        patch.setattr(one._exchange, "rows", lambda mine: [mine, [PEER, 0.0, -1.0, -1.0], [STRANGER, 1.0, -1.0, -1.0]])
        one.start()
    assert one.own_processes() == count
    assert one.own_share() is None


@pytest.mark.parametrize(("ranks", "most"), [([0.0, 2.0], 2), ([1.0, NAN], 1), ([0.0, NAN], None), ([0.0, 0.0], 0)])
def test_a_run_has_the_processes_of_its_fullest_gpu(
    ranks: list[float], most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = of(Gpu({OWN}), len(ranks))
    monkeypatch.setattr(every._exchange, "rows", lambda mine: [[rank] for rank in ranks])
    assert every.processes() == most


@pytest.mark.parametrize(
    ("pids", "found"),
    [([OWN, STRANGER], {OWN, STRANGER}), ([STRANGER], None), ([], None), (RuntimeError("not supported"), None)],
)
def test_a_list_without_this_process_says_nothing(
    pids: list[int] | Exception, found: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, where the driver lists no process, or those of the host with the pids that they have there."""

    def running(handle: int) -> list[Any]:
        if isinstance(pids, Exception):
            raise pids
        return [SimpleNamespace(pid=pid) for pid in pids] if handle == 1 else []

    nvml = driver(2)
    nvml.nvmlDeviceGetComputeRunningProcesses = running
    monkeypatch.setattr(gpu_processes, "open_nvml", lambda: nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b1")
    assert gpu_processes.listed() == found
    monkeypatch.setattr(gpu_processes, "open_nvml", lambda: None)
    assert gpu_processes.listed() is None
