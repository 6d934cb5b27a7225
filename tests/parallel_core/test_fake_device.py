"""The whole engine on a device that is not the host: no operation mixes the two, and the host hardly ever waits."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import generate
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.engine.fingerprint import Fingerprints
from parallel_core.engine.generate import Generator
from parallel_core.engine.norm import StepTotals, Totals
from parallel_core.engine.optimizer import FlatAdamW
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import GenerationRequest, StartCommand
from parallel_core.launch_rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import POINT, FileSink, events_path
from parallel_core.profile import fully_shard, ranks
from parallel_core.profile.request import ProfileRequest
from parallel_core.spec import RunSpec
from tests.parallel_core import fake_device
from tests.parallel_core.frames import read_file
from tests.parallel_core.ranks import Work, run

GPT = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
STEPS = 4
PIPE = {"pp": 2, "micro_batches": 4}
CASES: dict[str, dict[str, Any]] = {
    "fp64": {"train": {"precision": "fp64"}},
    "bf16, dropout": {"train": {"precision": "bf16"}, "model": {"dropout": 0.1}},
    "fp16, tied": {"train": {"precision": "fp16", "loss_scale": 2.0**19}, "model": {"tied": True}},  # overflows first
    "recomputed": {"parallel": {"recompute": "full"}},
    "selective": {"parallel": {"recompute": "selective"}},
    "MLP": {"model": {"kind": "mlp"}},
    "VGG": {"model": {"kind": "vgg16", "width": 4}},
    # Not clipped: it multiplies a difference in rounding about tenfold a step (`test_rounding`).
    "ResNet": {"model": {"kind": "resnet50", "width": 4}, "train": {"clip_norm": None}},
    "DP": {"parallel": {"dp": 2}},
    "ZeRO-1": {"parallel": {"dp": 2, "zero": 1}},
    "ZeRO-2": {"parallel": {"dp": 2, "zero": 2}},
    "ZeRO-3": {"parallel": {"dp": 2, "zero": 3}},
    "TP": {"parallel": {"tp": 2}},
    "TP, sequence": {"parallel": {"tp": 2, "sequence": True}},
    "TP, columns": {"parallel": {"tp": 2, "tensor_split": "columns"}},
    "GPipe": {"parallel": {**PIPE, "schedule": "gpipe"}},
    "1F1B, tied, fp16": {"parallel": PIPE, "model": {"tied": True}, "train": {"precision": "fp16"}},
    "interleaved": {"parallel": {**PIPE, "schedule": "interleaved", "chunks": 2}},
    "ZB-V": {"parallel": {**PIPE, "schedule": "zb-v"}},
    "DualPipe-V": {"parallel": {**PIPE, "schedule": "dualpipe-v"}},
    "naive": {"parallel": {**PIPE, "schedule": "1f1b-naive"}, "train": {"clip": "stage"}},
    "stash": {"parallel": {**PIPE, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}},
    "vertical": {"parallel": {**PIPE, "schedule": "1f1b-vertical"}, "train": {"clip": "stage"}},
    "2BW": {"parallel": {**PIPE, "schedule": "1f1b-2bw"}, "train": {"clip": "stage"}},
    "3D, recomputed": {"parallel": {"dp": 2, "tp": 2, **PIPE, "recompute": "full"}},
}
QUICK = {"fp16, tied", "ResNet", "ZeRO-2", "TP, sequence", "ZB-V", "stash"}
TOLERANCE = {"fp32": 2e-6, "fp64": 1e-14, "bf16": 2e-3, "fp16": 2e-4}
"""Relative tolerance of a loss: attention is not fused on that device, so sums are rounded differently."""


Ran = Callable[[RunSpec, Work, Path], list[Any]]


@pytest.fixture(scope="module")
def run_there() -> Iterator[Ran]:
    """`ranks.run` from a process in which autograd has never run: autograd counts devices at its first use, and forked
    ranks would inherit that count.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as clean:
        yield lambda spec, work, folder: clean.submit(run, spec, work, folder).result()


