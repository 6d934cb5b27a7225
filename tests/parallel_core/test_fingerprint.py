"""Replicas are compared bit by bit: one flipped bit ends the run; equal models have equal fingerprints under any
layout.
"""

from __future__ import annotations

import typing
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.engine import host_memory
from parallel_core.engine.async_all_gather import AsyncAllGather, GatherWork
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous, connect, disconnect, wait_for_all
from parallel_core.engine.fingerprint import Fingerprints, ReplicasDiffer, _origin, fingerprint
from parallel_core.engine.run import run_rank
from parallel_core.engine.step_times import StepTimes
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.outline.splits import TensorSplit
from parallel_core.schedule.traits import flushes
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.shards import shard
from tests.spies import noting

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}


def spec_of(every: int = 3, steps: int = 8, model: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    train: dict[str, Any] = {"steps": steps, "warmup_steps": 1, "global_batch": 8}
    train["clip"] = "global" if flushes(parallel.get("schedule", "1f1b")) else "stage"
    trace = {"fingerprint_every": every, "memory": False}
    return RunSpec.model_validate({"model": model or MODEL, "train": train, "parallel": parallel, "trace": trace})


def outcome(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, spoil: Callable[..., None]) -> str:
    """How `run_rank` ends on a rank if `spoil(trainer, step)` is called after each step."""
    stepped = Trainer.advance

    def advance(self: Trainer, step: int) -> Any:
        totals = stepped(self, step)
        spoil(self, step)
        return totals

    Trainer.advance = advance  # type: ignore[method-assign]  # in this forked process alone
    try:
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    except ReplicasDiffer as error:
        return str(error)
    finally:
        Trainer.advance = stepped  # type: ignore[method-assign]
    return "done"


def flip(trainer: Trainer, step: int, at: int, on: int, name: str) -> None:
    """After step `at`, flips the lowest bit of one element of `name` on rank `on`."""
    if step == at and trainer.rank == on:
        value = trainer.flat.named()[name].view(-1)[5:6]
        value.view(torch.int32).bitwise_xor_(1)


def ends(spec: RunSpec, spoil: Callable[..., None]) -> list[str]:
    return ranks.run(spec, partial(outcome, spoil=spoil), ranks.scratch())


def test_one_flipped_bit_on_one_replica_ends_the_run_on_every_rank() -> None:
    name = "block.1.mlp.fc1.weight"
    said = ends(spec_of(dp=2), partial(flip, at=3, on=1, name=name))
    assert said == [f"Replicas began to differ between steps 3 and 5: {name} of rank 1 is not that of rank 0."] * 2


def test_the_step_is_said_where_the_one_before_it_was_compared_too() -> None:
    said = ends(spec_of(every=1, dp=2), partial(flip, at=3, on=1, name="head.norm.weight"))
    assert said[0].startswith("Replicas began to differ in step 3: head.norm.weight")


def test_what_tensor_ranks_hold_whole_is_compared_too() -> None:
    said = ends(spec_of(tp=2), partial(flip, at=2, on=1, name="head.norm.weight"))
    assert said[0].startswith(
        "Replicas began to differ between steps 0 and 2: head.norm.weight of rank 1 is not that of rank 0"
    )


def test_replicas_of_a_pipeline_that_does_not_flush_are_compared_too() -> None:
    spec = spec_of(every=2, dp=2, pp=2, schedule="1f1b-stash", micro_batches=1)
    fault = {"kind": "flipped_bit", "rank": 1, "step": 2}
    said = ends(RunSpec.model_validate({**spec.model_dump(), "inject": [fault]}), _nothing)
    assert said[0].startswith("Replicas began to differ between steps 2 and 3: block.")
    assert said[0].endswith(" of rank 1 is not that of rank 0.") and said == said[:1] * 4


def test_tied_stages_are_compared_too() -> None:
    spec = spec_of(model={**MODEL, "tied": True}, pp=2, micro_batches=2)
    said = ends(spec, partial(flip, at=1, on=1, name="embed.token.weight"))
    assert "embed.token.weight of rank 1 is not that of rank 0" in said[0]


def _other_samples(trainer: Trainer, step: int) -> None:
    if trainer.rank == 1:
        trainer.reader.sampler.seed += 1


def test_other_samples_on_a_replica_are_found() -> None:
    assert "rank 1 drew other samples than rank 0" in ends(spec_of(dp=2), _other_samples)[0]


def _nothing(trainer: Trainer, step: int) -> None:
    return


def test_a_run_says_what_was_equal(tmp_path: Path) -> None:
    spec = spec_of(dp=2, tp=2)
    assert ranks.run(spec, partial(outcome, spoil=_nothing), tmp_path) == ["done"] * 4
    (summary,) = [f.header for f in read_file(events_path(tmp_path, 0)) if f.kind == "summary"]
    found = summary["fingerprint"]
    assert (found["step"], found["checks"]) == (7, 3)  # after steps 2, 5 and the last one
    assert found["seconds"] > 0
    assert {len(found["parameters"]), len(found["samples"])} == {16}


def prints(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        group = torch.distributed.group.WORLD if trainer.layout.world > 1 else None
        ((check,), _) = Fingerprints(trainer, group, first=0).after_step(2, drained=True)
        return check[:3]

    return ranks.with_trainer(spec, rank, meeting, folder, use)


def test_the_numbers_are_the_same_under_every_layout() -> None:
    tied = {**MODEL, "tied": True, "kv_heads": 2, "activation": "swiglu"}
    splits: list[dict[str, int]] = [{}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"dp": 2}, {"tp": 2, "pp": 2}]
    splits.append({"dp": 2, "tp": 2, "zero": 3})
    found = {p for split in splits for p in ranks.run(spec_of(model=tied, **split), prints, ranks.scratch())}
    assert len(found) == 1


def _compared_and_left_out(
    spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path
) -> tuple[list[float], list[float]]:
    """The seconds of each comparison, and the seconds that are counted in no step."""
    after_step = Fingerprints.after_step
    compared: list[float] = []
    left: list[float] = []

    def noted(self: Fingerprints, step: int, *, drained: bool) -> Any:
        found, spent = after_step(self, step, drained=drained)
        compared.extend(check.seconds for check in found)
        return found, spent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fingerprints, "after_step", noted)
        patch.setattr(StepTimes, "leave_out", noting(StepTimes.leave_out, left, lambda self, seconds: seconds))
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    return compared, left


