"""The held-out loss: the same under every layout, of samples that are never trained on, without effect on training."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.verify import verified
from parallel_core.data.held_out import HeldOutBatches
from parallel_core.data.sampler import Sampler
from parallel_core.engine import trainer
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous
from parallel_core.engine.evaluation import BrokenOff, Evaluation
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.learning_rate import rate_at
from parallel_core.no_progress import place
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.outcome import points
from parallel_core.schedule import plain
from parallel_core.schedule.custom import EXAMPLE
from parallel_core.schedule.forward_only import forward_only
from parallel_core.schedule.ir import AHEAD, Kind, Program
from parallel_core.schedule.passes.replicate import replicate
from parallel_core.spec import RunSpec, field_errors
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file

MODEL = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
TRAIN: dict[str, Any] = {"steps": 5, "warmup_steps": 1, "global_batch": 8, "lr": 1e-3}
Series = dict[str, list[tuple[int, float]]]


def spec_of(train: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    """Evaluates 11 samples every 2 steps: no multiple of a micro-batch, and more than a global batch."""
    rooms = {
        "model": model or MODEL,
        "train": TRAIN | {"eval_every": 2, "eval_samples": 11} | (train or {}),
        "parallel": parallel,
        "trace": {"memory": False, "reference": False},
    }
    return RunSpec.model_validate(rooms)


def run(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, patched: str = "") -> Series:
    """The series of rank 0. In this forked process alone, evaluations are left out, or step 4 reads what they read and
    changes no weight.
    """
    if patched == "without":
        Evaluation.after_step = lambda self, step, drained, last=False: None  # type: ignore[method-assign,misc]
    if patched == "trained":
        drawn = Sampler.numbers

        def numbers(self: Sampler, step: int) -> np.ndarray:
            return self.dataset.hold_out(self.batch).numbers if step == 4 else drawn(self, step)

        Sampler.numbers = numbers  # type: ignore[method-assign]
        trainer.rate_at = lambda train, step: rate_at(train, step) * (step < 4)
    run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    frames = list(read_file(events_path(folder, 0))) if rank == 0 else []
    return {
        name: [(int(p["step"]), float(p["value"])) for p in points(frames, name)]
        for name in ("loss", "eval_loss", "eval_time")
    }


def series(spec: RunSpec, patched: str = "") -> Series:
    found: Series = ranks.run(spec, partial(run, patched=patched), ranks.scratch())[0]
    return found


@cache
def alone(spec: RunSpec) -> Series:
    """On one device, with as many micro-batches of a step."""
    return series(spec.model_copy(update={"parallel": RunSpec().parallel}))


SPLITS: dict[str, dict[str, Any]] = {
    "micro-batches": {"micro_batches": 4},
    "data": {"dp": 2, "micro_batches": 2},
    "tensor": {"tp": 2},
    "sequence": {"tp": 2, "sequence": True},
    "pipeline": {"pp": 2, "micro_batches": 4, "schedule": "1f1b"},
    "three stages": {"pp": 3, "micro_batches": 4, "schedule": "gpipe"},
    "interleaved": {"pp": 2, "micro_batches": 4, "schedule": "interleaved"},
    "ZB-V": {"pp": 2, "micro_batches": 4, "schedule": "zb-v"},
    "DualPipe-V": {"pp": 2, "micro_batches": 4, "schedule": "dualpipe-v"},
    "own schedule": {"pp": 2, "micro_batches": 4, "schedule": "custom", "program": EXAMPLE},
    "early gradients": {"pp": 2, "micro_batches": 4, "schedule": "1f1b", "early_gradients": True},
    "replicas": {"pp": 2, "micro_batches": 4, "schedule": "1f1b", "replicas": [2, 1]},
    "widths": {"pp": 2, "micro_batches": 4, "schedule": "1f1b", "widths": [1, 2]},
    "full recomputation": {"pp": 2, "micro_batches": 4, "schedule": "1f1b", "recompute": "full"},
    "selective recomputation": {"recompute": "selective"},
    "ZeRO-1": {"dp": 2, "zero": 1},
    "ZeRO-3": {"dp": 2, "micro_batches": 2, "zero": 3},
    "fully_shard": {"dp": 2, "micro_batches": 2, "zero": 3, "zero_backend": "fully_shard"},
    "three ways": {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2, "schedule": "1f1b"},
}


ALWAYS = {"ZeRO-3", "three ways"}


@pytest.mark.parametrize(
    "name", [one if one in ALWAYS else pytest.param(one, marks=pytest.mark.full) for one in SPLITS]
)
def test_it_is_that_of_a_single_device(name: str) -> None:
    spec = spec_of(**SPLITS[name])
    found, wanted = series(spec), alone(spec)
    assert [step for step, _ in found["eval_loss"]] == [1, 3, 4] == [step for step, _ in wanted["eval_loss"]]
    for name in ("loss", "eval_loss"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)
    assert all(seconds > 0 for _, seconds in found["eval_time"])


@pytest.mark.parametrize(
    "schedule",
    [
        "1f1b-naive",
        "1f1b-vertical",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("1f1b-stash", "1f1b-2bw")),
    ],
)
def test_without_a_flush_it_is_evaluated_where_the_pipeline_is_empty(schedule: str) -> None:
    """After the last step, and where a checkpoint drains it: the loss then is that of the same weights trained on."""
    train = {"clip": "stage", "precision": "fp64", "eval_samples": 8, "checkpoint_every": 2, "eval_every": 4}
    spec = spec_of(train, pp=2, micro_batches=4, schedule=schedule)
    found, trained = series(spec), series(spec, "trained")
    assert [step for step, _ in found["eval_loss"]] == [3, 4]
    assert found["loss"][:4] == trained["loss"][:4]
    assert found["eval_loss"][0][1] == pytest.approx(trained["loss"][4][1], rel=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    "model",
    [
        MODEL | {"tied": True},
        {"kind": "mlp", "layers": 4, "hidden": 32},
        {"kind": "gnmt", "layers": 4, "hidden": 16, "seq": 8, "vocab": 64},
    ],
    ids=["gpt", "mlp", "gnmt"],
)
def test_it_is_the_loss_that_training_on_the_same_samples_would_have(model: dict[str, Any]) -> None:
    spec = spec_of({"precision": "fp64", "eval_samples": 8}, model, pp=2, micro_batches=2, schedule="1f1b")
    found, trained = series(spec), series(spec, "trained")
    assert found["loss"][:4] == trained["loss"][:4]
    assert found["eval_loss"][1][1] == pytest.approx(trained["loss"][4][1], rel=1e-12)


@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        pytest.param(MODEL | {"dropout": 0.2}, {"dp": 2, "micro_batches": 2}, marks=pytest.mark.full),
        ({"kind": "resnet50", "width": 2}, {"dp": 2}),
        (MODEL | {"dropout": 0.2}, {"pp": 2, "micro_batches": 4, "schedule": "1f1b-stash"}),
    ],
    ids=["dropout", "batch norm", "stream"],
)
def test_it_changes_nothing_of_training(model: dict[str, Any], parallel: dict[str, Any]) -> None:
    """Losses have the same bits as those of the run whose evaluations are left out."""
    flushes = parallel.get("schedule") is None
    train = {} if flushes else {"clip": "stage", "eval_every": 2, "checkpoint_every": 2}
    spec = spec_of(train, model, **parallel)
    found, without = series(spec), series(spec, "without")
    assert found["loss"] == without["loss"] and found["eval_loss"] and not without["eval_loss"]
    assert all(np.isfinite(value) for _, value in found["eval_loss"])


def test_a_checkpoint_has_the_held_out_loss_of_its_step(tmp_path: Path) -> None:
    """Where both are due: evaluated after steps 2, 4 and 5, saved after steps 3 and 5."""
    spec = spec_of({"checkpoint_every": 3, "keep": 5}, dp=2)

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
        sink, progress = FileSink(folder, rank), Progress(folder, rank)
        run_rank(spec, rank, sink, meeting, progress, saves=CheckpointConfig(tmp_path / "kept"))

    ranks.run(spec, work, tmp_path)
    frames = list(read_file(events_path(tmp_path, 0)))
    saved = {frame.header["step"]: frame.header["held_out"] for frame in frames if frame.kind == "checkpoint"}
    (last,) = (float(p["value"]) for p in points(frames, "eval_loss") if p["step"] == 4)
    assert saved == {3: None, 5: last}


def test_what_fails_after_an_evaluation_is_not_said_to_have_failed_in_it(tmp_path: Path) -> None:
    """Such as a save."""
    made = Trainer(spec_of(), 0, Groups(), open_device("cpu"), Progress(tmp_path, 0))
    assert Evaluation(made, Exchange(made.device, None, 1)).after_step(1, drained=True) is not None
    assert place(tmp_path, 0) == " at step 1 in work after an evaluation"


def test_dropout_is_off_and_batch_norms_use_their_running_statistics() -> None:
    """Before any update: with dropout the held-out loss is that without; a batch norm's does not depend on which
    samples share a micro-batch."""
    first = {"steps": 2, "eval_every": 1, "warmup_steps": 1, "lr": 1e-30}
    dropped, whole = (series(spec_of(first, MODEL | {"dropout": p}))["eval_loss"][0] for p in (0.3, 0.0))
    assert dropped == pytest.approx(whole, rel=1e-6)
    images = {"kind": "resnet50", "width": 2}
    one, several = (
        series(spec_of(first | {"precision": "fp64"}, images, micro_batches=m))["eval_loss"][0] for m in (1, 4)
    )
    assert one != several  # micro-batches of other sizes gathered other statistics
    assert np.isfinite([one[1], several[1]]).all()


@pytest.mark.parametrize("count", range(1, 5))
@pytest.mark.parametrize("name", [name for name in SPLITS if "pp" in SPLITS[name]])
def test_forwards_alone_are_a_valid_schedule(name: str, count: int) -> None:
    """Each stage runs each micro-batch once, after its input has come, with few receives posted ahead."""
    split = spec_of(**SPLITS[name]).parallel
    made = forward_only(replicate(plain(split), split.dp), count)
    assert {op.kind for program in made.programs for op in program} <= {Kind.F, Kind.SEND_ACT, Kind.RECV_ACT}
    ran = sorted((op.stage, op.micro_batch) for program in made.programs for op in program if op.kind is Kind.F)
    assert ran == [(stage, i) for stage in range(made.stages) for i in range(count)]
    assert _ends(made.programs)


def _ends(programs: tuple[Program, ...]) -> bool:
    """Whether all programs end where a message arrives once its receive is posted, AHEAD receives before the one that a
    rank has reached on the link, and a rank that sends waits for all its sends but the last AHEAD.
    """
    at, sent = [0] * len(programs), [list[tuple[int, int]]() for _ in programs]
    on_link, taken, moved = Counter[tuple[int, int]](), Counter[tuple[int, int]](), True
    while moved:
        moved = False
        for q, program in enumerate(programs):
            while at[q] < len(program):
                op = program[at[q]]
                if op.kind is Kind.RECV_ACT:
                    if on_link[op.peer, q] <= taken[op.peer, q]:
                        break
                    taken[op.peer, q] += 1
                if op.kind is Kind.SEND_ACT:
                    older = sent[q][: max(len(sent[q]) + 1 - AHEAD, 0)]
                    if any(number >= taken[q, peer] + AHEAD for peer, number in older):
                        break
                    sent[q].append((op.peer, on_link[q, op.peer]))
                    on_link[q, op.peer] += 1
                at[q], moved = at[q] + 1, True
    return all(place == len(program) for place, program in zip(at, programs, strict=True))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"eval_every": 2}, "before the last step"),
        ({"eval_every": 3, "checkpoint_every": 2}, "other than after checkpoints, every 2 steps"),
    ],
)
def test_a_pipeline_that_never_flushes_is_not_drained_for_it(train: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        spec_of({"clip": "stage"} | train, pp=2, micro_batches=4, schedule="1f1b-stash")
    found = field_errors(refused.value)["train.eval_every"]
    assert said in found and "use eval_every=5" in found and "schedule=1f1b" in found
    assert ("or eval_every=2, or" in found) == ("checkpoint_every" in train)


def test_statistics_of_batch_norms_stay_as_they_are(tmp_path: Path) -> None:
    spec = spec_of({"eval_samples": 8}, {"kind": "resnet50", "width": 2}, dp=2)

    def use(trainer: Trainer) -> tuple[float, bool]:
        trainer.step(0)
        before = {name: buffer.clone() for name, buffer in trainer.chunks.buffers().items()}
        found = Evaluation(trainer, Exchange(trainer.device, None, 1)).after_step(1, drained=True)
        assert found is not None
        same = all(torch.equal(buffer, before[name]) for name, buffer in trainer.chunks.buffers().items())
        return found.loss, same and len(before) > 50

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[float, bool]:
        return ranks.with_trainer(spec, rank, meeting, folder, use)

    (first, same), (second, also) = ranks.run(spec, work, tmp_path)
    assert same and also
    split = {**spec.model_dump(), "parallel": {"micro_batches": 1}}
    ((whole, _),) = ranks.run(RunSpec.model_validate(split), work, tmp_path)
    assert first + second == pytest.approx(whole, rel=1e-5)


def test_a_stop_in_the_last_evaluation_puts_it_off_until_the_weights_are_saved(tmp_path: Path) -> None:
    """No step is left, so the run goes on to its end, which has this loss; then the checkpoint gets it, too."""

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
        evaluate = Evaluation.after_step

        def after_step(self: Evaluation, step: int, *, drained: bool, last: bool = False) -> Any:
            if step + 1 == spec.train.steps:
                raise BrokenOff
            return evaluate(self, step, drained=drained)

        Evaluation.after_step = after_step  # type: ignore[method-assign]
        saves = CheckpointConfig(tmp_path / "kept")
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=saves)

    ranks.run(spec_of(dp=2), work, tmp_path)
    frames = list(read_file(events_path(tmp_path, 0)))
    assert [int(p["step"]) for p in points(frames, "eval_loss")] == [1, 3, 4]
    said = [frame.header for frame in frames if frame.kind in ("checkpoint", "summary")]
    assert [header["kind"] for header in said] == ["checkpoint", "summary", "checkpoint"]
    last = float(points(frames, "eval_loss")[-1]["value"])
    assert (said[0]["held_out"], said[2]["held_out"]) == (None, last)
    unchanged = ("step", "bytes", "blocked", "seconds", "kept")
    assert [said[0][name] for name in unchanged] == [said[2][name] for name in unchanged]
    assert verified(folders.path_of(tmp_path / "kept", 5)).held_out == last


def test_a_request_to_stop_breaks_an_evaluation_off(tmp_path: Path) -> None:
    """After the round in which it comes; one that comes in the last round does not."""

    def use(trainer: Trainer) -> list[str]:
        evaluation, said = Evaluation(trainer, Exchange(trainer.device, None, 1)), []
        trainer.step(0)
        for asked_in in (0, 1, 2):
            trainer.stop.asked, rounds = False, iter(range(3))
            ran = evaluation._executor.run

            def run(at: int, rounds: Any, ran: Any, step: int, batches: HeldOutBatches, number: int) -> float:
                trainer.stop.asked |= next(rounds) == at
                return float(ran(step, batches, number))

            evaluation._executor.run = partial(run, asked_in, rounds, ran)  # type: ignore[method-assign]
            try:
                said.append("whole" if evaluation.after_step(1, drained=True) else "none")
            except BrokenOff:
                said.append(f"left {len(list(rounds))}")
            evaluation._executor.run = ran  # type: ignore[method-assign]
        return said

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[str]:
        return ranks.with_trainer(spec, rank, meeting, folder, use)

    assert ranks.run(spec_of({"eval_samples": 20}), work, tmp_path) == [["left 2", "left 1", "whole"]]
