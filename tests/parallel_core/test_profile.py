"""A real profile of a small model in real ranks: complete, plausible, and sufficient to predict every kind of run."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from parallel_core.cli import main
from parallel_core.cli.profile import report
from parallel_core.engine.device import open_device
from parallel_core.outline import outline_of
from parallel_core.outline.splits import Cut
from parallel_core.plan.units import boundary_elements
from parallel_core.profile.equal_layers import equal_layers
from parallel_core.profile.layers import LayerBench, draw, spec_of
from parallel_core.profile.measure import ProfileFailed, measure, samples_up_to, tensor_widths
from parallel_core.profile.repeats import noise
from parallel_core.profile.request import ProfileRequest
from parallel_core.profile.table import PARTS, CostTable, Fixed
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec

MODEL = ModelSpec(layers=2, hidden=32, heads=2, seq=16)
ORDER = ProfileRequest(
    samples=(1, 4),
    tps=(1, 2),
    recompute=("none", "full"),
    splits=("pairs", "columns", "sequence"),
    devices=2,
    seconds=0.02,
    sizes=(1024, 65536),
)

WAYS: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")


@pytest.mark.parametrize("cut", ORDER.splits)
@pytest.mark.parametrize("split", [False, True], ids=["whole backward", "split backward"])
def test_every_way_to_split_tensors_is_timed_with_its_collectives_counted(cut: Cut, split: bool) -> None:
    device, spec = open_device("cpu"), spec_of(MODEL, "fp32", 2, "full", 1, "cpu", cut)
    bench = LayerBench(spec, [[unit] for unit in MODEL.units()], device)
    bench.read(draw(spec, device))
    seconds = bench.run(split)
    bench.finish()
    assert {part: len(each) for part, each in seconds.items()} == dict.fromkeys(
        ("forward", "input", "weights") if split else ("forward", "backward"), len(MODEL.units())
    )
    assert bench.group.messages


@pytest.fixture(scope="module")
def profiled() -> CostTable:
    return measure(MODEL, ORDER, ranks=2)


def test_every_layer_under_every_condition(profiled: CostTable) -> None:
    assert {(row.tp, row.recompute, row.samples, row.busy) for row in profiled.layers} == {
        (tp, how, samples, busy)
        for tp, busy in ((1, 1), (1, 2), (2, 2))  # a group of two never leaves one of two devices idle
        for how in ("none", "full")
        for samples in (1, 4)
    }
    for row in profiled.layers:
        assert all(len(row.seconds[part]) == len(MODEL.units()) for part in PARTS)
        assert all(seconds > 0 for seconds in row.seconds["forward"])
        assert sum(row.seconds["backward"]) > 0 and all(row.whole[part] > 0 for part in PARTS)
        assert all(len({row.seconds["forward"][i] for i in equal}) == 1 for equal in equal_layers(MODEL))


def test_bytes_are_those_of_the_model(profiled: CostTable) -> None:
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 4}})
    leaving = [*boundary_elements(spec)[1:], 0]
    for size, cost, edge in zip(profiled.sizes, outline_of(MODEL).costs(spec), leaving, strict=True):
        assert size.parameters == 4 * sum(cost.parameters)
        assert size.boundary == 4 * edge
        assert size.saved >= size.boundary


def test_both_kinds_of_an_update_and_of_its_norm_are_timed(profiled: CostTable) -> None:
    """Of each two one is timed in every other turn."""
    ends: tuple[Fixed, ...] = ("optimizer", "scaled_optimizer", "norm", "squares")
    for busy in profiled.fixed["zero"]:
        assert all(min(profiled.fixed[name][busy].seconds) > 0 for name in ends)


def test_tensor_collectives_are_counted(profiled: CostTable) -> None:
    (row,) = (row for row in profiled.layers if row.key == (2, "none", 2, False, "pairs") and row.samples == 4)
    block = 4 * 4 * MODEL.seq * MODEL.hidden
    attention = MODEL.units().index("block.0.attn")
    assert row.messages["forward"][attention] == (block,)
    assert row.messages["backward"][attention] == (block,)
    assert not next(row for row in profiled.layers if row.tp == 1).messages


def test_four_samples_move_four_times_as_much_as_one(profiled: CostTable) -> None:
    """Collectives during timed passes are recorded, too; they must not be counted as a layer's."""
    counted = [row for row in profiled.layers if row.messages]
    assert {row.samples for row in counted} == {1, 4}
    for one, four in (rows for rows in product(counted, counted) if [row.samples for row in rows] == [1, 4]):
        if one.key == four.key:
            for way, unit in product(WAYS, range(len(MODEL.units()))):
                times = [(what, 4 * size) for what, size in one.collectives(way, unit)]
                assert times == four.collectives(way, unit), (one.key, way, unit)


