"""The page docs/combinations.md is up to date, and every pair of features it declares as running does what the page
says of it: above all, it trains like one device, or like a replay of its updates (`combinations.proof`).

All requested pairs with the same number of ranks run in one launch. A part of them always runs, the rest with `--full`.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from parallel_core import combinations
from parallel_core.analysis.generated import merged, replicas
from parallel_core.analysis.generated import together as joined
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.verify import verified
from parallel_core.combinations import Combination
from parallel_core.engine import checkpoint
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.llama import export_weights, import_weights
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from tests.parallel_core import pair_runs, ranks, stored
from tests.parallel_core.delayed import replay
from tests.parallel_core.pair_runs import STEPS, Leg, Ran

PAGE = Path(__file__).resolve().parents[2] / "docs" / "combinations.md"
BOUNDS = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}
RUNNING = combinations.running()
ALWAYS, ALWAYS_RUN = 40, 200
"""One in this many pairs always runs: of those of which only steps are run, and of the others."""
ALWAYS_TOO = (
    "pipeline 1f1b-naive + selective recomputation",
    "pipeline 1f1b-2bw + model gnmt",
    "pipeline zb-v + clipping by stage",
)
"""Pairs that are held against a replay, and always run, too."""
ALWAYS_OF_RUNS = (
    "ZeRO-2 + resumed on another layout",
    "sequence parallel + several hosts",
    "pipeline 1f1b-stash + checkpoints",
    "pipeline interleaved + resumed",
    "pipeline zb-h1 + flipped bit",
    "ZeRO-3 + weights from safetensors",
    "pipeline gpipe + weights to safetensors",
    "tensor parallel + torch.profiler",
    "token file + memory cap",
    "shared key heads + text on tensor ranks",
    "learning rate too high + text on stages",
)
"""Pairs of each kind of check that always run."""
AT_ONCE = 48
"""The most pairs that are run for one test."""


def _always(name: str) -> bool:
    every = ALWAYS if pair_runs.only_trains(RUNNING[name]) else ALWAYS_RUN
    return name in ALWAYS_TOO + ALWAYS_OF_RUNS or int(hashlib.sha256(name.encode()).hexdigest(), 16) % every == 0


@cache
def _ran(names: tuple[str, ...]) -> dict[str, Ran]:
    return pair_runs.run({name: RUNNING[name] for name in names})


@cache
def _alone(text: str, weights: Path | None) -> list[float]:
    """The losses on one device."""

    def use(trainer: Trainer) -> list[float]:
        _begin(weights, trainer)
        return [trainer.step(step).loss for step in range(STEPS + 1)]

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[float]:
        return ranks.with_trainer(spec, rank, meeting, folder, use, pair_runs.corpora_of(spec))

    return ranks.run(RunSpec.model_validate_json(text), work, ranks.scratch())[0]


def _begin(weights: Path | None, trainer: Trainer) -> None:
    if weights is not None:
        checkpoint.load(trainer, folders.path_of(weights, 0))


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> list[str]:
    """The pairs that this session runs."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    return [str(item.callspec.params["name"]) for item in items if item.originalname == test_runs.__name__]


FULL = (pytest.mark.full, pytest.mark.timeout(1800))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if _always(name) else FULL) for name in RUNNING])
def test_runs(name: str, asked: list[str]) -> None:
    first = asked.index(name) // AT_ONCE * AT_ONCE
    pair, ran = RUNNING[name], _ran(tuple(asked[first : first + AT_ONCE]))[name]
    assert not ran.error, ran.error
    _check_losses(pair, ran)
    _check_ends(pair, ran)
    _check_records(pair, ran)
    _check_checkpoints(pair, ran)
    if pair.text is not None:
        _check_text(pair, ran.named("text"), ran.named("alone"))


def _check_losses(pair: Combination, ran: Ran) -> None:
    """The losses are those of one device, or of a replay; those of a resumed run have the same bits."""
    if ran.legs[0].kind == "steps":
        assert all(losses == ran.results[0][0] for losses in ran.results[0]), "ranks disagree about the loss"
    losses = ran.losses({"": "run", "same": "whole"}.get(pair.resume, "second"))
    if pair.resume == "same":
        assert ran.losses("first", "second") == losses
    if pair.resume == "another":
        losses = ran.losses("first", "second", "third")
    assert len(losses) == STEPS + (pair.resume == "another")
    assert all(map(math.isfinite, losses))
    proof = combinations.proof(pair)
    if proof in ("state", "only run"):
        return
    comparable = _comparable(pair, len(losses))
    assert losses[:comparable] == pytest.approx(_wanted(pair)[:comparable], rel=BOUNDS[pair.spec.train.precision])


