"""What a rank reports while it trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.meters import every_step, step_shares
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.engine import stage
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.observe.memory import MemoryCapExceeded
from parallel_core.observe.observed_steps import first_traced, is_traced, metered_step
from parallel_core.observe.record_files import FileSink, Frame, events_path
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.records import MEMORY, POINT, SPAN
from parallel_core.observe.trace_request import TraceRequest, ask
from parallel_core.outcome import waits
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.version import version
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}


def spec_of(*, trace: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    train = {"steps": 12, "global_batch": 8, "lr": 1e-2} | (train or {})
    return RunSpec.model_validate({"model": MODEL, "train": train, "parallel": parallel, "trace": trace or {}})


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    run_rank(spec, rank, FileSink(folder, rank), meeting, progress.Progress(folder, rank))


def _moves(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Counter[str]:
    """How often the rank says that it moves, by the operation that it is in, in one step."""
    seen: Counter[str] = Counter()

    def use(trainer: Trainer) -> None:
        def moved() -> None:
            where = progress.read(folder, rank)
            assert where is not None
            seen[where.op] += 1

        trainer.scope.moved = moved
        trainer.step(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "LONG_S", 0.0)  # these layers are small
        ranks.with_trainer(spec, rank, meeting, folder, use)
    return seen


@pytest.mark.parametrize(
    ("model", "split"),
    [
        (MODEL, {}),
        (MODEL, {"recompute": "full"}),
        (MODEL, {"pp": 2, "schedule": "zb-h1", "micro_batches": 2}),
        ({"kind": "resnet50", "width": 2}, {}),
    ],
    ids=["gpt", "recomputed", "split backward", "convolutions"],
)
def test_each_layer_counts_as_progress(model: dict[str, Any], split: dict[str, Any]) -> None:
    """Forward and backward: one operation of a large micro-batch may take longer than the limit without progress."""
    train = {"global_batch": 8}
    spec = RunSpec.model_validate({"model": model, "parallel": split, "train": train})
    for rank, seen in enumerate(ranks.run(spec, _moves, ranks.scratch())):
        layers = len(Layout.of(spec).stage_units[rank])
        assert len(seen) >= 2 * spec.parallel.micro_batches
        assert all(count >= layers for op, count in seen.items() if "W" not in op or "BW" in op), seen
        assert all(count > 1 for count in seen.values()), seen


def frames(spec: RunSpec, folder: Path) -> list[list[Frame]]:
    """The frames of each rank of a whole run."""
    ranks.run(spec, _work, folder)
    return [read_file(events_path(folder, rank)) for rank in range(spec.parallel.world)]


def series(seen: Sequence[Frame], name: str) -> np.ndarray:
    """The POINT rows of one series from all frames."""
    parts = [np.empty(0, POINT)]
    for frame in seen:
        at = 0
        for known, count in frame.header.get("series", []):
            rows = np.frombuffer(frame.blob, POINT, count, at)
            at += rows.nbytes
            parts += [rows] if known == name else []
    return np.concatenate(parts)


def one(seen: Sequence[Frame], kind: str) -> Frame:
    (found,) = [frame for frame in seen if frame.kind == kind]
    return found


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, list[list[Frame]], Path]:
    spec = spec_of(trace={"trace_every": 5}, pp=2, micro_batches=4, recompute="full")
    folder = tmp_path_factory.mktemp("pipeline")
    return spec, frames(spec, folder), folder


def test_phases_come_in_order(pipeline: Any) -> None:
    _, seen, _ = pipeline
    for rank in seen:
        phases = [(frame.header["phase"], frame.header["step"]) for frame in rank if frame.kind == "phase"]
        assert phases == [("building", 0), ("warmup", 0), ("timed", 3), ("done", 12)]


def test_hello_says_who_holds_what(pipeline: Any) -> None:
    spec, seen, _ = pipeline
    hellos = [one(rank, "hello").header for rank in seen]
    assert [hello["stage"] for hello in hellos] == [0, 1]
    assert [unit for hello in hellos for unit in hello["units"]] == spec.model.units()
    total = one(seen[0], "summary").header["params_total"]
    assert sum(hello["params"] for hello in hellos) == total
    assert {hello["version"] for hello in hellos} == {version()}


def test_every_step_has_one_point_in_every_series(pipeline: Any) -> None:
    spec, seen, _ = pipeline
    every = list(range(spec.train.steps))
    for name in ("loss", "grad_norm", "step_time", "tokens_per_s"):
        assert series(seen[0], name)["step"].tolist() == every
        assert series(seen[1], name).size == 0
    assert all(series(rank, "rank_step_time")["step"].tolist() == every for rank in seen)
    assert all(series(rank, "memory").size >= 2 for rank in seen)


def test_loss_falls_from_that_of_a_uniform_guess(pipeline: Any) -> None:
    _, seen, _ = pipeline
    losses = series(seen[0], "loss")["value"]
    assert losses[0] == pytest.approx(np.log(MODEL["vocab"]), rel=0.02)
    assert losses[-1] < 0.95 * losses[0]


def test_traced_steps_hold_a_span_of_every_operation(pipeline: Any) -> None:
    spec, seen, _ = pipeline
    for rank, program in enumerate(build(spec).programs):
        traced = [frame for frame in seen[rank] if frame.kind == "spans"]
        assert [frame.header["step"] for frame in traced] == [5, 7, 10]
        for frame in traced:
            rows = np.frombuffer(frame.blob, SPAN)
            assert len(rows) == frame.header["count"] == frame.header["total"]
            recorded = Counter(rows[["kind", "stage", "micro_batch"]].tolist())
            for op in program:
                assert recorded[op.kind, op.stage, op.micro_batch] == 1, str(op)


def test_spans_lie_within_their_step_and_recomputation_within_backward(pipeline: Any) -> None:
    _, seen, _ = pipeline
    for rank in seen:
        rows = np.frombuffer(next(frame for frame in rank if frame.kind == "spans").blob, SPAN)
        (step,) = rows[rows["kind"] == Kind.STEP]
        assert (rows["start"] >= step["start"]).all()
        assert (rows["end"] <= step["end"]).all()
        again = rows[rows["kind"] == Kind.R]
        assert again.size
        for row in again:
            (backward,) = rows[(rows["kind"] == Kind.BW) & (rows["micro_batch"] == row["micro_batch"])]
            assert backward["start"] <= row["start"] <= row["end"] <= backward["end"]


def shares_agree(spec: RunSpec, seen: Sequence[Sequence[Frame]]) -> tuple[list[int], dict[str, np.ndarray]]:
    """The steps with shares and these; asserts that those of traced steps are those of their spans. Where nothing
    flushes, that is so of a step by itself: the step before, which has sent some of its messages, is not traced."""
    layout, found = Layout.of(spec), {rank: StepWaits.chain([*waits(frames)]) for rank, frames in enumerate(seen)}
    steps, values = every_step(found, layout)
    traced = [frame.header["step"] for frame in seen[0] if frame.kind == "spans"]
    assert traced and set(traced) <= set(steps.tolist())
    for step in traced:
        spans = {
            rank: np.frombuffer(frame.blob, SPAN)
            for rank, frames in enumerate(seen)
            for frame in frames
            if frame.kind == "spans" and frame.header["step"] == step
        }
        assert len(spans) == layout.world
        alone = {rank: one.among(one.sums["step"] == step) for rank, one in found.items()}
        own = every_step(alone, layout)[1] if not layout.flushes else {n: v[steps == step] for n, v in values.items()}
        for name, value in step_shares(spans, layout).items():
            assert own[name] == pytest.approx([value], abs=1e-6), (step, name)
    return steps.tolist(), values


def test_every_step_has_its_shares(pipeline: Any) -> None:
    spec, seen, _ = pipeline
    steps, values = shares_agree(spec, seen)
    assert steps == list(range(spec.train.steps))
    assert all((value > 0).all() and (value < 1).all() for value in values.values())
    assert not (np.sum(list(values.values()), axis=0) > 1).any()


def test_traced_steps_have_their_shares_whatever_their_number_of_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpanRecorder, "KEPT", 1)
    spec = spec_of(train={"steps": 7, "warmup_steps": 2})
    ask(tmp_path, TraceRequest(3))
    run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), progress.Progress(tmp_path, 0))
    steps, _ = shares_agree(spec, [read_file(events_path(tmp_path, 0))])
    assert steps == [3, 4], "the one asked for, and the one in the middle of those that are timed"


def test_memory_is_metered_once_and_holds_the_model(pipeline: Any) -> None:
    _, seen, _ = pipeline
    for rank in seen:
        memory = one(rank, "memory")
        params = 4 * one(rank, "hello").header["params"]
        assert memory.header["step"] == 1
        peak = memory.header["peak"]
        assert params <= peak["params"] == peak["grads"] <= 1.2 * params + 2**14
        assert peak["optimizer"] == 2 * peak["params"]
        assert peak["activations"] > 0
        assert sum(peak.values()) == memory.header["peak_total"]
        assert np.frombuffer(memory.blob, MEMORY).size > 0


def test_summary_covers_the_timed_steps(pipeline: Any) -> None:
    spec, seen, _ = pipeline
    summary = one(seen[0], "summary").header
    times = series(seen[0], "step_time")["value"][spec.train.warmup_steps :]
    assert summary["timed"]["n"] == spec.timed_steps
    assert summary["timed"]["median"] == pytest.approx(np.median(times))


def test_progress_page_ends_at_the_end_of_the_run(pipeline: Any) -> None:
    spec, _, folder = pipeline
    where = progress.read(folder, 1)
    assert where is not None
    assert (where.step, where.op) == (spec.train.steps - 1, "the end of the run")


def test_tensor_collectives_and_buckets_are_recorded(tmp_path: Path) -> None:
    spec = spec_of(dp=2, tp=2, trace={"memory": False})
    seen = frames(spec, tmp_path)
    assert shares_agree(spec, seen)[0] == list(range(spec.train.steps))
    kinds = np.frombuffer(next(frame for frame in seen[0] if frame.kind == "spans").blob, SPAN)["kind"]
    blocks = MODEL["layers"]
    # Forward: embedding, two per block, two for the loss. Backward, behind weight gradients: two per block, one for the
    # head.
    assert np.count_nonzero(kinds == Kind.TP_COLLECTIVE) == 1 + 2 * blocks + 2 + 2 * blocks + 1
    assert np.count_nonzero(kinds == Kind.TP_FLIGHT) == 2 * blocks + 1
    assert np.count_nonzero(kinds == Kind.BUCKET) >= 1
    assert not [frame for frame in seen[0] if frame.kind == "memory"]


def test_recomputation_keeps_less(tmp_path: Path) -> None:
    def kept(recompute: str) -> int:
        folder = tmp_path / recompute
        folder.mkdir()
        seen = frames(spec_of(recompute=recompute, micro_batches=1), folder)
        return int(one(seen[0], "memory").header["peak"]["activations"])

    assert kept("full") < 0.75 * kept("none")


def test_a_cap_ends_the_metered_step(tmp_path: Path) -> None:
    spec = spec_of(trace={"memory_cap": 100_000})
    with pytest.raises(MemoryCapExceeded):
        run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), progress.Progress(tmp_path, 0))


@pytest.mark.parametrize(
    ("warmup", "memory", "step"), [(3, True, 1), (2, True, 1), (1, True, 10), (0, True, 10), (3, False, -1)]
)
def test_metered_step_is_never_a_timed_one(warmup: int, memory: bool, step: int) -> None:
    spec = spec_of(train={"steps": 10, "warmup_steps": warmup}, trace={"memory": memory})
    assert metered_step(spec) == step


@pytest.mark.parametrize(("every", "steps"), [(0, [6]), (4, [4, 6, 8]), (1, [2, 3, 4, 5, 6, 7, 8, 9])])
def test_traced_steps(every: int, steps: list[int]) -> None:
    spec = spec_of(train={"steps": 10}, trace={"trace_every": every})
    assert [step for step in range(10) if is_traced(spec, step)] == steps
    assert first_traced(spec) == next(iter(steps), None)