def test_the_pace_of_both_devices_is_told_moment_by_moment(profiled: CostTable) -> None:
    spells = np.array(profiled.spells)
    assert spells.shape[0] >= 2 * 3 and spells.shape[1] == 2, "at least three rounds for each condition"
    assert spells.mean() == pytest.approx(1.0) and spells.min() > 0


def test_columns_are_counted_by_kind(profiled: CostTable) -> None:
    (row,) = (row for row in profiled.layers if row.key == (2, "none", 2, False, "columns") and row.samples == 4)
    block = 4 * 4 * MODEL.seq * MODEL.hidden
    mlp = MODEL.units().index("block.0.mlp")
    assert row.collectives("forward", mlp) == [("all_gather", 4 * block), ("all_gather", block)]
    assert row.collectives("backward", mlp) == [("reduce_scatter", 4 * block), ("all_reduce", block)]
    assert row.collectives("forward", 0) == [("all_reduce", block)]


def test_rows_are_counted_by_kind(profiled: CostTable) -> None:
    """Korthikanti et al. 2022, figure 5: a gather and a reduce-scatter instead of each all-reduce, and one more
    gather.
    """
    (row,) = (row for row in profiled.layers if row.key == (2, "none", 2, False, "sequence") and row.samples == 4)
    block = 4 * 4 * MODEL.seq * MODEL.hidden
    for unit in (MODEL.units().index(f"block.0.{part}") for part in ("attn", "mlp")):
        assert row.collectives("forward", unit) == [("all_gather", block), ("reduce_scatter", block)]
        kinds = sorted(row.collectives("backward", unit))
        assert kinds == [("all_gather", block), ("all_gather", block), ("reduce_scatter", block)]
    assert row.collectives("forward", 0) == [("reduce_scatter", block)]


@pytest.mark.full
def test_rows_that_a_group_cannot_share_out_are_not_timed() -> None:
    odd = ModelSpec(layers=1, hidden=32, heads=2, seq=15)
    order = ProfileRequest(
        samples=(1, 2), tps=(1, 2), splits=("pairs", "sequence"), devices=1, seconds=0.02, sizes=(1024,)
    )
    found = measure(odd, order, ranks=2).of(2, "none", 1, split="sequence")
    assert [row.samples for row in found] == [2]


def test_tensor_groups_are_timed_talking_too(profiled: CostTable) -> None:
    talking = [row for row in profiled.layers if row.joined]
    assert {(row.tp, row.recompute, row.samples, row.busy) for row in talking} == {
        (2, how, samples, 2) for how in ("none", "full") for samples in (1, 4)
    }
    assert not any(row.messages for row in talking)


def test_links_of_both_ranks(profiled: CostTable) -> None:
    assert not profiled.crowded and profiled.crowding(1) == 1.0  # a device for each rank
    assert {link.what for link in profiled.links} == {"all_reduce", "all_gather", "reduce_scatter", "send"}
    for link in profiled.links:
        assert link.ranks == 2 and link.time.sizes == (1024, 65536)
        assert all(seconds > 0 for seconds in link.time.seconds)
    send = profiled.link("send", 2)
    assert send is not None and send.work is not None


def test_torchs_sharding_is_timed_with_and_without_recomputation(profiled: CostTable) -> None:
    found = {(row.tp, row.recompute, row.ranks) for row in profiled.fully_sharded}
    # two replicas with tensor groups of two would need more than two ranks
    assert found == {(1, "none", 2), (1, "full", 2)}
    assert all(row.forward > 0 and row.backward > 0 and 0 < row.work <= 1 for row in profiled.fully_sharded)
    plain, again = [line for line in report(profiled) if line.startswith("fully_shard over 2 replicas")]
    assert "recomputing" in again and "recomputing" not in plain


def test_what_zero_does_around_its_messages_is_timed(profiled: CostTable) -> None:
    found = {(row.zero, row.recompute): row for row in profiled.own_shards}
    assert set(found) == {(level, how) for level in (2, 3) for how in ("none", "full")}
    assert all(row.backward > 0 for row in found.values()), "buckets of gradients are allocated, filled and freed"
    assert sum(line.startswith("ZeRO-3") and "beside its messages" in line for line in report(profiled)) == 2