def _comparable(pair: Combination, count: int) -> int:
    """How many losses of `count` are those of one device. If each stage is clipped by its own norm, parameters after
    its first update differ from those of one device.
    """
    if pair.spec.train.clip != "stage" or combinations.proof(pair) != "one device":
        return count
    return 2 if pair.resume == "another" else 1


def _wanted(pair: Combination) -> list[float]:
    train = pair.spec.train
    weights = pair_runs.weights(pair.spec.model.model_dump_json(), train.precision) if pair.imported else None
    if combinations.proof(pair) == "replay":
        spec = combinations.unfaulted(pair.spec).model_copy(update={"trace": RunSpec().trace})
        return replay(spec, partial(_begin, weights), pair_runs.corpora_of(spec)).losses
    return _alone(combinations.one_device(pair.spec).model_dump_json(), weights)


def _kinds(pair: Combination) -> set[str]:
    return {fault.kind for fault in pair.spec.inject}


def _check_ends(pair: Combination, ran: Ran) -> None:
    """Only a flipped bit ends a run: on every rank, in the step after which it flipped."""
    for leg, results in zip(ran.legs, ran.results, strict=True):
        if leg.kind == "steps":
            continue
        flipped = "flipped_bit" in {fault.kind for fault in leg.spec.inject} and leg.spec.train.steps == STEPS
        assert all(bool(end) == (flipped and leg.kind == "run") for end in results), results
        assert all("began to differ in step 1: " in end for end in results if end), results


def _check_records(pair: Combination, ran: Ran) -> None:
    """Each rank has emitted what the features ask of it."""
    leg = ran.named("run" if not pair.resume else "second")
    spec, ended = leg.spec, "flipped_bit" not in _kinds(pair)
    if leg.kind == "steps":
        return
    for rank, (spans, profiles) in enumerate(zip(leg.frames("spans"), leg.frames("profile"), strict=True)):
        assert [frame.header["step"] for frame in spans if not spec.trace.profile_steps] in ([], [1])
        assert {frame.header["step"] for frame in profiles if frame.header["of"]} == set(spec.trace.profile_steps)
        apart = pair.hosts > 1 and rank >= spec.parallel.world // 2
        assert all(("clock_within" in frame.header) == apart for frame in spans)
    if ended:
        _check_summaries(leg)
        peaks = [of_rank[-1].header for of_rank in leg.frames("memory")]
        assert all(0 < peak["peak_total"] <= (spec.trace.memory_cap or math.inf) for peak in peaks)
        assert "memory_hog" not in _kinds(pair) or peaks[0]["peak"]["buffers"] >= 1 << 20


def _check_summaries(leg: Leg) -> None:
    found = [of_rank[-1].header["fingerprint"] for of_rank in leg.frames("summary")]
    assert len({(one["parameters"], one["samples"]) for one in found}) == 1
    once = leg.spec.trace.fingerprint_every > STEPS or leg.folder.name == "second"
    assert {one["checks"] for one in found} == {1 if once else STEPS}


def _check_checkpoints(pair: Combination, ran: Ran) -> None:
    """Those that are kept are whole. The last one of a resumed run has the bits of that of the uninterrupted one."""
    last = next((leg for leg in reversed(ran.legs) if leg.kind == "run"), None)
    if last is None or not pair.spec.train.checkpoint_every:
        return
    kept = folders.steps(last.folder)
    assert kept[-1:] == [last.spec.train.steps] or "flipped_bit" in _kinds(pair)
    assert len(kept) <= last.spec.train.keep
    for step in kept:
        verified(folders.path_of(last.folder, step))
    if pair.resume == "same" and kept[-1:] == [STEPS]:
        whole, second = (stored.tensors(folders.path_of(ran.named(name).folder, STEPS)) for name in ("whole", "second"))
        assert not stored.different(whole, second)
    _check_loaded(ran)
    if pair.exported:
        _check_exported(pair.spec, folders.path_of(last.folder, kept[-1]))


