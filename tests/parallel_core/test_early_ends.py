"""A run that reaches its time limit saves and leaves; one whose loss stays NaN ends and keeps its sound checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_core import early_end
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.cli.train import _ending
from parallel_core.engine import stop
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.evaluation import BrokenOff, Evaluation
from parallel_core.engine.norm import Totals
from parallel_core.engine.run import run_rank
from parallel_core.engine.stop import Judge, LossNotFinite, Reason, StopRequest
from parallel_core.exits import Exit
from parallel_core.launch import EXIT_FAULT
from parallel_core.limits import NOT_FINITE_STEPS
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, Frame, events_path
from parallel_core.outcome import points
from parallel_core.spec import RunSpec, TrainSpec
from tests.parallel_core import ranks, test_async_runs, test_checkpoint
from tests.parallel_core.frames import outcome_of, read_file

NAN, INF = float("nan"), float("inf")
DIVERGES = [{"kind": "high_lr", "factor": 1e30, "step": 4}]
FLUSH, STREAM = partial(test_checkpoint.spec_of, {}, dp=2), partial(test_async_runs.spec_of, "1f1b-vertical")


def judged(train: TrainSpec, *losses: float, norm: float = 1.0) -> Judge:
    judge = Judge(train)
    for step, loss in enumerate(losses):
        judge.see(Totals(loss, norm), step)
    return judge


def test_only_so_many_steps_in_a_row_without_a_finite_loss_end_a_run() -> None:
    short = [1.0, *[NAN] * (NOT_FINITE_STEPS - 1)]
    once = judged(TrainSpec(), *short, 2.0, *short)
    assert (once.reason, once.since, once.broken) == (Reason.NONE, len(short) + 2, True)
    ends = judged(TrainSpec(), *short, INF)
    assert (ends.reason, ends.since) == (Reason.NOT_FINITE, 1)
    goes_on = judged(TrainSpec(stop_on_nan=False), *short, INF)
    assert (goes_on.reason, goes_on.broken) == (Reason.NONE, False)


def test_gradients_that_overflow_break_the_weights_unless_fp16_skips_them() -> None:
    assert judged(TrainSpec(), 1.0, norm=INF).broken
    skipped = judged(TrainSpec(precision="fp16"), *[1.0] * 2 * NOT_FINITE_STEPS, norm=INF)
    assert not skipped.broken and skipped.reason is Reason.NONE


def test_a_signal_counts_more_than_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stop.time, "monotonic", lambda: now[0])
    request = StopRequest()
    request.limit(0)
    now[0] += 1e9
    assert request.reason is Reason.NONE
    request.limit(2)
    now[0] += 119
    assert request.reason is Reason.NONE
    now[0] += 1
    assert request.reason is Reason.TIME_UP
    request.asked = True
    assert request.reason is Reason.SIGNAL


def test_the_end_says_its_limit_and_what_was_not_saved() -> None:
    about: dict[str, Any] = {"done": 120, "steps": 1000, "minutes": 30.0, "saved": True}
    said = "Ended after 120 of 1\xa0000 steps: its limit of 30 minutes (train.max_minutes)."
    assert early_end.sentence(about) == said
    assert early_end.sentence({**about, "saved": False}) == f"{said} Nothing was saved there."


def test_a_command_says_how_its_run_ended_early(tmp_path: Path) -> None:
    about: dict[str, Any] = {"kind": "early", "done": 3, "steps": 9, "minutes": 5.0, "saved": True}
    left = outcome_of(tmp_path / "left", {0: [Frame(about, b"", 0)]}, [Exit(0, 0, 0.0)])
    assert left.ok and left.early in _ending(left, RunSpec())
    fault: dict[str, Any] = {
        "kind": "fault",
        "cause": "not_finite",
        "type": "LossNotFinite",
        "message": "Since step 3.",
    }
    ended = outcome_of(tmp_path / "ended", {0: [Frame(fault, b"", 0)]}, [Exit(0, EXIT_FAULT, 0.0)])
    assert ended.failure() == "Since step 3."


def _trained(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, saves: bool = True) -> str:
    """What the rank says when it ended because of its loss, else ''."""
    config = CheckpointConfig(folder / "run") if saves else None
    try:
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=config)
    except LossNotFinite as error:
        return str(error)
    return ""


@pytest.mark.parametrize("spec_of", [FLUSH, STREAM], ids=["flush", "stream"])
def test_all_ranks_leave_behind_the_same_step_when_the_time_is_up(spec_of: Any, tmp_path: Path) -> None:
    assert ranks.run(spec_of({"steps": 100_000, "max_minutes": 1e-3}), _trained, tmp_path) == ["", ""]
    frames = [read_file(events_path(tmp_path, rank)) for rank in (0, 1)]
    first, second = ([f.header for f in found if f.kind == early_end.KIND] for found in frames)
    assert len(first) == 1 and first[0]["saved"] and 0 < first[0]["done"] == second[0]["done"]
    assert folders.steps(tmp_path / "run") == [first[0]["done"]]
    assert [f.header["step"] for f in frames[0] if f.kind == "phase"][-1] == first[0]["done"]


def test_the_weights_that_are_saved_at_the_limit_have_a_held_out_loss(tmp_path: Path) -> None:
    """Between two evaluations: nothing is urgent then."""
    more = {"steps": 100_000, "max_minutes": 1e-3, "eval_every": 90_000, "eval_samples": 4}
    assert ranks.run(FLUSH(more), _trained, tmp_path) == ["", ""]
    (done,) = folders.steps(tmp_path / "run")
    held_out = points(read_file(events_path(tmp_path, 0)), "eval_loss")
    assert held_out["step"].tolist() == [done - 1]
    assert manifests.read(folders.path_of(tmp_path / "run", done)).held_out == held_out["value"][0]


def test_a_stop_while_the_last_weights_are_evaluated_does_not_undo_the_limit(tmp_path: Path) -> None:
    """Else the run would be queued again, and train as long once more."""

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> str:
        def after_step(self: Evaluation, step: int, *, drained: bool, last: bool = False) -> None:
            if last:
                raise BrokenOff

        Evaluation.after_step = after_step  # type: ignore[method-assign]
        return _trained(spec, rank, meeting, folder)

    spec = FLUSH({"steps": 100_000, "max_minutes": 1e-3, "eval_every": 90_000, "eval_samples": 4})
    assert ranks.run(spec, work, tmp_path) == ["", ""]
    assert early_end.of_rank(tmp_path, 0).startswith("Ended after") and len(folders.steps(tmp_path / "run")) == 1


def test_a_run_that_saves_nothing_leaves_at_its_limit_as_well(tmp_path: Path) -> None:
    spec = FLUSH({"steps": 100_000, "max_minutes": 1e-3})
    ranks.run(spec, partial(_trained, saves=False), tmp_path)
    assert early_end.of_rank(tmp_path, 1).endswith("(train.max_minutes). Nothing was saved there.")


@pytest.mark.parametrize("spec_of", [FLUSH, pytest.param(STREAM, marks=pytest.mark.full)], ids=["flush", "stream"])
def test_a_loss_that_stays_nan_ends_the_run_and_leaves_the_sound_checkpoint(spec_of: Any, tmp_path: Path) -> None:
    spec = spec_of({"steps": 60, "checkpoint_every": 2, "keep": 1})
    spec = RunSpec.model_validate({**spec.model_dump(mode="json"), "inject": DIVERGES})
    said = ranks.run(spec, _trained, tmp_path)
    assert said[0] == said[1] and said[0].startswith("The loss is not finite since step "), said
    (kept,) = folders.steps(tmp_path / "run")
    manifest = manifests.read(folders.path_of(tmp_path / "run", kept))
    assert 0 < manifest.step <= int(said[0].split("step ")[1].split(":")[0])
    went_on = spec.model_copy(update={"train": spec.train.model_copy(update={"stop_on_nan": False, "steps": 12})})
    assert ranks.run(went_on, _trained, tmp_path / "on") == ["", ""]
    assert folders.steps(tmp_path / "on" / "run") == [12]
