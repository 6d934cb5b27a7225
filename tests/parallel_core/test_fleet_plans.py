"""Every way to split a profiled model over the available devices: valid, ranked, within memory, each refusal with its
reason.
"""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from pydantic import ValidationError

from parallel_core.plan import fleet
from parallel_core.plan.fleet import Splits, splits
from parallel_core.plan.lean import LEANER, with_fewest
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.peak import by_stage
from parallel_core.plan.unlike_stages import shapes
from parallel_core.profile.table import CostTable
from parallel_core.schedule.traits import CUSTOM, TRAITS
from parallel_core.simulate.cuts import best_cuts
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table
from tests.parallel_core.test_network import between

MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16)
SPEC = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 8}})
LARGER = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 16}})
BY_TORCH = [{"ranks": 2, "forward": 1e-3, "backward": 2e-3}]
COSTS = table(MODEL, fully_sharded=BY_TORCH)


@pytest.fixture(scope="module")
def found() -> Splits:
    return splits(SPEC, COSTS, 2)


def test_all_of_them_are_predicted_and_ranked(found: Splits) -> None:
    assert [split.seconds for split in found.able] == sorted(split.seconds or 0 for split in found.able)
    names = {split.name for split in found.able}
    assert {"DP + ZeRO-2", "DP + ZeRO-3", "DP + ZeRO-3 (fully_shard)"} <= names
    assert {"Single", "DP", "TP", "DP + ZeRO-1 + AR", "PP-1F1B, 4 micro-batches", "PP-ZB-V, 8 micro-batches"} <= names
    assert any(split.spec.parallel.schedule == "custom" for split in found.able)
    seconds = {split.name: split.seconds or 0 for split in found.able}
    for order in ("PP-1F1B", "PP-Interleaved"):
        assert seconds[f"{order} + early gradients, 4 micro-batches"] < seconds[f"{order}, 4 micro-batches"]
    for split in found.able[:: len(found.able) // 6]:
        assert split.seconds == predict_step(split.spec, COSTS).seconds
        assert split.memory == worst_stage(split.spec).total
        assert split.spec.parallel.world <= 2


@pytest.mark.parametrize(
    ("samples", "stages", "counts"),
    [
        (9, 3, [3, 9]),
        (8, 2, [2, 4, 8]),
        (16, 1, [1, 2, 4, 8, 16]),
        (64, 1, [1, 2, 4, 16, 32]),
        (45, 2, [3, 5, 9, 15]),
        (37, 3, [37]),
        (4, 8, []),
    ],
)
def test_numbers_of_micro_batches_divide_the_samples(samples: int, stages: int, counts: list[int]) -> None:
    """Few ones, from one a stage up; 32 at most, unless the batch has none between."""
    assert fleet._counts(samples, stages) == counts


def test_a_batch_without_a_power_of_two_has_pipelines() -> None:
    odd = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 9}})
    tried = list(fleet._candidates(odd, COSTS, 3))
    assert {split.parallel.micro_batches for split in tried if split.parallel.pp == 3} == {3, 9}


def test_tensor_groups_are_split_in_every_way_that_the_profile_timed(found: Splits) -> None:
    """Sequence parallelism was never tried, though it has the least memory of all tensor groups."""
    more = splits(SPEC, table(MODEL, splits=("pairs", "sequence", "columns"), fully_sharded=BY_TORCH), 2)
    by_name = {split.name: split for split in more.able}
    assert {"TP + SP", "TP by columns", "TP + SP + AR"} <= by_name.keys()
    for split in by_name["TP + SP"], by_name["TP by columns"]:
        assert split.memory == worst_stage(split.spec).total and split.spec.parallel.tp == 2
    assert by_name["TP + SP"].memory < by_name["TP"].memory
    assert {split.name for split in found.able} < by_name.keys(), "nothing is lost"
    assert {split.name for split in found.able if split.spec.parallel.cut != "pairs"} == set()
    assert not any(split.spec.parallel.cut != "pairs" for split in found.refused), "what was not timed is not tried"


def test_selective_recomputation_is_tried_where_it_was_timed() -> None:
    tried = fleet._candidates(SPEC, table(MODEL, recompute=("none", "selective")), 2)
    found = {(split.parallel.tp, split.parallel.recompute) for split in tried}
    assert {(1, "selective"), (2, "selective")} <= found
    assert "selective" not in {split.parallel.recompute for split in fleet._candidates(SPEC, COSTS, 2)}


