"""Findings of pipelines whose stages have different numbers of replicas or of tensor ranks."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.analysis.diagnosis import Case, diagnose, unbalanced_stages
from parallel_core.analysis.quantities import ns_text
from parallel_core.layout import Layout
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.strategy import step_flops
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import MODEL, costs, found, healthy, spec, with_children
from tests.parallel_core.test_replay import step


def test_a_replica_with_a_micro_batch_more_than_its_peers_is_no_straggler() -> None:
    made = spec(pp=4, replicas=(3, 3, 3, 2), micro_batches=4)
    assert "straggler" not in found(healthy(made))


def test_a_straggler_is_found_among_stages_of_different_width() -> None:
    made = spec(pp=2, widths=(4, 1), micro_batches=16)
    slow = [step(made, costs(made, factor={0: 10.0, 1: 25.0}))] * 4  # beside which launches are nothing
    (straggler,) = (one for one in diagnose(healthy(made, traced=slow)) if one.rule == "straggler")
    assert straggler.rank == 4 and straggler.title.startswith("2.5")


def test_a_cut_is_uneven_by_the_work_of_a_device() -> None:
    made = spec(pp=2, widths=(1, 2), micro_batches=16, cuts=(12,))
    (uneven,) = diagnose(healthy(made))
    assert (uneven.rule, uneven.rank) == ("unbalanced_stages", 0)
    assert uneven.title.startswith("1.6") and uneven.change.startswith("Leave parallel.cuts empty")


def _of_layers(layers: int, vocab: int, cuts: tuple[int, ...] | None) -> RunSpec:
    split = {"pp": 2, "micro_batches": 4, "cuts": cuts}
    return RunSpec.model_validate(
        spec().model_dump() | {"model": MODEL | {"layers": layers, "vocab": vocab}, "parallel": split}
    )


@pytest.mark.parametrize(("layers", "vocab", "cut"), [(4, 256, 7), (4, 4096, 8), (2, 256, 2)])
def test_what_an_evener_cut_saves_is_told_and_not_what_equal_stages_would(layers: int, vocab: int, cut: int) -> None:
    uneven, even = (healthy(_of_layers(layers, vocab, cuts)) for cuts in ((cut,), None))
    told = unbalanced_stages.check(uneven)
    assert told is not None and told.change.startswith("Leave parallel.cuts empty")
    assert told.effect_ns == pytest.approx(uneven.step_ns - even.step_ns, rel=0.02)
    assert f"layers cut at {even.layout.stage_units[1][0]} {ns_text(told.effect_ns)}; " in told.evidence


def test_a_cut_by_flops_that_saves_nothing_is_not_advised() -> None:
    """Its heavier stage is the last one, which begins later and ends as late."""
    uneven, even = (healthy(_of_layers(2, 256, cuts)) for cuts in ((4,), None))
    told = unbalanced_stages.check(uneven)
    assert even.step_ns > uneven.step_ns
    assert told is not None and told.change.startswith("This cut is about the evenest for 2 stages: use fewer stages")


def test_a_slower_device_with_fewer_layers_is_a_straggler_and_its_cut_stands() -> None:
    made = spec(pp=2, micro_batches=16, cuts=(8,))
    (slow,) = diagnose(healthy(made, traced=[step(made, costs(made, factor={0: 2.0}))] * 4))
    assert (slow.rule, slow.rank) == ("straggler", 0) and slow.title.startswith("2.00x")


def _recomputing(*, slower: float) -> Case:
    """A pipeline in which only the first of eight stages recomputes, on a device that is `slower`."""
    return _timed_by_flops(spec(pp=8, micro_batches=32, recompute="full", recompute_layers=(0,)), slower)


def _timed_by_flops(made: RunSpec, slower: float = 1.0) -> Case:
    """Stages that take time in proportion to their FLOPs with recomputation; the first is `slower`."""
    flops = Layout.of(made).stage_units
    plain, whole = flop_weights(made.model), step_flops(made)
    more = {i: sum(whole[u] for u in own) / sum(plain[u] for u in own) / 4 for i, own in enumerate(flops)}
    return healthy(made, traced=[step(made, costs(made, factor=more | {0: more[0] * slower}))] * 4)


def test_recomputation_of_one_stage_alone_is_uneven_work() -> None:
    (uneven,) = diagnose(_recomputing(slower=1.0))
    assert (uneven.rule, uneven.rank) == ("unbalanced_stages", 0)
    assert uneven.change == "Spread parallel.recompute_layers evenly over the stages."


@pytest.mark.parametrize(
    ("vocab", "more", "told"),
    [
        (4096, {}, "The cut by FLOPs ignores recomputation: set parallel.cuts to 6, 11, 17."),
        (4096, {"cuts": (6, 11, 17)}, "This cut is about the evenest for 4 stages"),
        (512, {}, "This cut is about the evenest for 4 stages"),
    ],
)
def test_where_every_block_recomputes_the_cut_is_what_can_change(vocab: int, more: dict[str, Any], told: str) -> None:
    """The head does not recompute; with a vocabulary of 512 the cut is even but for the recomputation."""
    split = {"pp": 4, "micro_batches": 16, "recompute": "full", **more}
    made = RunSpec.model_validate(spec().model_dump() | {"model": MODEL | {"vocab": vocab}, "parallel": split})
    found = unbalanced_stages.check(_timed_by_flops(made))
    assert found is not None and found.change.startswith(told)


def test_recomputation_makes_no_straggler() -> None:
    assert "straggler" not in found(_recomputing(slower=1.4))


def test_tensor_groups_of_single_stages_are_looked_at_too() -> None:
    made = spec(pp=2, widths=(1, 4), micro_batches=16)
    busy = healthy(made, traced=with_children(made, Kind.TP_COLLECTIVE, 0.6))
    (fine,) = [one for one in diagnose(busy) if one.rule == "tensor_too_fine"]
    assert fine.evidence.endswith("on 4 ranks with hidden size 64.")
    assert "lower parallel.widths" in fine.change


@pytest.mark.parametrize(
    ("split", "samples"),
    [
        ({"dp": 2}, "32 samples"),
        ({"dp": 64}, "1 sample"),
        ({"pp": 2, "replicas": (1, 2), "micro_batches": 16}, "32 samples"),
        ({"pp": 2, "replicas": (1, 3), "micro_batches": 16}, "20 to 24 samples"),
    ],
)
def test_an_exposed_reduction_says_what_a_replica_works_on(split: dict[str, Any], samples: str) -> None:
    made = spec(**split)
    exposed = healthy(made, traced=[step(made, costs(made, reduction=60_000))] * 3)
    (exposing,) = [one for one in diagnose(exposed) if one.rule == "exposed_reduction"]
    assert exposing.evidence.endswith(f"with {samples} a replica.")


@pytest.mark.parametrize(
    ("split", "first"),
    [
        ({"zero": 1, "micro_batches": 4}, "Raise train.global_batch: the sum costs the same whatever the batch;"),
        ({"zero": 2, "micro_batches": 1}, "Raise train.global_batch: the sum costs the same whatever the batch;"),
        ({"zero": 2, "micro_batches": 4}, "Lower parallel.micro_batches, or set parallel.zero to 1,"),
        ({"zero": 3, "micro_batches": 8}, "Lower parallel.micro_batches, or set parallel.zero to 1,"),
        ({"zero": 2, "micro_batches": 8, "pp": 2}, "Set parallel.zero to 1, if memory allows:"),
    ],
)
def test_what_is_sent_for_each_micro_batch_is_less_with_fewer(split: dict[str, Any], first: str) -> None:
    made, plain = (spec(dp=2, **{**split, "zero": zero}) for zero in (split["zero"], 0))
    exposed = [step(plain, costs(plain, reduction=60_000))] * 3
    (exposing,) = [one for one in diagnose(healthy(made, traced=exposed)) if one.rule == "exposed_reduction"]
    assert exposing.change.startswith(first)


@pytest.mark.parametrize("zero", [2, 3])
def test_what_replicas_send_for_each_micro_batch_is_no_price_of_small_ones(zero: int) -> None:
    """Slow collectives were told a second time, as micro-batches that are too small."""
    made = spec(dp=2, zero=zero, micro_batches=4)
    told = diagnose(healthy(made, traced=with_children(made, Kind.BUCKET_WAIT, 0.6)))
    assert [one.rule for one in told] == ["exposed_reduction"]


@pytest.mark.parametrize(("layers", "more"), [(None, ""), ((0, 1), " and leave parallel.recompute_layers empty")])
def test_without_recomputation_no_layers_are_chosen_for_it(layers: tuple[int, ...] | None, more: str) -> None:
    made = spec(recompute="full", recompute_layers=layers)
    again = healthy(made, traced=with_children(made, Kind.R, 0.4))
    (needless,) = [one for one in diagnose(again) if one.rule == "needless_recompute"]
    assert needless.change == f"Set parallel.recompute to none{more}."
    RunSpec.model_validate(made.model_dump() | {"parallel": {"recompute": "none", "recompute_layers": None}})


@pytest.mark.parametrize(("kind", "told"), [("resnet50", True), ("vgg16", False)])
def test_more_micro_batches_leave_batch_norms_fewer_samples(kind: str, told: bool) -> None:
    split = {"pp": 4, "micro_batches": 4}
    made = RunSpec.model_validate({"model": {"kind": kind}, "parallel": split, "train": {"global_batch": 64}})
    long = step(made, costs(made, factor=dict.fromkeys(range(4), 30.0)))  # beside which launches are nothing
    (few,) = [one for one in diagnose(healthy(made, traced=[long] * 3)) if one.rule == "few_micro_batches"]
    assert few.change.startswith("Raise parallel.micro_batches to ")
    assert few.change.endswith(" Its batch norms then see fewer samples at a time.") is told


@pytest.mark.parametrize("split", ["pairs", "columns"])
def test_a_split_by_columns_is_first_to_be_one_of_pairs(split: str) -> None:
    made = spec(tp=2, tensor_split=split)
    busy = healthy(made, traced=with_children(made, Kind.TP_COLLECTIVE, 0.6))
    (fine,) = [one for one in diagnose(busy) if one.rule == "tensor_too_fine"]
    assert fine.change.startswith("Set parallel.tensor_split to pairs,") is (split == "columns")
    assert fine.change.endswith("lower parallel.tp, or split by data or layers instead.")