@pytest.mark.parametrize(
    "split",
    [
        {},
        {"dp": 2, "zero": 3, "zero_backend": "fully_shard"},
        {"dp": 2, "zero": 1},
        {"tp": 2, "recompute": "full"},
        {"tp": 2, "tensor_split": "columns", "recompute": "full"},
        {"tp": 2, "sequence": True, "recompute": "full"},
        {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    ],
)
def test_runs_can_be_predicted(profiled: CostTable, split: dict[str, object]) -> None:
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": split, "train": {"global_batch": 16}})
    assert 0 < predict_step(spec, profiled).seconds < 60


@pytest.mark.full
def test_models_without_tensor_groups() -> None:
    model = ModelSpec(kind="vgg16", width=4)
    assert tensor_widths(model, 4) == (1,)
    found = measure(model, ProfileRequest(samples=(2,), devices=1, seconds=0.05), ranks=1)
    assert [row.unit for row in found.sizes] == model.units()
    assert not found.links


@pytest.mark.full
def test_a_model_that_normalises_over_samples() -> None:
    model = ModelSpec(kind="resnet50", width=4)
    order = ProfileRequest(samples=samples_up_to(model, 4), devices=1, seconds=0.05)
    found = measure(model, order, ranks=1)
    assert {row.samples for row in found.layers} == {2, 4}


@pytest.mark.full
def test_more_ranks_than_devices_are_timed_sharing_them() -> None:
    order = ProfileRequest(samples=(1, 2), devices=1, seconds=0.02, sizes=(1024,))
    known = measure(MODEL, order, ranks=2)
    assert set(known.crowded) == {1} and known.crowding(1) >= 1.0
    assert known.noise > 0


def test_samples_and_widths() -> None:
    assert samples_up_to(MODEL, 12) == (1, 2, 4, 8, 12)
    assert samples_up_to(ModelSpec(kind="resnet50"), 12) == (2, 4, 8, 12)  # its last feature maps have one pixel
    assert samples_up_to(ModelSpec(kind="resnet50", image=64), 4) == (1, 2, 4)
    assert tensor_widths(ModelSpec(heads=4), 2) == (1, 2)


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        ({"heads": 8}, (1, 2, 4, 8)),
        ({"heads": 8, "kv_heads": 2}, (1, 2)),
        ({"heads": 8, "kv_heads": 1}, (1,)),
        ({"heads": 8, "vocab": 50_257}, (1,)),
        ({"heads": 8, "ffn": 514}, (1, 2)),
        ({"kind": "mlp"}, (1,)),
        ({"kind": "resnet50"}, (1,)),
    ],
    ids=str,
)
def test_all_that_is_profiled_of_a_model_can_be_run(model: dict[str, Any], widths: tuple[int, ...]) -> None:
    made = ModelSpec(**model)
    assert tensor_widths(made, 8) == widths
    for tp, samples in product(widths, samples_up_to(made, 8)):
        spec = spec_of(made, "fp32", tp, "none", samples, "cpu")
        assert (spec.parallel.tp, spec.micro_batch_size) == (tp, samples)


def test_a_profile_that_fails_says_so() -> None:
    with pytest.raises(ProfileFailed) as said:
        measure(MODEL, ProfileRequest(samples=(1,), tps=(3,), devices=1, seconds=0.05), ranks=1)
    assert said.value.traceback.startswith("Traceback") and "ranks.py" in said.value.traceback


def test_command_line(profiled: CostTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, known = tmp_path / "spec.json", tmp_path / "table.json"
    known.write_text(json.dumps(profiled.dump()))
    spec.write_text(json.dumps({"model": MODEL.model_dump(), "train": {"global_batch": 4}}))
    assert main(["predict", str(spec), "--table", str(known)]) == 0
    assert "a step" in capsys.readouterr().out
    assert main(["predict", str(spec), "--table", str(known), "--memory", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["range"][0] < said["seconds"] < said["range"][1]
    assert (said["memory_bytes"] > 0, said["rank"], said["fits"]) == (True, 0, False)
    spec.write_text(json.dumps({"model": MODEL.model_dump(), "train": {"global_batch": 4}, "parallel": {"pp": 2}}))
    cut = tmp_path / "cut.json"
    assert main(["predict", str(spec), "--table", str(known), "--cut", str(cut), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seconds"] <= said["before"] and said["fits"] is None
    assert said["cuts"] == json.loads(cut.read_text())["parallel"]["cuts"]
    spec.write_text(json.dumps({"train": {"global_batch": 4}}))
    assert main(["predict", str(spec), "--table", str(known)]) == 2
    assert "another model" in capsys.readouterr().err


def test_noise_is_what_parts_vary_by_from_one_time_to_the_next() -> None:
    """Gamma distributed parts with variance q x mean; neither a slow drift nor a disturbed repetition counts as
    noise.
    """
    draw, q = np.random.default_rng(0), 1e-4
    means = np.array([2e-3, 5e-3, 1e-2])
    taken = q * draw.gamma(np.tile(means / q, (4_000, 1)))
    assert noise(taken) == pytest.approx(q, rel=0.1)
    drifted = taken + np.linspace(0, 2e-3, len(taken))[:, None]
    drifted[::100] *= 5
    assert noise(drifted) == pytest.approx(q * means.sum() / (means.sum() + 3e-3), rel=0.1)
    assert noise(taken[:1]) == 0.0
