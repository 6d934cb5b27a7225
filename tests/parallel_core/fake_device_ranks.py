"""What ranks do on the second device (`fake_device`), and here for comparison."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import generate
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.engine.fingerprint import Fingerprints
from parallel_core.engine.generator import Generator
from parallel_core.engine.norm import StepTotals, Totals
from parallel_core.engine.optimizer import FlatOptimizer
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import GenerationRequest, StartCommand
from parallel_core.launch.rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.observe.records import POINT
from parallel_core.profile import fully_shard, ranks
from parallel_core.profile.request import ProfileRequest
from parallel_core.spec import RunSpec
from tests.parallel_core import fake_device
from tests.parallel_core.frames import read_file

REQUEST: GenerationRequest = {
    "prompt": [1, 2, 3],
    "new": 6,
    "samples": 1,
    "temperature": 0.0,
    "seed": 7,
    "cached": True,
}


def losses(folder: Path, rank: int) -> list[float]:
    found: list[float] = []
    for frame in read_file(events_path(folder, rank)):
        if frame.header["kind"] == "points":
            values = iter(np.frombuffer(frame.blob, POINT)["value"].tolist())
            for name, count in frame.header["series"]:
                rows = [next(values) for _ in range(count)]
                found += rows if name == "loss" else []
    return found


def run_here(
    spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, saves: CheckpointConfig | None = None
) -> list[float]:
    run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=saves)
    return losses(folder, rank)


class Waits(NamedTuple):
    """How often the host waited for the device in each step, between each norm and the update that it bounds, and while
    each fingerprint was computed.
    """

    steps: list[int]
    updates: list[int]
    prints: list[int]


def run_elsewhere(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[float], Waits]:
    waits = Waits([], [], [])
    advance, squares, update, numbers = (
        Trainer.advance,
        StepTotals.squares,
        FlatOptimizer.step,
        Fingerprints._own_numbers,
    )
    before = 0

    def counted(self: Trainer, step: int) -> list[Totals]:
        fake_device.WAITS.clear()
        done = advance(self, step)
        waits.steps.append(fake_device.WAITS.total())
        return done

    def normed(self: StepTotals) -> Tensor:
        nonlocal before
        before = fake_device.WAITS.total()
        return squares(self)

    def updated(self: FlatOptimizer, factor: float | Tensor = 1.0, skip: bool | Tensor = False) -> None:
        waits.updates.append(fake_device.WAITS.total() - before)
        update(self, factor, skip)

    def printed(self: Fingerprints, step: int) -> list[int]:
        fake_device.WAITS.clear()
        found = numbers(self, step)
        waits.prints.append(fake_device.WAITS.total())
        return found

    Trainer.advance = counted  # type: ignore[method-assign]
    StepTotals.squares, FlatOptimizer.step = normed, updated  # type: ignore[method-assign]
    Fingerprints._own_numbers = printed  # type: ignore[method-assign]
    with fake_device.moved():
        return run_here(spec, rank, meeting, folder), waits


def run_with_nccl(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[float], dict[str, Any]]:
    with fake_device.moved(nccl=True):
        told = run_here(spec, rank, meeting, folder)
    return told, memory_of(folder, rank)


def numbers_set(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[int]:
    """How often the host waits as a number is put into: one element of a vector or a matrix, a slice, a row."""
    waited: list[int] = []
    with fake_device.moved():
        line, table = torch.zeros(4, device=fake_device.NAME), torch.zeros(2, 2, device=fake_device.NAME)
        places: list[tuple[torch.Tensor, Any]] = [
            (line, -2),
            (table, (0, np.int64(1))),
            (line, slice(-2, -1)),
            (table, 1),
        ]
        for tensor, index in places:
            fake_device.WAITS.clear()
            tensor[index] = True
            waited.append(fake_device.WAITS.total())
        assert (line.tolist(), table.tolist()) == ([0, 0, 1, 0], [[0, 1], [1, 1]])
    return waited


def saved_and_resumed(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[float]:
    saves = CheckpointConfig(folder / "kept")
    if (folder / "resumes").exists():
        saves = CheckpointConfig(folder / "kept", folders.path_of(folder / "kept", 2))
    with fake_device.moved():
        return run_here(spec, rank, meeting, folder, saves)


def generated(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[list[int]]:
    path = folders.path_of(folder / "kept", 2)
    device = generate.open_device(spec.train.device, meeting.sharing)
    groups = connect(meeting, rank, Layout.of(spec), device.backend)
    try:
        return Generator(spec, rank, groups, device, path).generate(REQUEST)["tokens"]
    finally:
        disconnect()


def generated_with_nccl(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> dict[str, Any]:
    path = folders.path_of(folder / "kept", 2)
    (told := folder / "told").mkdir(exist_ok=True)
    with fake_device.moved(nccl=True):
        generate.run_rank(spec, rank, FileSink(told, rank), meeting, Progress(told, rank), path, REQUEST)
    return memory_of(told, rank)


def memory_of(folder: Path, rank: int) -> dict[str, Any]:
    (memory,) = (f.header for f in read_file(events_path(folder, rank)) if f.header["kind"] == "memory")
    return memory


def generated_elsewhere(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[list[int]]:
    with fake_device.moved():
        return generated(spec, rank, meeting, folder)


def saved(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    run_here(spec, rank, meeting, folder, CheckpointConfig(folder / "kept"))


def profiled(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[str]:
    request = ProfileRequest(
        samples=(1, 2), tps=(1, 2), recompute=("none", "full"), devices=2, seconds=0.05, sizes=(1024, 65536)
    )
    (folder / "request.json").write_text(json.dumps(asdict(request)))
    start: StartCommand = {"folder": str(folder), "devices": [0, 0], "first_rank": 0, "device_kind": "cuda"}  # type: ignore[typeddict-item]
    args = RankArgs(start, spec, rank, 0, {"host": meeting.host, "port": meeting.port}, meeting.listen_fd, True)
    fully_shard.measure = lambda *_: []  # fully_shard needs streams of the device
    with fake_device.moved():
        ranks.be_rank(args, FileSink(folder, rank), Progress(folder, rank))
    return [
        frame.header["about"] for frame in read_file(events_path(folder, rank)) if frame.header["kind"] == "profile"
    ]


def mix(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> str:
    with fake_device.moved():
        there = torch.ones(3, device=fake_device.NAME)
        assert float((there + there).sum()) == 6
        assert torch.equal((there + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0))
        try:
            there + torch.ones(3)
        except RuntimeError as error:
            return str(error)
    return ""