def _check_loaded(ran: Ran) -> None:
    """What another layout has loaded has the bits of what was saved."""
    for leg in ran.legs:
        if leg.kind == "reload":
            (again,) = folders.steps(leg.folder)
            loaded = stored.tensors(folders.path_of(leg.folder, again))
            assert leg.source is not None and not stored.different(loaded, stored.tensors(leg.source))


def _check_exported(spec: RunSpec, path: Path) -> None:
    out, again = ranks.scratch(), ranks.scratch()
    export_weights(path, out)
    import_weights(out, again, spec.model.seq)
    values = {name: tensor for name, tensor in stored.tensors(path).items() if name.startswith("value/")}
    assert not stored.different(values, stored.tensors(folders.path_of(again, 0)))


def _check_text(pair: Combination, apart: Leg, alone: Leg) -> None:
    """Ranks of a replica report the same tokens, which are those of one device that computes them the other way."""
    mine, theirs = _tokens(apart), _tokens(alone)
    assert [len(tokens) for tokens in mine] == [len(tokens) for tokens in theirs] == [apart.wish["new"]] * len(mine)
    if pair.spec.train.precision in ("fp64", "fp32"):
        assert mine == theirs


def _tokens(leg: Leg) -> list[list[int]]:
    told: dict[int, Any] = {}
    for rank, of_rank in enumerate(leg.frames("generated")):
        told[rank] = joined(frame.header for frame in of_rank)
    layout = Layout.of(leg.spec)
    for rank, found in told.items():
        assert found["tokens"] == replicas(told, layout)[layout.coords(rank).replica]["tokens"]
    return merged(replicas(told, layout))["tokens"]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == combinations.page(), (
        "python -m parallel_core.combinations docs/combinations.md writes it again"
    )


def test_a_refusal_names_what_would_do() -> None:
    said = combinations.verdict("ZeRO-1", "pipeline 1f1b-stash")
    assert isinstance(said, str)
    assert "use zero=0" in said
    assert combinations.verdict("bf16", "fp16") is None


@pytest.mark.parametrize(
    ("schedule", "runs"),
    [("naive", True), ("interleaved", True), ("zb-h1", False), ("1f1b-stash", False)],
)
def test_early_gradients_are_tried_with_every_schedule(schedule: str, runs: bool) -> None:
    found = combinations.verdict(f"pipeline {schedule}", "early gradients")
    assert isinstance(found, Combination) if runs else "early_gradients=true parts a backward" in str(found)


def test_what_a_pair_is_held_against() -> None:
    assert set(ALWAYS_TOO) <= set(RUNNING) and all(combinations.proof(RUNNING[name]) == "replay" for name in ALWAYS_TOO)
    assert combinations.proof(RUNNING["pipeline 1f1b-stash + fp32"]) == "only run"
    assert combinations.proof(RUNNING["fp32 + clipping by stage"]) == "one device"
    only_run = [name for name, pair in RUNNING.items() if combinations.proof(pair) == "only run"]
    assert all(name in PAGE.read_text(encoding="utf-8") for name in only_run)


def test_pairs_that_always_run_are_of_every_check() -> None:
    found = [RUNNING[name] for name in ALWAYS_OF_RUNS]
    assert {pair.resume for pair in found} == {"", "same", "another"}
    assert any(pair.hosts > 1 for pair in found) and any(pair.imported for pair in found)
    assert any(pair.exported for pair in found) and any(pair.text is not None for pair in found)
    assert {combinations.proof(pair) for pair in found} == {"one device", "replay"}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("model gnmt", "text on stages", "gnmt"),
        ("data parallel", "slow tensor ranks", "✓"),
        ("tensor parallel", "flipped bit", "✓"),
        ("replicas 2-1", "flipped bit", "replicas"),
        ("model mlp", "token file", "kind=mlp trains on 'digits'"),
        ("model resnet50", "weights to safetensors", "kind=resnet50 has no field"),
        ("fp32", "loss scale too high", "·"),
    ],
)
def test_what_is_said_of_pairs_that_are_no_plain_runs(first: str, second: str, said: str) -> None:
    found = combinations.verdict(first, second)
    assert said in ("✓" if isinstance(found, Combination) else found or "·")
