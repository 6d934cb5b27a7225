"""Steps predicted from a cost table with known costs; expected values are calculated by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.outline.splits import Cut
from parallel_core.plan.alike import of_step
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.units import parameter_count
from parallel_core.profile.curves import Link
from parallel_core.profile.table import CostTable
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind, Op
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.cost_requirements import CannotPredict
from parallel_core.simulate.host_costs import HostCosts
from parallel_core.simulate.noise import expected_largest
from parallel_core.simulate.predict import predict_step
from parallel_core.simulate.shared_host import Sharing, simulate_shared
from parallel_core.simulate.stage_costs import message_times
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import ALPHA_S, BYTE_S, FLOP_S, SAMPLES, curve, row, table

MODEL = ModelSpec(layers=4, hidden=32, seq=16, vocab=64)
LINKS = ("all_reduce", "all_gather", "send")
FORWARD = FLOP_S * sum(flop_weights(MODEL))
"""Seconds of forward for one sample."""
LAST_PRODUCT = 2 * MODEL.seq * 4 * MODEL.hidden**2
"""FLOPs of the second linear layer of an MLP."""


def spec(**parallel: object) -> RunSpec:
    return RunSpec.model_validate(
        {"model": MODEL.model_dump(), "parallel": parallel, "train": {"global_batch": 16, "steps": 5}}
    )


def predicted(known: CostTable | None = None, **parallel: object) -> float:
    return predict_step(spec(**parallel), known or table(MODEL)).seconds


def test_one_device_takes_what_its_layers_take() -> None:
    assert predicted() == pytest.approx(3 * 16 * FORWARD, rel=1e-6)
    assert predicted(micro_batches=4) == pytest.approx(3 * 16 * FORWARD, rel=1e-6)


def test_specs_that_count_as_the_same_step_take_as_long() -> None:
    """Every field that is left out of the key, with a value of its own; and what stays in it."""
    for split in ({"dp": 2}, {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4}):
        train = {"global_batch": 16, "steps": 5, "clip": "stage"}
        first = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": split, "train": train})
        more: dict[str, Any] = dict.fromkeys(("lr", "weight_decay", "beta1", "beta2", "eps", "loss_scale_backoff"), 0.5)
        more |= {"clip_norm": 3.0, "seed": 9, "warmup_steps": 1, "checkpoint_every": 2, "keep": 5, "corpus": "pattern"}
        more |= {"lr_schedule": "cosine", "lr_warmup_steps": 2, "lr_final": 0.5, "eval_every": 4, "eval_samples": 8}
        more |= {"max_minutes": 5.0, "stop_on_nan": False, "weights": "mine", "other_data": True}
        more |= {"loss_scale": 8.0, "loss_scale_window": 7, "loss_scale_growth": 3.0}
        trace = first.trace.model_copy(update={"trace_every": 1, "memory": False, "reference": False})
        other = first.model_copy(update={"train": first.train.model_copy(update=more), "trace": trace})
        assert of_step(first) == of_step(other)
        assert predict_step(first, table(MODEL)).seconds == predict_step(other, table(MODEL)).seconds
        unclipped = first.model_copy(update={"train": first.train.model_copy(update={"clip_norm": None})})
        assert of_step(unclipped) != of_step(first) != of_step(spec(dp=4))
        matters = {"steps", "global_batch", "clip", "precision", "device", "deterministic"}
        matters |= {"optimizer", "momentum"}
        unknown = sorted((set(type(first.train).model_fields) - set(more)) ^ matters)
        said = "if no time depends on it, add it to plan/alike.py, and another value of it to `more`; else to `matters`"
        assert not unknown, f"{', '.join(unknown)}: {said}"


def test_recomputation_is_another_forward_where_only_plain_layers_are_known() -> None:
    """Without the last product of each block; where it was measured, the measurement counts."""
    blocks = sum(f for f, unit in zip(flop_weights(MODEL), MODEL.units(), strict=True) if unit.startswith("block."))
    left_out = MODEL.layers * LAST_PRODUCT
    assert predicted(recompute="full") == pytest.approx(16 * (3 * FORWARD + FLOP_S * (blocks - left_out)), rel=1e-6)
    known = table(MODEL, recompute=("none", "full"))
    assert predicted(known, recompute="full") == pytest.approx(16 * (3 * FORWARD + FLOP_S * blocks), rel=1e-6)


def test_a_profile_that_recomputed_the_last_products_too_is_read_as_one_without_recomputation() -> None:
    now, before = (table(MODEL, recompute=("none", "full"), leaves_out=done) for done in (True, False))
    assert predicted(before, recompute="full") == predicted(recompute="full") < predicted(now, recompute="full")


def test_replicas_share_the_batch_and_sum_their_gradients() -> None:
    alone, both = predicted(), predicted(dp=2)
    assert both > alone / 2 + ALPHA_S
    bare = table(MODEL, links=[{"what": "all_reduce", "ranks": 2, "time": {"sizes": [0], "seconds": [0]}}])
    assert predicted(bare, dp=2) == pytest.approx(alone / 2, rel=1e-6)


def test_replicas_of_a_model_with_batch_norms_pay_for_their_statistics() -> None:
    """Two numbers a channel of each replica in a forward and in a backward: 53 norms of 3 320 channels in all."""
    model = ModelSpec(kind="resnet50", width=8)

    def took(of: ModelSpec, **parallel: object) -> float:
        train = {"global_batch": 16, "steps": 5, "corpus": "digits"}
        made = RunSpec.model_validate({"model": of.model_dump(), "parallel": parallel, "train": train})
        return predict_step(made, table(of)).seconds

    talks = 53 * ALPHA_S + 3_320 * 2 * 2 * 4 * BYTE_S
    more = took(model, dp=2) - took(model) / 2
    vgg = ModelSpec(kind="vgg16", width=8)
    summed = ALPHA_S + 4 * parameter_count(model) * BYTE_S
    assert more == pytest.approx(2 * talks + summed, rel=0.05), "and one sum of gradients"
    assert took(vgg, dp=2) - took(vgg) / 2 < 4 * parameter_count(vgg) * BYTE_S + 5 * ALPHA_S, "it has none"
    twice = took(model, dp=2, micro_batches=2) - took(model, dp=2)
    assert twice == pytest.approx(2 * talks, rel=0.05), "in each micro-batch"
    again = took(model, dp=2, recompute="full") - took(model, recompute="full") / 2
    assert again - more == pytest.approx(talks, rel=0.05), "but for the stem, a block's forward has them twice"
    split = {"pp": 2, "micro_batches": 2, "dp": 2}
    ratio = took(model, **split, schedule="zb-h1") / took(model, **split, schedule="1f1b")
    assert 0.5 < ratio < 1.1


def test_statistics_are_two_numbers_of_four_bytes_for_each_channel_of_each_replica() -> None:
    model = ModelSpec(kind="resnet50", width=8)

    def gathered(micro_batches: int) -> float:
        """Seconds of all gathers of a step at a microsecond a byte, where nothing else that is sent takes time."""
        split = {"dp": 2, "micro_batches": micro_batches}
        train = {"global_batch": 16, "corpus": "digits"}
        made = RunSpec.model_validate({"model": model.model_dump(), "parallel": split, "train": train})
        costs = [(("all_reduce", 0.0), ("all_gather", byte_s)) for byte_s in (1e-6, 0.0)]
        links = [[{"what": what, "ranks": 2, "time": curve(0.0, each)} for what, each in pair] for pair in costs]
        slow, free = (predict_step(made, table(model, links=each)).seconds for each in links)
        return slow - free

    both_ways = 2 * 3_320 * 2 * 2 * 4 * 1e-6
    assert gathered(2) - gathered(1) == pytest.approx(both_ways, rel=1e-6), "the gather of the norm is once in a step"


def test_a_profile_that_timed_no_zero_has_each_micro_batch_pay_for_the_zeroing_of_buckets() -> None:
    def added(**parallel: object) -> float:
        """Seconds that zeroing takes in a step at a microsecond an element."""
        slow, free = (table(MODEL, fixed={"zero": {1: curve(0.0, each)}}) for each in (1e-6, 0.0))
        return predicted(slow, dp=2, **parallel) - predicted(free, dp=2, **parallel)

    more = added(zero=2, micro_batches=4) - added(zero=2)
    assert more == pytest.approx(3e-6 * parameter_count(MODEL), rel=0.03), "with their padding"
    assert added(micro_batches=4) == pytest.approx(added()), "gradients that are whole are zeroed once"


def test_norms_over_replicas_compute_for_longer_as_timed_with_zero_2() -> None:
    def added(kind: str, slower: float = 1.0, **parallel: object) -> float:
        model = ModelSpec(kind=kind, width=8)  # type: ignore[arg-type]
        train = {"global_batch": 16, "steps": 5, "corpus": "digits"}
        made = RunSpec.model_validate({"model": model.model_dump(), "parallel": parallel, "train": train})
        rows = [{"zero": 2, "forward": 0.004, "backward": 0.006}]
        with_it, without = (table(model, slower=slower, own_shards=own) for own in (rows, []))
        return predict_step(made, with_it).seconds - predict_step(made, without).seconds

    assert added("resnet50", dp=2) == pytest.approx(0.010, rel=0.01)
    assert added("resnet50", dp=2, micro_batches=4) == pytest.approx(0.040, rel=0.01)
    assert added("resnet50", dp=2, zero=2) == pytest.approx(0.010, rel=0.1), "once, not twice"
    assert added("resnet50", slower=1.5, dp=2) == pytest.approx(0.010, rel=0.01), "timed with both devices busy"
    assert added("resnet50") == added("vgg16", dp=2) == 0


def test_replicas_of_one_stage_share_its_micro_batches() -> None:
    """With free links, only the second stage sets the pace, after the first micro-batch's forward, and it never waits;
    at the end its last gradient goes back.
    """
    links = [{"what": what, "ranks": n, "time": {"sizes": [0], "seconds": [0]}} for what in LINKS for n in (2, 3)]
    cut = flop_weights(MODEL)[:4]
    first, second = FLOP_S * sum(cut), FORWARD - FLOP_S * sum(cut)
    assert first < second
    made = predicted(table(MODEL, links=links, devices=3), pp=2, replicas=(2, 1), micro_batches=8, cuts=(4,))
    assert made == pytest.approx(2 * (first + 8 * 3 * second + 2 * first), rel=1e-6)


def test_a_stage_of_two_tensor_ranks_takes_half_as_long() -> None:
    """With free links and one device per rank, the second stage with two tensor ranks sets the pace after the first
    forward.
    """
    links = [{"what": what, "ranks": n, "time": {"sizes": [0], "seconds": [0]}} for what in LINKS for n in (2, 3)]
    first = FLOP_S * sum(flop_weights(MODEL)[:3])
    second = (FORWARD - first) / 2
    assert first < second
    made = predicted(table(MODEL, links=links, devices=3), pp=2, widths=(1, 2), micro_batches=8, cuts=(3,))
    assert made == pytest.approx(2 * (first + 8 * 3 * second + 2 * first), rel=1e-6)


def test_messages_to_a_wider_stage_are_as_many() -> None:
    slow = [{"what": "send", "ranks": 2, "time": {"sizes": [0], "seconds": [0.5]}}]
    costs = {
        widths: message_times(spec(pp=2, widths=widths, micro_batches=8), table(MODEL, links=slow, devices=3))
        for widths in ((1, 2), (2, 1))
    }
    assert costs == {(1, 2): [1_000_000_000], (2, 1): [500_000_000]}


def test_tensor_ranks_pay_for_every_collective() -> None:
    layers = len(MODEL.units())
    messages = 2 * layers * (ALPHA_S + 4 * 16 * BYTE_S)
    beside = predicted(tp=2) - (3 * 16 * FORWARD / 2 + messages)
    assert beside == pytest.approx(ALPHA_S, rel=0.1)  # the gather of the gradient norm


def _with_dear_gathers(cut: Cut) -> CostTable:
    """A table with additional rows for layers with this cut, which gather in forward; a gather costs ten times an
    all-reduce.
    """
    rows = [
        row(MODEL, 2, "none", n, busy, 1.0)
        | {"tensor_split": cut}
        | {"whats": {"forward": [["all_gather"] for _ in MODEL.units()]}}
        for n in SAMPLES
        for busy in (1, 2)
    ]
    links = [{"what": what, "ranks": 2, "time": curve(ALPHA_S, BYTE_S)} for what in LINKS if what != "all_gather"]
    links.append({"what": "all_gather", "ranks": 2, "time": curve(10 * ALPHA_S, BYTE_S)})
    return table(MODEL, layers=[*table(MODEL).dump()["layers"], *rows], links=links)


def _with_measured_groups(cut: Cut, activation: float, stops: float) -> CostTable:
    """A table with layers of this cut, whose groups communicated while they were measured: two gathers in a layer's
    forward, of which the last has twice the bytes. `activation`: seconds in an MLP's forward that are no product;
    `stops`: share of all seconds that is due to stops between layers."""
    rows = []
    for n in SAMPLES:
        plain = row(MODEL, 2, "none", n, 2, 1.0) | {"tensor_split": cut}
        gathers = {"forward": [[4 * n, 8 * n] for _ in MODEL.units()]}
        rows.append(plain | {"messages": gathers, "whats": {"forward": [["all_gather"] * 2 for _ in MODEL.units()]}})
        longer = 2 * ALPHA_S + 12 * n * BYTE_S
        seconds = {part: list(each) for part, each in plain["seconds"].items()}
        for i, unit in enumerate(MODEL.units()):
            seconds["forward"][i] += longer + (activation if unit.endswith(".mlp") else 0.0)
        whole = {part: (1 - stops) * sum(each) for part, each in seconds.items()}
        rows.append(plain | {"joined": True, "messages": {}, "seconds": seconds, "whole": whole})
    return table(MODEL, layers=[*table(MODEL).dump()["layers"], *rows])


def test_recomputation_leaves_out_one_product_and_one_collective_of_what_a_group_was_measured_with() -> None:
    activation, stops = 3e-4, 0.1
    known = _with_measured_groups("columns", activation, stops)
    plain, again = (
        predicted(known, tp=2, tensor_split="columns", recompute=recompute) for recompute in ("none", "full")
    )
    products = sum(FLOP_S * 16 * flops / 2 for flops in flop_weights(MODEL)[1:-1])
    products -= MODEL.layers * FLOP_S * 16 * LAST_PRODUCT / 2
    gathers = MODEL.layers * 2 * (2 * ALPHA_S + 12 * 16 * BYTE_S)
    measured = (1 - stops) * (products + gathers + MODEL.layers * activation)
    assert again - plain == pytest.approx(measured - MODEL.layers * (ALPHA_S + 8 * 16 * BYTE_S), rel=1e-6)


def test_columns_pay_for_every_collective_by_its_kind() -> None:
    """Recomputed attention pays for its gather twice; that of an MLP's last product is left out, with the product."""
    known = _with_dear_gathers("columns")
    pairs, columns, again = (
        predicted(known, tp=2, **more)
        for more in ({}, {"tensor_split": "columns"}, {"tensor_split": "columns", "recompute": "full"})
    )
    layers = len(MODEL.units())
    assert columns - pairs == pytest.approx(layers * 9 * ALPHA_S, rel=1e-3)
    forward = sum(FLOP_S * 16 * flops / 2 for flops in flop_weights(MODEL)[1:-1])
    forward -= MODEL.layers * FLOP_S * 16 * LAST_PRODUCT / 2
    assert again - columns == pytest.approx(forward + MODEL.layers * (10 * ALPHA_S + 64 * BYTE_S), rel=1e-3)
    with pytest.raises(CannotPredict, match="tp=1 by columns, not 2"):
        predicted(table(MODEL), tp=2, tensor_split="columns")


