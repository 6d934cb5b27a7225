"""Runs that never flush, from start to end: what they report, save and resume, and how they stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import checkpoint
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, Frame, events_path
from parallel_core.observe.records import POINT, SPAN
from parallel_core.plan.peak import predict
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core import parity, ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_checkpoint_stops import run_until_stopped
from tests.parallel_core.test_trainer import shares_agree

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
M = 4


def spec_of(schedule: str, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    split = {"schedule": schedule, "pp": 2, "micro_batches": M} | parallel
    fixed = {"steps": 9, "warmup_steps": 2, "global_batch": 8, "lr": 1e-2, "clip": "stage", "clip_norm": 0.5}
    return RunSpec.model_validate({"model": MODEL, "train": fixed | (train or {}), "parallel": split})


def _whole(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, resume: Path | None = None) -> list[Frame]:
    order = CheckpointConfig(folder / "run", resume)
    run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=order)
    return read_file(events_path(folder, rank))


def series(frames: list[Frame]) -> dict[str, list[tuple[int, float]]]:
    out: dict[str, list[tuple[int, float]]] = {}
    for frame in (frame for frame in frames if frame.kind == "points"):
        rows, at = np.frombuffer(frame.blob, POINT), 0
        for name, count in frame.header["series"]:
            out.setdefault(name, []).extend(rows[at : at + count][["step", "value"]].tolist())
            at += count
    return out


@pytest.mark.parametrize(("name", "late"), [("1f1b-stash", [1, 0]), ("1f1b-vertical", [1, 1]), ("1f1b-2bw", [1, 1])])
def test_every_step_reports_its_loss_and_how_stale_it_was(name: str, late: list[int], tmp_path: Path) -> None:
    seen = ranks.run(spec_of(name), _whole, tmp_path)
    points = series(seen[0])
    assert [step for step, _ in points["loss"]] == list(range(9))
    assert points["loss"][-1][1] < points["loss"][0][1]
    for frames, most in zip(seen, late, strict=True):
        (summary,) = (frame.header for frame in frames if frame.kind == "summary")
        assert summary["staleness"]["max"] == most
        # the first micro-batches have nothing to wait for
        assert summary["staleness"]["mean"] == pytest.approx(most, abs=0.15)
        assert series(frames)["staleness"][-1] == (8, most)


Versions = dict[tuple[int, Kind], int]
AGES: dict[str, Versions] = {
    "1f1b-naive": {(0, Kind.F): 1, (0, Kind.BW): 0, (1, Kind.F): 0, (1, Kind.BW): 0},
    "1f1b-stash": {(0, Kind.F): 1, (0, Kind.BW): 1, (1, Kind.F): 0, (1, Kind.BW): 0},
    "1f1b-vertical": {(0, Kind.F): 1, (0, Kind.BW): 1, (1, Kind.F): 1, (1, Kind.BW): 1},
}
"""By (stage, kind): how many updates the weights lack that all micro-batches before this one would have made."""


@pytest.mark.parametrize("name", ["1f1b-naive", "1f1b-stash", "1f1b-vertical", "1f1b-2bw"])
def test_spans_say_which_version_was_used(name: str, tmp_path: Path) -> None:
    spec = spec_of(name)
    seen = ranks.run(spec, _whole, tmp_path)
    assert shares_agree(spec, seen)[0] == list(range(spec.train.steps))
    for stage, frames in enumerate(seen):
        frame = next(frame for frame in frames if frame.kind == "spans")
        rows, first = np.frombuffer(frame.blob, SPAN), frame.header["step"] * M
        for kind in (Kind.F, Kind.BW):
            used = {int(row["micro_batch"]): int(row["version"]) for row in rows if row["kind"] == kind}
            ahead = int((stage, kind) == (0, Kind.F))  # the first stage is one forward ahead
            assert list(used) == list(range(ahead, M + ahead))
            late = {i: i // M * M - M if name == "1f1b-2bw" else i - AGES[name][stage, kind] for i in used}
            assert used == {i: first + version for i, version in late.items()}, (stage, kind)


def test_a_checkpoint_drains_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    spec = spec_of("1f1b-stash", {"checkpoint_every": 4, "keep": 9})
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    ranks.run(spec, _whole, first)
    assert folders.steps(first / "run") == [4, 8, 9]
    ranks.run(spec, partial(_whole, resume=folders.path_of(first / "run", 4)), second)
    want, got = (manifests.read(folders.path_of(folder / "run", 9)) for folder in (first, second))
    assert want.scalars["steps"] == got.scalars["steps"] == 9 * M
    assert [p.sha256 for t in want.tensors.values() for p in t.pieces] == [
        p.sha256 for t in got.tensors.values() for p in t.pieces
    ]


def test_stages_that_update_at_their_own_pace_resume_with_the_same_bits(tmp_path: Path) -> None:
    """Two rounds of three micro-batches against three: their optimizers have made different numbers of updates."""
    turns = {"pp": 2, "replicas": (2, 1), "micro_batches": 3, "cuts": (3,)}
    spec = spec_of("1f1b-stash", {"checkpoint_every": 2, "keep": 9, "steps": 4, "global_batch": 6}, **turns)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    seen = ranks.run(spec, _whole, first)
    most = [frame.header["staleness"]["max"] for frames in seen for frame in frames if frame.kind == "summary"]
    assert most == [1, 0, 0]
    ranks.run(spec, partial(_whole, resume=folders.path_of(first / "run", 2)), second)
    want, got = (manifests.read(folders.path_of(folder / "run", 4)) for folder in (first, second))
    assert want.scalars == got.scalars and (want.scalars["steps.0"], want.scalars["steps.1"]) == (8, 12)
    assert [p.sha256 for t in want.tensors.values() for p in t.pieces] == [
        p.sha256 for t in got.tensors.values() for p in t.pieces
    ]
    match.require_match(want, spec_of("1f1b", {"steps": 9}, cuts=(3,)))
    with pytest.raises(manifests.CheckpointError, match="use pp=2 and cuts=3; the replicas of each may change"):
        match.require_match(want, spec_of("1f1b", {"steps": 9}, pp=1))


def test_sigterm_drains_and_saves_behind_the_same_step(tmp_path: Path) -> None:
    spec = spec_of("1f1b-vertical", {"steps": 100_000})
    steps = ranks.run(spec, run_until_stopped, tmp_path)
    assert steps[0] == steps[1] > 0
    assert folders.steps(tmp_path / "run") == [steps[0]]
    assert manifests.read(folders.path_of(tmp_path / "run", steps[0])).scalars["steps"] == steps[0] * M
    points = series(read_file(events_path(tmp_path, 0)))
    assert [step for step, _ in points["loss"]] == list(range(steps[0])), "the loss of every step is reported"


def _stopped_behind(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> int:
    """The number of steps done when one rank is asked to stop before step 2; the state is saved."""

    def use(trainer: Trainer) -> int:
        saver = checkpoint.Saver(trainer, CheckpointConfig(folder / "run"), FileSink(folder, rank))
        for step in range(spec.train.steps):
            trainer.stop.asked = rank == 1 and step >= 2
            trainer.advance(step)
            if trainer.runner.stopping:
                saver.save(step + 1)
                saver.wait()
                return step + 1
        return -1

    return int(ranks.with_trainer(spec, rank, meeting, folder, use))


@pytest.mark.parametrize("name", ["1f1b-stash", pytest.param("1f1b-2bw", marks=pytest.mark.full)])
def test_a_run_that_was_stopped_goes_on_as_one_that_drained_there(name: str, tmp_path: Path) -> None:
    """Bit for bit like a run that drained at that step for a checkpoint, but not like one that stayed full, whose
    updates used gradients of older weights.
    """
    long = {"steps": 14}
    first, second = ranks.run(spec_of(name, long), _stopped_behind, tmp_path)
    assert 7 <= first == second < 14, "the stop must not coincide with a regular checkpoint"
    resume = folders.path_of(tmp_path / "run", first)

    def last(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[bytes]:
        def use(trainer: Trainer) -> list[bytes]:
            begin = checkpoint.load(trainer, resume) if spec.train.keep == 1 else 0
            for step in range(begin, 14):
                trainer.advance(step)
            return [value.numpy().tobytes() for value in trainer.flat.named().values()]

        return ranks.with_trainer(spec, rank, meeting, folder, use)

    kinds: tuple[dict[str, int], ...] = ({"keep": 1}, {"checkpoint_every": first}, {})
    went_on, drained, full = ranks.run_many([spec_of(name, long | kind) for kind in kinds], last, tmp_path)
    assert went_on == drained != full


@pytest.mark.parametrize(
    ("name", "parallel", "precision"),
    [
        pytest.param("1f1b-naive", {}, "fp32", marks=pytest.mark.full),
        ("1f1b-stash", {}, "bf16"),
        ("1f1b-vertical", {"recompute": "full"}, "fp32"),
        ("1f1b-2bw", {}, "fp32"),
        pytest.param("1f1b-stash", {"replicas": (2, 1)}, "fp32", marks=pytest.mark.full),
        # the last micro-batch of one step and the first of the next belong to the same replica
        ("1f1b-stash", {"replicas": (1, 3)}, "fp32"),
    ],
)
def test_memory_is_as_predicted(name: str, parallel: dict[str, Any], precision: str, tmp_path: Path) -> None:
    """In total within 3 %; parameters with all their versions, gradients and moments to the byte."""
    spec = spec_of(name, {"steps": 4, "precision": precision, "global_batch": 16}, **parallel)
    big = spec.model_copy(
        update={"model": spec.model.model_copy(update={"hidden": 64, "seq": 64, "layers": 3, "vocab": 256})}
    )
    seen = ranks.run(big, _whole, tmp_path)
    for predicted, frames in zip(predict(big), seen, strict=True):
        (measured,) = (frame.header for frame in frames if frame.kind == "memory")
        for category in ("params", "grads", "optimizer"):
            assert measured["peak"][category] == predicted.as_dict()[category]
        assert measured["peak_total"] == pytest.approx(predicted.total, rel=0.03)


def test_memory_has_all_versions_where_the_warm_up_is_shorter_than_it_takes_to_fill(tmp_path: Path) -> None:
    """With one micro-batch a step the last version comes in the third step, which is not a warm-up step here."""
    spec = spec_of("1f1b-stash", {"steps": 4}, pp=3, micro_batches=1)
    seen = ranks.run(spec, _whole, tmp_path)
    for predicted, frames in zip(predict(spec), seen, strict=True):
        (measured,) = (frame.header for frame in frames if frame.kind == "memory")
        assert measured["step"] == 4 + 2
        assert measured["peak"]["params"] == predicted.params
        assert measured["peak"]["activations"] == pytest.approx(predicted.activations, rel=0.01)


def _trained(trainer: Trainer) -> tuple[list[Any], dict[str, np.ndarray]]:
    totals = [trainer.step(step) for step in range(3)]
    return totals, {name: value.numpy().copy() for name, value in trainer.flat.named().items()}


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _trained)


def test_clipping_by_stage_under_flush(tmp_path: Path) -> None:
    """With one stage, clipping per stage and clipping globally give the same bits. With two stages they differ, and the
    reported norm is the global one.
    """
    train = {"precision": "fp64", "steps": 4}
    alone = [spec_of("1f1b", train | {"clip": clip}, pp=1) for clip in ("stage", "global")]
    (stage, _), (whole, _) = (of_ranks[0] for of_ranks in ranks.run_many(alone, _work, tmp_path))
    assert stage == whole
    two = [spec_of("1f1b", train | {"clip": clip}) for clip in ("stage", "global")]
    by_stage, by_all = (of_ranks[0][0] for of_ranks in ranks.run_many(two, _work, tmp_path))
    assert by_stage[0].grad_norm == pytest.approx(by_all[0].grad_norm, rel=1e-12)
    assert by_stage[1].loss != pytest.approx(by_all[1].loss, rel=1e-9)
    assert torch.tensor([total.loss for total in by_stage]).isfinite().all()
    assert len(by_stage) == parity.STEPS