@pytest.mark.full
def test_an_odd_number_of_devices_is_used_by_stages_of_unlike_sizes() -> None:
    """Five devices and a batch of 16: replicas do not divide it, and the pipeline of five stages has one with more
    layers than the others. Four replicas of the first stage and one of the second are faster than all of these."""
    over = splits(LARGER, table(MODEL, devices=5), 5)
    unlike = [one for one in over.able if one.spec.parallel.replicas or one.spec.parallel.widths]
    assert over.able[0] in unlike and over.able[0].spec.parallel.replicas is not None
    assert over.able[0].seconds == predict_step(over.able[0].spec, table(MODEL, devices=5)).seconds
    assert any(one.spec.parallel.widths for one in unlike)
    least = min(over.able, key=lambda split: split.memory)
    assert least.spec.parallel.widths, "tensor ranks for a stage of two of these have the least memory"


def test_the_shapes_tried_share_out_the_work_best() -> None:
    weights = flop_weights(MODEL)
    every = [shape for stages in range(2, 6) for shape in product(range(1, 5), repeat=stages) if sum(shape) <= 5]
    unlike = [shape for shape in every if len(set(shape)) > 1]

    def load(shape: tuple[int, ...]) -> float:
        """Of the fullest stage, with the best of all cuts."""
        return min(
            max(sum(weights[a:b]) / count for a, b, count in zip((0, *cuts), (*cuts, len(weights)), shape, strict=True))
            for cuts in combinations(range(1, len(weights)), len(shape) - 1)
        )

    best = shapes(MODEL, 5)
    assert len(best) == 3 and max(map(load, best)) <= min(load(shape) for shape in unlike if shape not in best)
    assert shapes(MODEL, 2) == (), "two devices are one for each stage"
    assert {size for shape in shapes(MODEL, 5, frozenset({1, 2})) for size in shape} == {1, 2}


def test_the_front_is_beaten_by_none(found: Splits) -> None:
    front = found.pareto()
    assert front[0] is found.able[0]
    assert min(split.memory for split in found.able) == front[-1].memory
    assert all(a.memory > b.memory for a, b in pairwise(front))
    assert all((a.seconds or 0) < (b.seconds or 0) for a, b in pairwise(front)), "nor as fast with less memory"


def test_what_is_too_large_or_not_profiled_is_refused(found: Splits) -> None:
    limit = sorted(split.memory for split in found.able)[len(found.able) // 2]
    tight = splits(SPEC, COSTS, 2, lambda spec: limit)
    assert all(split.memory <= limit for split in tight.able)
    assert {split.why_not for split in tight.refused} == {"too large"}
    assert (tight.able[0].seconds or 0) <= min(split.seconds or 0 for split in found.able if split.memory <= limit)
    narrow = splits(SPEC, table(MODEL, tps=(1,), fully_sharded=BY_TORCH), 2)
    assert {split.why_not for split in narrow.refused} == {"the profile has tp=1, not 2; profile that width too."}


def test_what_is_a_little_too_large_recomputes_as_few_blocks_as_must() -> None:
    """Only all blocks or none were tried: a device that lacked room for one block of four recomputed them all."""
    alone = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 1}})
    whole, again = (worst_stage(_of(alone, recompute=how)).total for how in ("none", "full"))
    room = int(again + 0.6 * (whole - again))
    few = with_fewest(alone, room)
    assert few is not None and worst_stage(few).total <= room and few.parallel.recompute_layers == (0, 1)
    assert worst_stage(_of(few, recompute_layers=[0])).total > room, "one fewer does not fit"
    assert with_fewest(alone, again - 1) is None and with_fewest(alone, whole) == alone
    found = splits(alone, COSTS, 1, lambda spec: room)
    seconds = {split.name: split.seconds or 0 for split in found.able}
    assert seconds["Single + AR of layers 0, 1"] < seconds["Single + AR"]
    assert found.able[0].memory <= room


def test_each_stage_recomputes_what_its_own_rank_must() -> None:
    """The first stage of 1F1B holds two micro-batches, the last one."""
    piped = _of(LARGER, pp=2, micro_batches=4)
    first, last = (memory.total for memory in by_stage(piped))
    assert first > last
    few = with_fewest(piped, first - 1)
    assert few is not None and few.parallel.recompute_layers == (0,)
    assert max(memory.total for memory in by_stage(few)) < first


