"""ZeRO-2 and 3 take time besides their messages: what a profile measures, and how a prediction uses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parallel_core.engine.collectives import all_gather, reduce_scatter
from parallel_core.engine.device import open_device
from parallel_core.outline.recompute import Recompute
from parallel_core.profile import normalize, own_shards
from parallel_core.profile.layers import LayerBench, draw, spec_of
from parallel_core.profile.own_shards import LoopbackGroup
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.table import OwnShards
from parallel_core.simulate.predict import predict_step
from parallel_core.simulate.recalibrate import scaled
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table

MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16, vocab=64)
ROWS: list[dict[str, Any]] = [
    {"zero": 2, "forward": 0.0, "backward": 3.0},
    {"zero": 3, "forward": 1.0, "backward": 5.0},
    {"zero": 3, "recompute": "full", "forward": 2.0, "backward": 7.0},
]


def added(slower: float = 1.0, **split: object) -> float:
    """Seconds that ROWS add to a step, in a profile where only layers and ZeRO take time."""
    told = {"model": MODEL.model_dump(), "parallel": {"dp": 2, **split}, "train": {"global_batch": 16}}
    with_it, without = (
        predict_step(RunSpec.model_validate(told), table(MODEL, slower=slower, own_shards=rows, links=[])).seconds
        for rows in (ROWS, [{**row, "forward": 0.0, "backward": 0.0} for row in ROWS])
    )
    return with_it - without


def test_each_micro_batch_pays_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_core.simulate.predict.require", lambda *_: None)  # links are missing on purpose
    assert added(zero=3) == pytest.approx(6.0) and added(zero=2) == pytest.approx(3.0)
    assert added(zero=3, micro_batches=4) == pytest.approx(4 * 6.0)
    assert added(slower=1.5, zero=3) == pytest.approx(6.0), "timed with both devices busy, which layers alone are not"
    assert added(zero=3, recompute="full") == pytest.approx(9.0)
    assert added(zero=2, recompute="full") == pytest.approx(3.0), "the nearest one that was measured"
    assert added(zero=1) == added() == 0.0
    assert added(zero=2, pp=2, micro_batches=1, schedule="gpipe") == pytest.approx(3.0), "each stage pays its share"


def test_batch_norms_over_replicas_are_timed_with_few_samples_and_with_many() -> None:
    model = ModelSpec(kind="resnet50", width=8)
    assert own_shards.sizes(model, (2, 4, 8, 16)) == (2, 16)
    assert own_shards.sizes(MODEL, (2, 4, 8, 16)) == (8,)
    rows = [{"zero": 2, "samples": n, "forward": 1.0 + n, "backward": 5.0} for n in (16, 2)]

    def norms(micro_batches: int) -> float:
        told = {
            "parallel": {"dp": 2, "micro_batches": micro_batches},
            "train": {"global_batch": 16, "corpus": "digits"},
        }
        made = RunSpec.model_validate({"model": model.model_dump(), **told})
        with_it, without = (predict_step(made, table(model, own_shards=own)).seconds for own in (rows, []))
        return with_it - without

    assert norms(1) == pytest.approx(1.0 + 8 + 5.0)
    assert norms(4) == pytest.approx(4 * (1.0 + 2 + 5.0))


def test_what_the_others_would_send_is_its_own_and_counts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10.0, 13.0, 20.0, 21.0))
    monkeypatch.setattr(own_shards, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    group, mine, whole = LoopbackGroup(2), torch.arange(3.0), torch.zeros(6)
    all_gather(whole, mine, group).wait()
    assert whole.tolist() == [0, 1, 2, 0, 1, 2] and group.seconds == 2 * 3.0
    part = torch.zeros(3)
    reduce_scatter(part, 2 * whole, group).wait()
    assert part.tolist() == [0, 2, 4] and group.seconds == 2 * 3.0 + 2 * 1.0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_replica_beside_itself_trains(recompute: Recompute, tied: bool) -> None:
    """Under ZeRO-2, its part of the gradients equals that of a single replica; under ZeRO-3, half of each layer comes
    from the mirror.
    """
    plain = spec_of(MODEL.model_copy(update={"tied": tied}), "fp32", 1, recompute, 2, "cpu")
    alone, whole_sums, parts = (owned(plain, level) for level in (0, 2, 3))
    assert whole_sums.keys() == parts.keys() == alone.keys()
    for name, part in whole_sums.items():
        assert torch.equal(part, alone[name].flatten()[: len(part)]), "replica 0 owns the beginning of each bucket"
    assert all(bool(torch.isfinite(part).all()) for part in parts.values())
    assert any(bool(part.any()) for part in parts.values())


def owned(plain: RunSpec, level: int) -> dict[str, torch.Tensor]:
    """Gradients of one forward and backward, restricted to the replica's own part."""
    spec, replicas = (own_shards.sharded(plain, level), LoopbackGroup(2)) if level else (plain, None)
    device = open_device("cpu")
    bench = LayerBench(spec, [plain.model.units()], device, replicas=replicas)
    bench.read(draw(plain, device))
    bench.run(split=False)
    bench.finish()
    return bench.chunks.flat.owned_grads()


@pytest.mark.parametrize("level", own_shards.LEVELS)
def test_it_is_measured_beside_passes_without_it(level: own_shards.Level) -> None:
    found = own_shards.measure(
        spec_of(MODEL, "fp32", 1, "none", 2, "cpu"), open_device("cpu"), PaceProbe(None), level, 0.0
    )
    assert found.backward > 0 and found.pace == 1.0


def test_ranks_bring_it_to_one_pace() -> None:
    """The second of two ranks ran on a core that took twice as long as usual."""
    row = {"zero": 3, "recompute": "none", "forward": 1.0, "backward": 2.0}
    slow = {**row, "forward": 4.0, "backward": 8.0}
    headers = [{"row": row, "busy": 2, "reference": 0.1}, {"row": slow, "busy": 2, "reference": 0.2}]
    assert normalize.shards_at({2: 0.1}, headers) == [OwnShards(zero=3, forward=1.5, backward=3.0)]
    assert normalize.shards_at({}, headers)[0].forward == 2.5
    known = table(MODEL, own_shards=ROWS)
    assert [found.backward for found in scaled(known, 2.0).own_shards] == [6.0, 10.0, 14.0]