def test_sequence_parallelism_pays_for_its_own_collectives_and_sums_its_norms() -> None:
    """A stage sends only a rank's rows: half of the bytes."""
    known = _with_dear_gathers("sequence")
    pairs, sequence = (predicted(known, tp=2, **more) for more in ({}, {"sequence": True}))
    norms = (2 * 4 + 1) * 2 * MODEL.hidden  # weights and biases of two norms in each of four blocks, and of the head's
    by_rows = ALPHA_S + 4 * (norms + MODEL.seq * MODEL.hidden) * BYTE_S
    assert sequence - pairs == pytest.approx(len(MODEL.units()) * 9 * ALPHA_S + by_rows, rel=1e-3)
    slow = [{"what": "send", "ranks": 2, "time": {"sizes": [0, 1e6], "seconds": [0, 1.0]}}]
    whole, halves = (
        message_times(spec(pp=2, tp=2, micro_batches=8, **more), known.model_copy(update={"links": more_slow}))
        for more, more_slow in (({}, _links(slow)), ({"sequence": True}, _links(slow)))
    )
    assert halves == [ns // 2 for ns in whole]
    with pytest.raises(CannotPredict, match="tp=1 with sequence parallelism, not 2"):
        predicted(table(MODEL), tp=2, sequence=True)


FULLY = {"dp": 2, "zero": 3, "zero_backend": "fully_shard"}


def by_torch(devices: int = 2, ranks: int = 2, work: float = 1.0) -> CostTable:
    """A table in which only layers, and what `fully_shard` adds, take time."""
    rows: list[dict[str, Any]] = [
        {"ranks": ranks, "forward": 1.0, "backward": 2.0},
        {"ranks": ranks, "recompute": "full", "forward": 1.0, "backward": 4.0},
        {"ranks": ranks, "tp": 2, "forward": 0.25, "backward": 0.5},
    ]
    free = [{"what": what, "ranks": 2, "time": {"sizes": [0], "seconds": [0]}} for what in LINKS]
    rows = [{**row, "work": work} for row in rows]
    return table(MODEL, fully_sharded=rows, links=free, devices=devices)


def test_torchs_sharding_costs_what_it_adds_to_each_micro_batch() -> None:
    alone, known = predicted(), by_torch()
    assert predicted(known, **FULLY) == pytest.approx(alone / 2 + 3.0, rel=1e-6)
    assert predicted(known, **FULLY, micro_batches=4) == pytest.approx(alone / 2 + 4 * 3.0, rel=1e-6)
    again = predicted(known, recompute="full") / 2
    assert predicted(known, **FULLY, recompute="full") == pytest.approx(again + 5.0, rel=1e-6)
    four = by_torch(devices=4)
    group = predicted(four, tp=2) / 2
    assert predicted(four, **FULLY, tp=2) == pytest.approx(group + 0.75, rel=1e-6)


@pytest.mark.parametrize("work", [0.0, 0.25])
def test_torchs_sharding_among_more_ranks_than_devices_was_timed_with_their_turns(work: float) -> None:
    known = by_torch(devices=1, ranks=4, work=work)
    plain = predict_step(spec(dp=4), known, devices=[0] * 4).seconds
    cut = predict_step(spec(**{**FULLY, "dp": 4}), known, devices=[0] * 4).seconds
    assert cut == pytest.approx(plain + 3.0, rel=1e-6)


def test_two_that_share_a_device_work_in_turns_and_wait_at_once() -> None:
    known = by_torch(work=0.25)
    plain = predict_step(spec(dp=2), known, devices=[0, 0]).seconds
    cut = predict_step(spec(**FULLY), known, devices=[0, 0]).seconds
    assert cut == pytest.approx(plain + 2 * 0.25 * 3.0 + 0.75 * 3.0, rel=1e-6)


def test_torchs_sharding_leaves_nothing_to_sum_behind_backward() -> None:
    rows = predict_step(spec(**FULLY), by_torch()).spans[0]
    (summed,) = rows[rows["kind"] == Kind.REDUCE_SCATTER]
    assert summed["end"] == summed["start"]
    assert {Kind(kind) for kind in rows["kind"]} >= {Kind.DATA, Kind.SETUP, Kind.F, Kind.BW, Kind.OPT_STEP, Kind.NORM}


def _links(told: list[dict[str, object]]) -> tuple[Link, ...]:
    return table(MODEL, links=told).links


def test_a_tensor_group_that_was_timed_talking_needs_no_messages() -> None:
    known = table(MODEL)
    talking = [{**row(MODEL, 2, "none", n, 2, 3.0), "messages": {}, "joined": True} for n in SAMPLES]
    both = table(MODEL, layers=[*known.dump()["layers"], *talking])
    assert predicted(both, tp=2) == pytest.approx(3.0 * 3 * 16 * FORWARD / 2 + ALPHA_S, rel=0.01)


def test_busy_devices_slow_each_other() -> None:
    assert predicted(table(MODEL, slower=1.25)) == pytest.approx(predicted(), rel=1e-6)
    quick, slow = (predicted(table(MODEL, slower=s, links=table(MODEL).links), dp=2) for s in (1.0, 1.25))
    assert slow - quick == pytest.approx(0.25 * 3 * 8 * FORWARD, rel=1e-6)


def test_ranks_that_share_a_device_take_longer_than_their_turns() -> None:
    """Four replicas on two devices: two run concurrently on each, slowed down by the factor measured for their tensor
    width.
    """
    free = [{"what": "all_reduce", "ranks": 2, "time": {"sizes": [0], "seconds": [0]}}]
    plain, slow, wide = (
        predicted(table(MODEL, links=free, crowded=known), dp=4) for known in ({}, {1: 1.1, 2: 1.5}, {2: 1.5})
    )
    assert plain == pytest.approx(2 * 3 * 4 * FORWARD, rel=1e-6)
    assert slow == pytest.approx(1.1 * plain, rel=1e-6) and wide == pytest.approx(1.5 * plain, rel=1e-6)
    assert predicted(table(MODEL, links=free, crowded={1: 1.1}), dp=2) == pytest.approx(3 * 8 * FORWARD, rel=1e-6)
    both = (predicted(table(MODEL, links=free, crowded=known), dp=2, tp=2) for known in ({}, {1: 1.1, 2: 1.5}))
    assert 1.5 * next(both) == pytest.approx(next(both), rel=1e-6)


def test_tables_of_earlier_versions_are_read_without_their_crowded_passes() -> None:
    told = {**table(MODEL).dump(), "crowded": {"2": {"sizes": [1], "seconds": [0.1]}}}
    assert CostTable.model_validate(told).crowding(1) == 1.0


def noisy(seconds: float) -> CostTable:
    return table(MODEL, layers=[{**row, "noise": seconds} for row in table(MODEL).dump()["layers"]])


def test_the_slowest_of_several_devices_is_waited_for() -> None:
    """Two replicas vary independently and meet once: on average, the larger of the two is 0.564 standard deviations
    above the mean.
    """
    work = 3 * 8 * FORWARD
    noise = 0.05**2 * work
    assert predicted(noisy(noise)) == predicted()
    made = [predicted(known, dp=2) for known in (table(MODEL), noisy(noise))]
    assert made[1] - made[0] == pytest.approx(0.564 * 0.05 * work, rel=0.5)
    assert predicted(noisy(noise), tp=2) == predicted(tp=2)


def test_who_meets_more_often_waits_longer() -> None:
    """ZeRO-2 meets at every layer's gradients, ZeRO-3 also at its parameters, a pipeline at every message."""
    noise = 0.05**2 * 3 * 8 * FORWARD
    splits: tuple[dict[str, Any], ...] = ({"dp": 2}, {"dp": 2, "zero": 2}, {"dp": 2, "zero": 3})
    longer = [predicted(noisy(noise), **split) / predicted(**split) - 1 for split in splits]
    assert 0 < longer[0] < longer[1] < longer[2]
    piped: dict[str, Any] = {"pp": 2, "micro_batches": 8}
    assert predicted(noisy(noise), **piped) > predicted(**piped) * (1 + longer[0] / 4)
    assert predicted(noisy(noise), **piped) == predicted(noisy(noise), **piped), "the same random numbers each time"


@pytest.mark.parametrize(("count", "mean"), [(1, 0.0), (2, 0.5642), (4, 1.0294), (100, 2.5076)])
def test_the_largest_of_normals(count: int, mean: float) -> None:
    assert expected_largest(count) == pytest.approx(mean, rel=0.05)


def test_ranks_on_one_device_take_turns() -> None:
    made = spec(dp=2)
    apart, together = (predict_step(made, table(MODEL), devices).seconds for devices in ([0, 1], [0, 0]))
    assert together - apart >= 3 * 8 * FORWARD * 0.999


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-v", "zb-h1", "dualpipe-v", "looped-bfs", "naive"])
def test_with_a_device_each_the_two_simulators_agree(name: str) -> None:
    """Waiting, messages and order are the same; the fluid simulator only adds the sharing of devices."""
    made = build(spec(pp=2, schedule=name, micro_batches=8))
    costs = Costs.uniform(made.stages, 500, 700, 300, message=90)
    alone = Sharing(tuple((q,) for q in range(made.pipeline_ranks)), {})
    one, other = simulate(made, costs), simulate_shared(made, HostCosts(costs), alone)
    for rank, rows in one.items():
        assert rows.dtype == other[rank].dtype == SPAN
        for field in ("kind", "stage", "micro_batch", "start", "end"):
            assert np.array_equal(rows[field], other[rank][field]), (rank, field)


def test_busy_devices_slow_a_pair_as_they_slow_its_parts() -> None:
    """With both devices busy a forward takes 3 times as long and a backward twice as long."""
    costs = Costs.uniform(2, 500, 700, 300)
    slowdown = {(stage, kind): 3.0 if kind is Kind.F else 2.0 for stage in range(2) for kind in (Kind.F, Kind.BW)}
    pair, sharing = Op(Kind.PAIR, 0, 1, partner=(1, 0)), Sharing(((0,), (1,)), slowdown, full=2)
    assert sharing.stretch(pair, 1, costs) == 1.0
    assert costs.of(pair) * sharing.stretch(pair, 2, costs) == pytest.approx(3 * 500 + 2 * 1000)


def test_programs_in_a_circle_are_told() -> None:
    made = build(spec(pp=2, micro_batches=2))
    cut = type(made)(made.name, 2, 2, made.placement, (made.programs[0], ()))
    with pytest.raises(ValueError, match="circle: rank 0 in 0RECV_GRAD0"):
        simulate_shared(cut, HostCosts(Costs()), Sharing(((0,), (1,)), {}))


def test_a_pipeline_has_the_spans_of_a_measured_step() -> None:
    made = spec(pp=2, micro_batches=4)
    found = predict_step(made, table(MODEL))
    kinds = {Kind(kind) for kind in found.spans[0]["kind"]}
    assert {Kind.DATA, Kind.SETUP, Kind.F, Kind.BW, Kind.SEND_ACT, Kind.RECV_GRAD, Kind.OPT_STEP, Kind.NORM} <= kinds
    assert len(found.spans) == Layout.of(made).pp
    assert found.seconds > 3 * 16 * FORWARD / 2


def test_what_a_table_lacks_is_named() -> None:
    with pytest.raises(CannotPredict, match="tp=1, 2, not 4"):
        predicted(tp=4)
    with pytest.raises(CannotPredict, match="another model"):
        predict_step(RunSpec(), table(MODEL))
    with pytest.raises(CannotPredict, match="before fully_shard was timed"):
        predicted(dp=2, zero=3, zero_backend="fully_shard")
    with pytest.raises(CannotPredict, match="no links"):
        predicted(table(MODEL, links=[]), dp=2)