def test_leaner_pipelines_are_tried_where_the_others_are_too_large() -> None:
    """V-Half and V-Min keep less than 1F1B and idle longer; where all fits they would only cost time."""
    limit = worst_stage(_of(LARGER, pp=2, micro_batches=8, schedule="v-min")).total
    names = {split.name for split in splits(LARGER, table(MODEL, tps=(1,)), 2, lambda spec: limit).able}
    assert "PP-V-Min, 8 micro-batches" in names
    roomy = {split.spec.parallel.schedule for split in splits(SPEC, table(MODEL, tps=(1,)), 2).able}
    assert not roomy & set(LEANER)


def _of(spec: RunSpec, **parallel: object) -> RunSpec:
    return RunSpec.model_validate(spec.model_dump() | {"parallel": spec.parallel.model_dump() | parallel})


def test_pipelines_are_cut_by_the_profile_where_that_is_faster() -> None:
    """With a head that takes three times as long as its FLOPs suggest: cut by these alone, the fastest pipeline of the
    list was slower than the same one on Partition."""
    costs = longer_head(COSTS)
    over = splits(SPEC, costs, 2)
    usual = [split for split in over.able if split.spec.parallel.pp > 1 and not split.spec.parallel.cuts]
    recut = [split for split in over.able if split.spec.parallel.cuts]
    assert recut and all(split.name.endswith(", cuts by the profile") for split in recut)
    fastest = min((s for s in usual if s.spec.parallel.schedule != CUSTOM), key=lambda split: split.seconds or 0)
    best = best_cuts(fastest.spec, costs)
    assert best.seconds < best.before and any(split.spec == best.spec for split in recut)
    for split in recut:
        assert split.seconds == predict_step(split.spec, costs).seconds
        assert split.memory == worst_stage(split.spec).total
    limit = max(split.memory for split in recut) - 1
    assert all(split.memory <= limit for split in splits(SPEC, costs, 2, lambda spec: limit).able)


def longer_head(costs: CostTable) -> CostTable:
    made = costs.model_dump()
    for row in made["layers"]:
        row["seconds"] = {part: [*layers[:-1], 3 * layers[-1]] for part, layers in row["seconds"].items()}
    return CostTable.model_validate(made)


@pytest.mark.full
def test_splits_that_no_host_can_hold_are_predicted_where_they_would_be() -> None:
    """One device on each of two hosts: predictions for a single device are unchanged, and schedules found by search are
    predicted across hosts, too.
    """
    where = Where(["a", "b"], [between("a", "b")])
    over = splits(SPEC, COSTS, 2, placed=lambda spec, needs: where if spec.parallel.world > 1 else ALONE)
    assert {split.spec.parallel.world for split in over.able} == {1, 2}
    for split in over.able:
        wide = split.spec.parallel.world > 1
        assert split.seconds == predict_step(split.spec, COSTS, where=where if wide else ALONE).seconds
    assert any(split.spec.parallel.schedule == "custom" for split in over.able)
    never = splits(SPEC, COSTS, 2, placed=lambda spec, needs: Where(["a", "c"][: spec.parallel.world], where.between))
    assert {split.spec.parallel.world for split in never.able} == {1}
    assert any("between a and c were never timed" in split.why_not for split in never.refused)


@pytest.mark.full
def test_over_a_slow_link_no_schedule_with_a_flush_is_faster_than_the_first_split(found: Splits) -> None:
    """1F1B waits for nearly every message, GPipe for the first and the last ones alone. On one host neither is worth
    its memory, and only the usual orders are tried."""
    costs = table(MODEL, tps=(1,), fully_sharded=BY_TORCH)
    where = Where(["a", "b"], [between("a", "b", 1e-2, 1e-7)])
    over = splits(LARGER, costs, 2, placed=lambda spec, needs: where if spec.parallel.world > 1 else ALONE)
    names = [name for name, traits in TRAITS.items() if traits.sync == "flush" and name != CUSTOM]
    least = min(
        predict_step(spec, costs, where=where).seconds
        for name, count, early in product(names, (2, 4, 8, 16), (False, True))
        if (spec := _piped(schedule=name, micro_batches=count, early_gradients=early)) is not None
    )
    assert over.able[0].spec.parallel.schedule == "gpipe"
    assert (over.able[0].seconds or 0) <= least
    assert {split.spec.parallel.schedule for split in found.able} & {"gpipe", "looped-bfs", "zb-h2"} == set()


def _piped(**parallel: object) -> RunSpec | None:
    """LARGER on two stages; None where the schedule refuses that."""
    try:
        return RunSpec.model_validate(LARGER.model_dump() | {"parallel": {"pp": 2, **parallel}})
    except ValidationError:
        return None