def test_no_step_takes_longer_because_replicas_are_compared_after_another(tmp_path: Path) -> None:
    ((compared, left),) = ranks.run(spec_of(), _compared_and_left_out, tmp_path)
    assert len(compared) == 3 and set(compared) <= set(left)


def _compared_later(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[list[int]]:
    """The steps compared after each of four. Rank 1 does not begin its first check until rank 0 has ended its own."""
    groups = connect(meeting, rank, Layout.of(spec), "gloo")
    assert groups.store is not None
    try:
        trainer = Trainer(spec, rank, groups, open_device("cpu"), Progress(folder, rank))
        found = Fingerprints(trainer, groups.fingerprints, first=0)
        ended = []
        for step in range(spec.train.steps):
            if rank == 1 and not step:
                groups.store.get("rank 0 has ended its first check")
            checks, _ = found.after_step(step, drained=step + 1 == spec.train.steps)
            groups.store.set(f"rank {rank} has ended its first check", "")
            ended.append([check.step for check in checks])
        wait_for_all(groups.store, rank, 2)
        return ended
    finally:
        disconnect()


@pytest.mark.parametrize("memory", ["1", "0"])
def test_a_pipeline_that_does_not_flush_need_not_drain_to_be_compared(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host_memory.SWITCH, memory)
    spec = spec_of(every=1, steps=4, pp=2, schedule="1f1b-stash", micro_batches=2)
    assert ranks.run_each([(spec, _compared_later)], 60.0) == [[[[], [0], [1], [2, 3]]] * 2]


class _Lending(AsyncAllGather):
    """Reads what it is given at some later time and does not keep it: as NCCL, once a stream waits for its work."""

    def __init__(self) -> None:
        self.given: list[weakref.ref[torch.Tensor]] = []

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> GatherWork:
        self.given.append(weakref.ref(mine))
        out.view(-1, mine.numel()).copy_(mine)
        return GatherWork([])


def test_numbers_under_way_are_kept_until_all_have_come(tmp_path: Path) -> None:
    """On a GPU their memory would be that of the next step's tensors, while a slower rank lets the message wait."""
    spec = spec_of(every=1, steps=4, pp=2, schedule="1f1b-stash", micro_batches=2)
    trainer = Trainer(spec, 0, Groups(), open_device("cpu"), Progress(tmp_path, 0))
    found = Fingerprints(trainer, group := _Lending(), first=0)
    assert found.after_step(0, drained=False)[0] == []
    assert group.given[0]() is not None


def test_0_compares_nothing(tmp_path: Path) -> None:
    assert ranks.run(spec_of(every=0), partial(outcome, spoil=_nothing), tmp_path) == ["done"]
    (summary,) = [f.header for f in read_file(events_path(tmp_path, 0)) if f.kind == "summary"]
    assert "fingerprint" not in summary


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_shares_add_up_and_any_bit_shows(data: st.DataObject, dtype: torch.dtype) -> None:
    name, shape = data.draw(
        st.sampled_from(
            [("a.fc1.weight", (8, 6)), ("a.fc2.weight", (6, 8)), ("a.qkv.bias", (8,)), ("a.norm.bias", (5,))]
        )
    )
    full = torch.randn(shape).to(dtype)
    whole = fingerprint(full)
    if not name.startswith("a.norm"):
        how = data.draw(st.sampled_from(typing.get_args(TensorSplit)))
        parts = [fingerprint(shard(full, name, r, 2, how), *_origin(name, shape, r, 2, how)) for r in range(2)]
        assert sum(parts) % 2**64 == whole
    at = data.draw(st.integers(0, full.numel() - 1))
    bit = data.draw(st.integers(0, 8 * full.element_size() - 1))
    words = full.view(-1).view(torch.uint8).numpy()
    words[at * full.element_size() + bit // 8] ^= np.uint8(1 << bit % 8)
    assert fingerprint(full) != whole


@pytest.mark.parametrize("shape", [(300, 700), (3, 70_000), (4, 3, 3, 3), (200_000,)])
def test_the_order_of_the_sum_does_not_matter(shape: tuple[int, ...]) -> None:
    """Checked against exact integer arithmetic."""
    from parallel_core.engine.fingerprint import factors

    full = torch.randn(shape)
    matrix = full.view(torch.int32).view(1, -1) if len(shape) == 1 else full.view(torch.int32).flatten(1)
    a = factors(0, len(matrix), 1, full.device).numpy().astype(object)
    b = factors(0, matrix.shape[1], 2, full.device).numpy().astype(object)
    exact = sum(int(x) * int((row.astype(object) * b).sum()) for x, row in zip(a, matrix.numpy(), strict=True))
    assert fingerprint(full) == exact % 2**64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_block_is_widened_once(dtype: torch.dtype) -> None:
    """On a GPU, a fingerprint is limited by memory traffic, so a block must be widened only once."""
    tensor, meter = torch.ones(64, 1024, dtype=dtype), MemoryMeter()
    fingerprint(tensor)  # caches its factors
    with meter.measure():
        fingerprint(tensor)
    assert meter.peak_total < tensor.nbytes + 1.1 * 8 * tensor.numel()
