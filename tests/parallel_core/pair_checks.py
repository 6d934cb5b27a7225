"""What the test of a pair of features checks of its runs (`pair_runs`): above all, that it trains like one device, or
like a replay of its updates (`combinations.proof`).
"""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parallel_core import combinations, faults
from parallel_core.analysis.generated import merged, replicas
from parallel_core.analysis.generated import together as joined
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.verify import verified
from parallel_core.combinations import Combination
from parallel_core.engine import checkpoint
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.evaluation import Evaluation
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.llama import export_weights, import_weights
from parallel_core.engine.trainer import Trainer
from parallel_core.faults.base import Fault
from parallel_core.faults.slow_data import SlowData
from parallel_core.faults.slow_group import SlowGroup
from parallel_core.faults.slow_link import SlowLink
from parallel_core.faults.straggler import Straggler
from parallel_core.layout import Layout
from parallel_core.outcome import points
from parallel_core.spec import RunSpec
from tests.parallel_core import pair_legs, ranks, stored
from tests.parallel_core.delayed_updates import replay
from tests.parallel_core.pair_legs import STEPS, Leg
from tests.parallel_core.pair_runs import Ran

BOUNDS = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}
OF_BATCH_NORMS = 10
"""Batch norms over few samples divide by small variances: an update multiplies a difference in rounding by thousands
(3.6e-13 before it, 1.3e-9 after it, in fp64 on a processor with other kernels).
"""


def check(pair: Combination, ran: Ran) -> None:
    """Checks all that the page of combinations says of a pair."""
    assert not ran.error, ran.error
    _check_losses(pair, ran)
    _check_ends(pair, ran)
    _check_again(pair, ran)
    _check_records(pair, ran)
    _check_faults(pair, ran)
    _check_checkpoints(pair, ran)
    if pair.text is not None:
        _check_text(pair, ran.named("text"), ran.named("alone"))


def _check_losses(pair: Combination, ran: Ran) -> None:
    """The losses are those of one device, or of a replay; those of a resumed run have the same bits."""
    if ran.legs[0].kind == "steps":
        of_ranks = [one.losses for one in ran.results[0]]
        assert all(losses == of_ranks[0] for losses in of_ranks), "ranks disagree about the loss"
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
    updated = {"": 1, "same": 1, "another": 2}[pair.resume]
    comparable = updated if proof == "first step" else len(losses)
    bound = BOUNDS[pair.spec.train.precision] * (OF_BATCH_NORMS if pair.spec.model.kind == "resnet50" else 1)
    assert losses[:comparable] == pytest.approx(_wanted(pair)[:comparable], rel=bound)
    if proof == "one device" and not pair.resume:
        _check_held_out(pair, ran, bound)


def _check_held_out(pair: Combination, ran: Ran, bound: float) -> None:
    """The held-out loss after the last step is that of one device; a run of bare steps evaluates none."""
    leg = ran.named("run")
    if leg.kind == "steps" or not pair.spec.train.held_out or not combinations.ends(leg.spec):
        return
    weights = pair_legs.weights(pair.spec.model.model_dump_json(), pair.spec.train.precision) if pair.imported else None
    (found,) = points(leg.frames("points")[0], "eval_loss")
    assert found["step"] == STEPS - 1
    wanted = _alone(combinations.one_device(pair.spec).model_dump_json(), weights).held_out
    assert found["value"] == pytest.approx(wanted, rel=bound)


def _wanted(pair: Combination) -> list[float]:
    train = pair.spec.train
    weights = pair_legs.weights(pair.spec.model.model_dump_json(), train.precision) if pair.imported else None
    if combinations.proof(pair) == "replay":
        spec = combinations.unfaulted(pair.spec).model_copy(update={"trace": RunSpec().trace})
        return replay(spec, partial(_begin, weights), pair_legs.corpora_of(spec)).losses
    return _alone(combinations.one_device(pair.spec).model_dump_json(), weights).losses


class _Alone(NamedTuple):
    """The losses on one device, one step beyond the last, and the held-out loss after the last."""

    losses: list[float]
    held_out: float | None


@cache
def _alone(text: str, weights: Path | None) -> _Alone:

    def use(trainer: Trainer) -> _Alone:
        _begin(weights, trainer)
        losses, held_out = [], None
        for step in range(STEPS + 1):
            losses.append(trainer.step(step).loss)
            if step + 1 == STEPS and trainer.spec.train.held_out:
                exchange = Exchange(trainer.device, None, 1)
                found = Evaluation(trainer, exchange).after_step(trainer.spec.train.steps - 1, drained=True)
                held_out = found.loss if found else None
        return _Alone(losses, held_out)

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> _Alone:
        return ranks.with_trainer(spec, rank, meeting, folder, use, pair_legs.corpora_of(spec))

    found: _Alone = ranks.run(RunSpec.model_validate_json(text), work, ranks.scratch())[0]
    return found


def _begin(weights: Path | None, trainer: Trainer) -> None:
    if weights is not None:
        checkpoint.load(trainer, folders.path_of(weights, 0))


def _kinds(spec: RunSpec) -> set[str]:
    return {fault.kind for fault in spec.inject}


def _check_ends(pair: Combination, ran: Ran) -> None:
    """A flipped bit ends every rank in the step after which it flipped, and a cap that is too low by lack of memory;
    nothing else does.
    """
    for leg, results in zip(ran.legs, ran.results, strict=True):
        if leg.kind == "steps":
            continue
        flipped = not combinations.ends(leg.spec) and leg.spec.train.steps == STEPS and leg.kind == "run"
        said = "began to differ in step 1: " if flipped else "above the cap of " if leg.kind == "capped" else ""
        assert all(bool(end.why) == bool(said) and said in end.why for end in results), results