def spec_of(name: str, device: str) -> RunSpec:
    case = CASES[name]
    model = case.get("model", {})
    train = {"steps": STEPS, "warmup_steps": 1, "global_batch": 8, "device": device, **case.get("train", {})}
    return RunSpec.model_validate(
        {
            "model": model if "kind" in model else {**GPT, **model},
            "parallel": case.get("parallel", {}),
            "train": train,
            "trace": {"fingerprint_every": 2},
        }
    )


def losses(folder: Path, rank: int) -> list[float]:
    found: list[float] = []
    for frame in read_file(events_path(folder, rank)):
        if frame.header["kind"] == "points":
            values = iter(np.frombuffer(frame.blob, POINT)["value"].tolist())
            for name, count in frame.header["series"]:
                rows = [next(values) for _ in range(count)]
                found += rows if name == "loss" else []
    return found


def _run(
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


def _run_elsewhere(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[float], Waits]:
    waits = Waits([], [], [])
    advance, squares, update, numbers = Trainer.advance, StepTotals.squares, FlatAdamW.step, Fingerprints._own_numbers
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

    def updated(self: FlatAdamW, factor: float | Tensor = 1.0, skip: bool | Tensor = False) -> None:
        waits.updates.append(fake_device.WAITS.total() - before)
        update(self, factor, skip)

    def printed(self: Fingerprints, step: int) -> list[int]:
        fake_device.WAITS.clear()
        found = numbers(self, step)
        waits.prints.append(fake_device.WAITS.total())
        return found

    Trainer.advance = counted  # type: ignore[method-assign]
    StepTotals.squares, FlatAdamW.step = normed, updated  # type: ignore[method-assign]
    Fingerprints._own_numbers = printed  # type: ignore[method-assign]
    with fake_device.moved():
        return _run(spec, rank, meeting, folder), waits


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_it_trains_there_what_it_trains_here(name: str, run_there: Ran, tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    on_host = run(spec_of(name, "cpu"), _run, here)
    on_device = run_there(spec_of(name, "cuda"), _run_elsewhere, there)
    precision = CASES[name].get("train", {}).get("precision", "fp32")
    told = [(one, other) for one, (other, _) in zip(on_host, on_device, strict=True) if one]
    assert told and all(len(one) == STEPS for one, _ in told)
    for one, other in told:
        assert other == pytest.approx(one, rel=TOLERANCE[precision])
    alone = len(on_device) == 1 or not spec_of(name, "cpu").parallel.flushes  # else totals are exchanged by the host
    for _, waits in on_device:
        assert waits.prints == [1, 1] and waits.updates
        assert not alone or not any(waits.updates), "updates are queued without waiting for the norm"


def _run_with_nccl(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[float], dict[str, Any]]:
    with fake_device.moved(nccl=True):
        told = _run(spec, rank, meeting, folder)
    (memory,) = (f.header for f in read_file(events_path(folder, rank)) if f.header["kind"] == "memory")
    return told, memory


@pytest.mark.parametrize(
    "name", ["ZeRO-2", *(pytest.param(n, marks=pytest.mark.full) for n in ("1F1B, tied, fp16", "ZB-V", "2BW"))]
)
def test_with_a_gpu_a_rank_the_memory_of_the_set_up_is_no_part_of_the_peak(
    name: str, run_there: Ran, tmp_path: Path
) -> None:
    """Its first messages are of up to 64 MiB. Fingerprints, which the meter does not see, take less than one here."""
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    on_host = run(spec_of(name, "cpu"), _run, here)
    tolerance = TOLERANCE[CASES[name].get("train", {}).get("precision", "fp32")]
    for one, (other, memory) in zip(on_host, run_there(spec_of(name, "cuda"), _run_with_nccl, there), strict=True):
        assert other == pytest.approx(one, rel=tolerance)
        assert memory["peak_total"] <= memory["rss_delta"] <= memory["peak_total"] + 2**20


@pytest.mark.parametrize("name", ["recomputed", "bf16, dropout"])
def test_the_host_waits_for_the_device_once_a_step(name: str, run_there: Ran, tmp_path: Path) -> None:
    ((_, waits),) = run_there(spec_of(name, "cuda"), _run_elsewhere, tmp_path)
    assert waits.steps == [1] * (STEPS + 1)  # including the metered step


def _numbers_set(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[int]:
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


def test_the_host_waits_where_a_number_is_put_into_one_element(run_there: Ran, tmp_path: Path) -> None:
    assert run_there(RunSpec(), _numbers_set, tmp_path) == [[1, 1, 0, 0]]


def _saved_and_resumed(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[float]:
    saves = CheckpointConfig(folder / "kept")
    if (folder / "resumes").exists():
        saves = CheckpointConfig(folder / "kept", folders.path_of(folder / "kept", 2))
    with fake_device.moved():
        return _run(spec, rank, meeting, folder, saves)


def test_a_checkpoint_from_there_goes_on_here_and_there(run_there: Ran, tmp_path: Path) -> None:
    """Saved from the device with ZeRO-1, resumed by a run on a single device."""

    def spec(device: str, **parallel: int) -> RunSpec:
        train = {"steps": STEPS, "warmup_steps": 1, "global_batch": 8, "checkpoint_every": 2, "device": device}
        return RunSpec.model_validate({"model": GPT, "parallel": parallel, "train": train})

    first = run_there(spec("cuda", dp=2, zero=1), _saved_and_resumed, tmp_path)
    (tmp_path / "resumes").touch()
    for rank in (0, 1):
        events_path(tmp_path, rank).unlink()
    again = run_there(spec("cuda"), _saved_and_resumed, tmp_path)
    (told,) = (losses for losses in first if losses)
    assert again[0] == pytest.approx(told[2:], rel=TOLERANCE["fp32"])


def _generated(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[list[int]]:
    request: GenerationRequest = {
        "prompt": [1, 2, 3],
        "new": 6,
        "samples": 1,
        "temperature": 0.0,
        "seed": 7,
        "cached": True,
    }
    path = folders.path_of(folder / "kept", 2)
    device = generate.open_device(spec.train.device, meeting.sharing)
    groups = connect(meeting, rank, Layout.of(spec), device.backend)
    try:
        return Generator(spec, rank, groups, device, path).generate(request)["tokens"]
    finally:
        disconnect()


def _generated_elsewhere(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[list[int]]:
    with fake_device.moved():
        return _generated(spec, rank, meeting, folder)


def test_text_is_generated_there_as_here(run_there: Ran, tmp_path: Path) -> None:
    train = {"steps": 2, "warmup_steps": 1, "global_batch": 8, "checkpoint_every": 2}
    spec = RunSpec.model_validate({"model": GPT, "parallel": {"tp": 2}, "train": train})
    run(spec, _saved, tmp_path)
    assert run_there(spec, _generated_elsewhere, tmp_path) == run(spec, _generated, tmp_path)


def _saved(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    _run(spec, rank, meeting, folder, CheckpointConfig(folder / "kept"))


def _profiled(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[str]:
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


@pytest.mark.full
def test_layers_and_links_are_measured_there(run_there: Ran, tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": GPT, "parallel": {"dp": 2}, "train": {"device": "cuda", "global_batch": 2}})
    told = run_there(spec, _profiled, tmp_path)
    assert {"device", "layers"} <= set(told[0])


def _mix(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> str:
    with fake_device.moved():
        there = torch.ones(3, device=fake_device.NAME)
        assert float((there + there).sum()) == 6
        assert torch.equal((there + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0))
        try:
            there + torch.ones(3)
        except RuntimeError as error:
            return str(error)
    return ""


def test_what_a_gpu_would_refuse_is_refused(run_there: Ran, tmp_path: Path) -> None:
    (said,) = run_there(RunSpec(), _mix, tmp_path)
    assert "here and elsewhere" in said
