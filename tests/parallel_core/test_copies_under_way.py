"""How many copies between host and device are under way at once: no more than there are pinned buffers for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from parallel_core.engine import run as engine
from parallel_core.engine.device import CpuDevice, Device
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.host_copies import Download, Downloads, PlainDownloads, PlainUploads, Uploads
from parallel_core.engine.host_staging import Work
from parallel_core.engine.run import run_rank
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from tests.parallel_core.ranks import run

MODEL = {"kind": "mlp", "layers": 5, "hidden": 8}
FILLED = {"parallel": {"pp": 5, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}}
IN_TURN = {**FILLED, "parallel": {"pp": 3, "replicas": (2, 2, 1), "micro_batches": 2, "schedule": "1f1b-stash"}}
STEPS = 12


class Counting(CpuDevice):
    """Counts totals under way, and batches that may be: those read since the step of the last totals known."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.known = self.totals = self.batches = 0
        self.buffers: list[int] = []
        """The number of buffers asked for: for inputs, targets, totals and fingerprints."""

    def uploads(self, count: int) -> Uploads:
        self.buffers.append(count)
        copy, read = PlainUploads(self.torch), 0

        def upload(tensor: Tensor) -> Tensor:
            nonlocal read
            read += 1
            self.batches = max(self.batches, read - self.known)
            return copy(tensor)

        return upload

    def downloads(self, like: Tensor, count: int) -> Downloads:
        self.buffers.append(count)
        return CountedDownloads(self)


class CountedDownloads(PlainDownloads):
    def __init__(self, device: Counting) -> None:
        self._device = device

    def begin(self, tensor: Tensor, work: Work | None) -> Download:
        self._device.begun += 1
        self._device.totals = max(self._device.totals, self._device.begun - self._device.known)
        return CountedDownload(super().begin(tensor, work), self._device)


class CountedDownload:
    def __init__(self, download: Download, device: Counting) -> None:
        self._download, self._device = download, device

    def wait(self) -> Tensor:
        self._device.known += 1
        return self._download.wait()


def _counted(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[int], int, int]:
    device = Counting()

    def opened(*_: Any) -> Device:
        return device

    engine.open_device = opened  # type: ignore[assignment]
    run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    return device.buffers, device.batches, device.totals


@pytest.mark.parametrize(
    ("told", "apart", "most"),
    [({}, 0, [1]), (FILLED, 4, [9, 0, 0, 0, 5]), (IN_TURN, 2, [5, 5, 0, 0, 3])],
    ids=["flush", "no flush, one micro-batch a step", "no flush, replicas in turn"],
)
def test_there_are_buffers_for_all(told: dict[str, Any], apart: int, most: list[int], tmp_path: Path) -> None:
    """In a pipeline that stays full the totals of several steps are under way, and its first rank reads ahead."""
    train = {"steps": STEPS, "warmup_steps": 1, "global_batch": 2, **told.get("train", {})}
    spec = RunSpec.model_validate({**told, "model": MODEL, "train": train})
    ranks = run(spec, _counted, tmp_path)
    assert [totals for _, _, totals in ranks] == [apart + 1] * len(ranks)
    assert {tuple(buffers) for buffers, _, _ in ranks} == {(2 * (apart + 1), 2 * (apart + 1), apart + 1, apart + 1)}
    assert [batches for _, batches, _ in ranks] == most and max(most) <= 2 * (apart + 1)