def _check_again(pair: Combination, ran: Ran) -> None:
    """A deterministic run has the same bits a second time: of losses, parameters and what it saved."""
    if not any(leg.folder.name == "again" for leg in ran.legs):
        return
    one, again = ran.named("second" if pair.resume else "run"), ran.named("again")
    assert ran.losses(one.folder.name) == ran.losses("again")
    assert ran.ends(one) == ran.ends(again) or one.kind != "steps"
    assert _prints(one) == _prints(again)
    for step in folders.steps(one.folder):
        assert not stored.different(*(stored.tensors(folders.path_of(leg.folder, step)) for leg in (one, again)))


def _prints(leg: Leg) -> list[tuple[int, int]]:
    """The fingerprints of the parameters and samples in the summaries of all ranks; none of a run without an end."""
    found = [frame.header["fingerprint"] for of_rank in leg.frames("summary") for frame in of_rank]
    return [(one["parameters"], one["samples"]) for one in found]


def _check_records(pair: Combination, ran: Ran) -> None:
    """Each rank has emitted what the features ask of it, and held the layers of its place."""
    leg = ran.named("run" if not pair.resume else "second")
    spec = leg.spec
    if leg.kind == "steps":
        return
    for rank, (spans, profiles) in enumerate(zip(leg.frames("spans"), leg.frames("profile"), strict=True)):
        assert [frame.header["step"] for frame in spans] == [1]
        assert {frame.header["step"] for frame in profiles if frame.header["of"]} == set(spec.trace.profile_steps)
        apart = pair.hosts > 1 and rank >= spec.parallel.world // 2
        assert all(("clock_within" in frame.header) == apart for frame in spans)
    assert [of_rank[0].header["units"] for of_rank in leg.frames("hello")] == _held(faults.broken(spec))
    assert "unbalanced_cut" not in _kinds(spec) or _held(faults.broken(spec)) != _held(spec)
    if combinations.ends(spec):
        _check_summaries(leg)
        peaks = [of_rank[-1].header for of_rank in leg.frames("memory")]
        assert all(0 < peak["peak_total"] <= (spec.trace.memory_cap or math.inf) for peak in peaks)
        assert "memory_hog" not in _kinds(spec) or peaks[0]["peak"]["buffers"] >= 1 << 20


def _held(spec: RunSpec) -> list[list[str]]:
    """The layers that each rank of a run holds."""
    layout, units = Layout.of(spec), spec.model.units()
    stages = [layout.stages_of(layout.coords(rank).place) for rank in range(layout.world)]
    return [[units[i] for stage in held for i in layout.stage_units[stage]] for held in stages]


def _check_faults(pair: Combination, ran: Ran) -> None:
    """Each fault has the effect that it names, on the ranks that it names, and no rank has one of another fault."""
    leg = ran.named("run" if not pair.resume else "second")
    if leg.kind == "steps":
        return
    injected = {fault.kind: fault for fault in leg.spec.inject}
    for rank, (_, found) in enumerate(ran.ends(leg)):
        straggler, tiny = injected.get("straggler"), injected.get("tiny_kernels")
        assert bool(found.operations) == (rank == 0 and (straggler or tiny) is not None)
        if isinstance(straggler, Straggler):
            assert all(slow >= straggler.factor * plain for plain, slow in found.operations)
        assert found.crumbs == len(found.operations) * (tiny.launches(rank) if tiny else 0)
        slow_data = injected.get("slow_data")  # a rank without the first and the last layer reads nothing
        assert slow_data is None or _all_late(found.reads, slow_data) or (rank and not found.reads)
        assert _all_late(found.collectives, injected.get("slow_group"))
        link = injected.get("slow_link")
        assert _all_late(found.messages, link if link and rank in _between(link) else None)
    if "high_scale" in injected:
        assert points(leg.frames("points")[0], "skipped_steps")["value"][-1] >= 1


def _between(link: Fault) -> set[int]:
    assert isinstance(link, SlowLink)
    return {link.rank, link.peer}


def _all_late(seconds: list[float], fault: Fault | None) -> bool:
    """Whether something was late, and by no less than the fault says; without a fault, whether nothing was."""
    if fault is None:
        return not seconds
    assert isinstance(fault, SlowData | SlowGroup | SlowLink)
    return bool(seconds) and min(seconds) >= fault.ms / 1e3


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
    assert kept[-1:] == [last.spec.train.steps] or not combinations.ends(pair.spec)
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
    assert apart.request is not None
    assert [len(tokens) for tokens in mine] == [len(tokens) for tokens in theirs] == [apart.request["new"]] * len(mine)
    if pair.spec.train.precision in ("fp64", "fp32"):
        assert mine == theirs
    assert all((len(set(tokens)) == 1) == combinations.repeats_tokens(pair) for tokens in mine)


def _tokens(leg: Leg) -> list[list[int]]:
    told: dict[int, Any] = {}
    for rank, of_rank in enumerate(leg.frames("generated")):
        told[rank] = joined(frame.header for frame in of_rank)
    layout = Layout.of(leg.spec)
    for rank, found in told.items():
        assert found["tokens"] == replicas(told, layout)[layout.coords(rank).replica]["tokens"]
    return merged(replicas(told, layout))["tokens"]
