"""A resumed run continues as if it had never stopped: same bits under the same layout, same numbers under another
layout.

Unusable checkpoints (truncated, changed, of another model) are refused with the reason. Real ranks, real files.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import parts
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.cli.common import CommandError, checkpoint_of
from parallel_core.engine import checkpoint
from parallel_core.engine.checkpoint_state import State
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous
from parallel_core.engine.norm import Totals
from parallel_core.engine.trainer import Trainer
from parallel_core.launch import rank as launch_rank
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks, stored
from tests.parallel_core.corrupt import change_byte
from tests.parallel_core.frames import read_file
from tests.spies import noting

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
TRAIN = {"steps": 9, "global_batch": 8, "lr": 1e-2, "clip_norm": 0.5}
MESHES = {"pp": 2, "micro_batches": 4}
"""Fields of a pipeline whose stages have different (dp, tp)."""
SAVED, END = 4, 9


def spec_of(model: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"model": MODEL | (model or {}), "train": TRAIN | (train or {}), "parallel": parallel}
    )


def on_ranks(spec: RunSpec, use: Callable[[Trainer], Any]) -> list[Any]:
    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
        return ranks.with_trainer(spec, rank, meeting, folder, use)

    return ranks.run(spec, work, ranks.scratch())


def saved_in_passing(trainer: Trainer, folder: Path) -> list[Totals]:
    """Totals of an uninterrupted run that saves after step SAVED and continues while the checkpoint is written."""
    saver = checkpoint.Saver(trainer, CheckpointConfig(folder), FileSink(ranks.scratch(), trainer.rank))
    totals = []
    for step in range(END):
        totals.append(trainer.step(step))
        if step + 1 == SAVED:
            saver.save(SAVED)
    saver.wait()
    return totals


def resumed(trainer: Trainer, folder: Path, again: Path) -> list[Totals]:
    """Totals from the checkpoint on. The loaded state is saved again at once, under the new layout."""
    assert checkpoint.load(trainer, folders.path_of(folder, SAVED)) == SAVED
    saver = checkpoint.Saver(trainer, CheckpointConfig(again), FileSink(ranks.scratch(), trainer.rank))
    saver.save(SAVED)
    totals = [trainer.step(step) for step in range(SAVED, END)]
    saver.wait()
    return totals


def losses(totals: list[Totals]) -> list[float]:
    return [one.loss for one in totals]


def go_on(before: RunSpec, after: RunSpec, folder: Path) -> tuple[list[Totals], list[Totals]]:
    """Returns the totals of all steps of the uninterrupted run, and of those after the checkpoint of the resumed one;
    asserts that tensors are bit-equal.
    """
    first, second = folder / "first", folder / "second"
    want = on_ranks(before, partial(saved_in_passing, folder=first))[0]
    got = on_ranks(after, partial(resumed, folder=first, again=second))[0]
    saved, loaded = (stored.tensors(folders.path_of(where, SAVED)) for where in (first, second))
    assert {name.split("/")[0] for name in saved} >= {
        "value",
        *({"momentum"} if before.train.optimizer == "sgd" else {"mean", "square"}),
    }
    assert not stored.different(saved, loaded)
    return want, got


@pytest.mark.parametrize(
    "split",
    [{}, {"dp": 2, "tp": 2, "recompute": "full"}, {"pp": 2, "micro_batches": 4}, {"dp": 2, "zero": 3}],
    ids=["single", "dp-tp", "pp", "zero3"],
)
def test_the_same_layout_goes_on_with_the_same_bits(split: dict[str, Any], tmp_path: Path) -> None:
    want, got = go_on(spec_of(**split), spec_of(**split), tmp_path)
    assert got == want[SAVED:]


SPLITS = {
    "single": {"micro_batches": 2},
    "pp": {"pp": 2, "micro_batches": 2},
    "zero1": {"dp": 2, "zero": 1},
    "zero2": {"dp": 2, "zero": 2},
}
"""With micro-batches of one size, so that fp16 overflows in the same steps."""


def _each_split(always: str) -> list[Any]:
    return [
        pytest.param(split, id=key, marks=() if key == always else pytest.mark.full) for key, split in SPLITS.items()
    ]


def test_momentum_goes_on_under_another_layout(tmp_path: Path) -> None:
    sgd = {"optimizer": "sgd"}
    want, got = go_on(spec_of({}, sgd, dp=2, zero=1), spec_of({}, sgd, pp=2, micro_batches=2), tmp_path)
    np.testing.assert_allclose(losses(got), losses(want)[SAVED:], rtol=1e-4)


@pytest.mark.parametrize("split", _each_split("pp"))
def test_dropout_goes_on_with_the_same_masks(split: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of({"dropout": 0.1}, **split)
    want, got = go_on(spec, spec, tmp_path)
    assert got == want[SAVED:]


@pytest.mark.parametrize("split", _each_split("zero2"))
def test_a_loss_scale_goes_on_where_it_was(split: dict[str, Any], tmp_path: Path) -> None:
    """Steps are skipped before the checkpoint and after it, which stands between the two good steps that raise the
    scale.
    """
    spec = spec_of({}, {"precision": "fp16", "loss_scale": 2.0**19, "loss_scale_window": 2}, **split)
    want, got = go_on(spec, spec, tmp_path)
    assert manifests.read(folders.path_of(tmp_path / "first", SAVED)).scalars["loss_scale.good"] == 1
    assert 0 < want[SAVED - 1].skipped < want[-1].skipped < END
    np.testing.assert_array_equal(got, want[SAVED:])  # the norm of a skipped step may be NaN, which equals itself here


@pytest.mark.parametrize(("precision", "bound"), [pytest.param("fp32", 1e-6, marks=pytest.mark.full), ("fp64", 1e-9)])
@pytest.mark.parametrize(
    ("tied", "before", "after"),
    [
        pytest.param(False, {"dp": 2, "tp": 2}, {"pp": 4, "micro_batches": 4}, id="dp2tp2-pp4"),
        pytest.param(False, {"pp": 2, "micro_batches": 2, "cuts": (2,)}, {"tp": 2}, id="pp2-tp2"),
        pytest.param(True, {"pp": 2, "cuts": (4,), "micro_batches": 2}, {"dp": 2, "tp": 2}, id="tied-pp2-dp2tp2"),
        pytest.param(True, {"dp": 2, "pp": 2, "zero": 1}, {"tp": 2}, id="tied-zero-dp2pp2-tp2", marks=pytest.mark.full),
        pytest.param(
            False,
            {"pp": 2, "micro_batches": 2},
            {"dp": 2, "tp": 2, "zero": 1},
            id="pp2-zero-dp2tp2",
            marks=pytest.mark.full,
        ),
        pytest.param(True, {"dp": 2, "pp": 2, "zero": 2}, {"dp": 4, "zero": 1}, id="tied-zero2-dp2pp2-zero1-dp4"),
        pytest.param(
            False, {"dp": 2, "zero": 1}, {"dp": 2, "pp": 2, "zero": 2}, id="zero1-zero2-dp2pp2", marks=pytest.mark.full
        ),
        pytest.param(False, MESHES | {"widths": (2, 1)}, MESHES | {"replicas": (2, 1), "widths": (1, 2)}, id="meshes"),
        pytest.param(False, {"tp": 2}, {"tp": 2, "tensor_split": "columns"}, id="pairs-columns"),
        pytest.param(False, {"tp": 2, "tensor_split": "columns"}, {"dp": 2}, id="columns-dp2", marks=pytest.mark.full),
        pytest.param(False, {"dp": 2, "zero": 3}, {}, id="zero3-single"),
        pytest.param(True, {"dp": 2, "zero": 3}, {"pp": 2}, id="tied-zero3-pp2", marks=pytest.mark.full),
        pytest.param(True, {"dp": 2, "tp": 2, "zero": 3}, {"dp": 2, "zero": 1}, id="tied-zero3-dp2tp2-zero1"),
        pytest.param(
            True, {"pp": 2}, {"dp": 2, "zero": 3, "micro_batches": 2}, id="tied-pp2-zero3", marks=pytest.mark.full
        ),
        pytest.param(
            True, {"tp": 2}, {"pp": 3, "cuts": (1, 3), "micro_batches": 4}, id="tied-tp2-pp3", marks=pytest.mark.full
        ),
    ],
)
def test_another_layout_goes_on_with_the_same_numbers(
    tied: bool, before: dict[str, Any], after: dict[str, Any], precision: str, bound: float, tmp_path: Path
) -> None:
    specs = [spec_of({"tied": tied}, {"precision": precision}, **split) for split in (before, after)]
    want, got = go_on(specs[0], specs[1], tmp_path)
    assert len(got) == 5
    np.testing.assert_allclose(losses(got), losses(want[SAVED:]), rtol=bound, atol=0)


@pytest.mark.parametrize(
    "after", [pytest.param({"dp": 2}, id="same"), pytest.param({"pp": 2}, id="pp2", marks=pytest.mark.full)]
)
def test_running_statistics_go_on_too(after: dict[str, Any], tmp_path: Path) -> None:
    model, train = {"kind": "resnet50", "width": 2}, TRAIN | {"precision": "fp64", "lr": 1e-3}

    def spec(split: dict[str, Any]) -> RunSpec:
        return RunSpec.model_validate({"model": model, "train": train, "parallel": split})

    want, got = go_on(spec({"dp": 2}), spec(after), tmp_path)
    np.testing.assert_allclose(losses(got), losses(want[SAVED:]), rtol=1e-9, atol=0)
    saved = stored.tensors(folders.path_of(tmp_path / "second", SAVED))
    kept = [value for name, value in saved.items() if name.startswith("stat/")]
    assert len(kept) == 2 * 53  # a mean and a variance for each of ResNet-50's convolutions
    assert all(value.any() and (value != 1).any() for value in kept)


def alone(spec: RunSpec | None = None) -> Trainer:
    folder = ranks.scratch()
    return Trainer(spec or spec_of(), 0, Groups(), open_device("cpu"), Progress(folder, 0))


def save(
    trainer: Trainer, folder: Path, *steps: int, held_out: Mapping[int, float] = MappingProxyType({}), **order: Any
) -> None:
    saver = checkpoint.Saver(trainer, CheckpointConfig(folder, **order), FileSink(folder.parent, 0))
    for step in steps:
        saver.save(step, held_out.get(step))
    saver.wait()


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    save(alone(spec_of({}, {"keep": 3})), tmp_path / "run", *range(1, 7))
    assert folders.steps(tmp_path / "run") == [4, 5, 6]
    records = [frame.header for frame in read_file(events_path(tmp_path, 0)) if frame.kind == "checkpoint"]
    assert [record["kept"] for record in records][-1] == [4, 5, 6]
    assert records[-1]["bytes"] == manifests.read(folders.path_of(tmp_path / "run", 6)).bytes


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert folders.newest(folder) is None
    save(alone(), folder, 3, 4)
    (folders.path_of(folder, 4) / "rank-0.bin").write_bytes(b"short")
    found = folders.newest(folder)
    assert found is not None and (found[0], found[1].step) == (folders.path_of(folder, 3), 3)
    path, manifest, passed = folders.resolve(folder)
    assert (path, manifest.step, [*passed]) == (folders.path_of(folder, 3), 3, [4])
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        folders.resolve(tmp_path / "nowhere")


def test_a_changed_byte_is_passed_over_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(alone(), tmp_path / "run", 3, 4)
    change_byte(folders.path_of(tmp_path / "run", 4) / "rank-0.bin", 100)
    found, manifest = checkpoint_of(tmp_path / "run")
    assert (found, manifest.step) == (folders.path_of(tmp_path / "run", 3), 3)
    assert "passed over: The checkpoint" in capsys.readouterr().err
    change_byte(found / "rank-0.bin", 100)
    with pytest.raises(CommandError, match=r"holds no whole checkpoint\. .*step-00000004.*step-00000003"):
        checkpoint_of(tmp_path / "run")


def test_a_save_that_fails_says_why(tmp_path: Path) -> None:
    trainer = alone()
    saver = checkpoint.Saver(trainer, CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("a file where the folder should be")
    saver.save(1)
    with pytest.raises(CheckpointError, match="The checkpoint after 1 step could not be written"):
        saver.wait()


def test_a_save_that_runs_out_of_memory_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the traceback of the thread that wrote."""
    saver = checkpoint.Saver(alone(), CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(parts, "write_part", full)
    saver.save(1)
    said = "The checkpoint after 1 step could not be written: MemoryError"
    with pytest.raises(CheckpointError, match=said) as caught:
        saver.wait()
    assert launch_rank._out_of_memory(caught.value)
    assert "in full\n" in "".join(traceback.format_exception(caught.value))


def test_no_error_of_the_thread_that_writes_goes_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is no Exception either, such as the panic of an extension."""
    saver = checkpoint.Saver(alone(), CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))

    def panic(*_: object) -> None:
        raise BaseException("panic")

    monkeypatch.setattr(parts, "write_part", panic)
    saver.save(1)
    with pytest.raises(CheckpointError, match="The checkpoint after 1 step could not be written: panic"):
        saver.wait()


def test_a_piece_is_compared_with_the_parameters_next_to_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO there are as many pieces as parameters or buckets, so all pairs would be too many."""
    trainer, compared = alone(spec_of({"layers": 8})), list[int]()
    for name in ("_share", "_writes"):
        monkeypatch.setattr(State, name, noting(getattr(State, name), compared, lambda *_: 1))
    flat = trainer.flat
    pieces = tuple((slot.start, flat.values[slot.start : slot.stop]) for slot in flat)
    found = State(trainer).shares({"value": pieces}, writing=True)
    assert set(found) == {f"value/{slot.name}" for slot in flat}
    assert len(compared) <= 4 * len(flat.slots)


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.012, 0.03, 0.07])
def test_kill_9_during_a_save_leaves_whole_checkpoints_alone(tmp_path: Path, delay: float) -> None:
    """Kills a process that does nothing but save; every checkpoint found then must load completely."""
    folder = tmp_path / "run"
    pid = os.fork()
    if pid == 0:
        try:
            saver = checkpoint.Saver(alone(), CheckpointConfig(folder), FileSink(tmp_path, 0))
            for step in range(1, 100_000):
                saver.save(step)
        finally:  # a child that went on would be a second pytest
            os._exit(1)
    deadline = time.monotonic() + 60
    while len(folders.steps(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    left = folders.steps(folder)
    assert len(left) in (1, 2, 3)  # between the rename and the removal of the oldest there are three
    trainer = alone(spec_of({}, {"steps": 200_000}))
    for step in left:
        assert checkpoint.load(trainer, folders.path_of(folder, step)) == step
    save(trainer, folder, left[-1] + 1, attempt=1)
    # the next save removes leftovers of the killed one
    assert {path.name[:5] for path in folder.iterdir()} == {"step-"}
