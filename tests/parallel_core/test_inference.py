"""Serving by the roofline model: published cache sizes, limits set by the hardware, and the effect of more devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_core.cli import main
from parallel_core.plan.cluster.hardware import Cluster, clusters
from parallel_core.plan.cluster.inference import Ask, cache_bytes, serve
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.problems import Unphysical

LLAMA = presets()["llama-70b"]


def a100(devices: int) -> Cluster:
    return replace(clusters()["selene"], devices=devices, per_host=min(8, devices))


def test_the_cache_of_a_token_as_published() -> None:
    """Kwon et al. 2023, section 3: 2 x 5120 x 40 x 2 bytes for the 13 B model; grouped heads reduce the 70 B model's
    cache to an eighth.
    """
    assert cache_bytes(presets()["gpt-13b"]) == 2 * 5120 * 40 * 2
    assert cache_bytes(LLAMA) == 2 * 80 * 8 * 128 * 2
    assert cache_bytes(LLAMA, 1000) == 1000 * cache_bytes(LLAMA)


def test_one_sequence_decodes_as_fast_as_weights_are_read() -> None:
    made, cluster = serve(LLAMA, a100(8), Ask(1, 2)), a100(8)
    (i,) = np.flatnonzero((made.tp == 8) & (made.pp == 1) & (made.batch == 1))
    matrices = LLAMA.layers * LLAMA.layer_matrices + LLAMA.embedding
    assert made.token[i] == pytest.approx(2 * matrices / 8 / cluster.device.bandwidth, rel=0.02)


def test_prefill_is_bound_by_flops() -> None:
    made, cluster = serve(LLAMA, a100(8), Ask(2048, 1)), a100(8)
    (i,) = np.flatnonzero((made.tp == 8) & (made.pp == 1) & (made.batch == 8))
    flops = 2 * 8 * (2048 * LLAMA.layers * LLAMA.layer_matrices + LLAMA.embedding)
    assert made.prefill[i] > flops / 8 / cluster.device.half
    assert made.latency[i] == made.prefill[i]


def test_only_the_last_token_of_a_prompt_passes_the_output_layer() -> None:
    """With a vocabulary twice as large a prompt of many tokens takes as long for all but one of them."""
    cluster, wide = a100(1), replace(LLAMA, vocab=2 * LLAMA.vocab)
    once, twice = (serve(model, cluster, Ask(4096, 1)).prefill[0] for model in (LLAMA, wide))
    assert twice - once == pytest.approx(2 * LLAMA.embedding / cluster.device.half)


def test_tensor_groups_share_or_copy_whole_key_heads() -> None:
    """Qwen2.5 7B has 28 heads and 4 key heads: 7 ranks divide the heads alone."""
    model = replace(LLAMA, hidden=3584, layers=28, heads=28, kv_heads=4, ffn=18944, vocab=152064)
    assert set(serve(model, a100(8), Ask(1000, 500)).tp) == {1, 2, 4}
    copied = replace(model, ffn=28 * 512)
    assert copied.tensor_widths == [1, 2, 4, 28]


def test_any_number_of_stages_serves_larger_batches() -> None:
    made = serve(replace(LLAMA, layers=81), a100(8), Ask(512, 256))
    assert {1, 3, 6, 12, 1536} <= set(made.batch[made.pp == 3]) <= {1, *range(3, 1 << 14, 3)}
    assert made.batch.max() <= 1 << 14


def test_hops_between_stages_on_a_host_take_its_links() -> None:
    """16 stages of one device on two hosts of 8: one of the 15 hops is between hosts."""
    near, far = (replace(a100(16), link=1e14, network=rate) for rate in (1e14, 1e6))
    ask, model = Ask(2048, 2), replace(LLAMA, layers=96)
    free, slow = (serve(model, cluster, ask) for cluster in (near, far))
    size = 2 * model.hidden / 1e6
    for tp, pp, between in ((1, 16, 1), (1, 8, 0), (8, 2, 1), (2, 4, 0), (4, 4, 1)):
        (i,) = np.flatnonzero((slow.tp == tp) & (slow.pp == pp) & (slow.batch == 1))
        assert slow.token[i] - free.token[i] == pytest.approx(between * size, rel=1e-6, abs=1e-9)


def test_tensor_groups_that_straddle_hosts_wait_for_the_network() -> None:
    """Eight groups of 6 devices on six hosts of 8: in the worst placed one, two devices share a host."""
    ask, model = Ask(2048, 2), replace(LLAMA, layers=96, heads=96, kv_heads=96, hidden=96 * 128, ffn=4 * 96 * 128)
    made = {rate: serve(model, replace(a100(48), link=4e11, network=rate), ask) for rate in (4e11, 1e10)}
    size = 2 * model.hidden
    for tp, rate in ((6, 2e10), (8, 4e11), (4, 4e11)):
        (i,) = np.flatnonzero((made[1e10].tp == tp) & (made[1e10].pp == 1) & (made[1e10].batch == 1))
        waited = made[1e10].token[i] - made[4e11].token[i]
        sums = 2 * model.layers * 2 * (tp - 1) / tp * size
        assert waited == pytest.approx(sums / rate - sums / 4e11, rel=1e-6, abs=1e-12)


def test_the_front_trades_a_quick_token_for_many() -> None:
    made = serve(LLAMA, a100(16), Ask(512, 256))
    front = made.front()
    assert len(front) > 3
    assert all(np.diff(made.token[front]) > 0) and all(np.diff(made.throughput[front]) > 0)
    assert made.fits[front].all()
    best, quick = made.best(), made.best(float(made.token[front[0]]))
    assert best is not None and quick is not None
    assert made.throughput[best] == made.throughput[made.fits].max()
    assert made.token[quick] <= made.token[front[0]]
    assert made.best(1e-9) is None


def test_the_first_stage_has_its_layers_and_the_whole_embedding() -> None:
    """Of Llama 3 8 B two tables of 525 M parameters are a sixth: 32 stages of a layer hold 0.74 B, not 0.25 B."""
    model = presets()["llama-8b"]
    made, layer = serve(model, a100(32), Ask(1, 1)), model.layer_matrices + model.layer_vectors
    for tp, pp, held in (
        (1, 1, model.parameters),
        (1, 32, layer + model.embedding),
        (8, 4, 8 * layer + model.embedding),
    ):
        mine = (made.tp == tp) & (made.pp == pp)
        assert made.weights[mine] == pytest.approx(2 * held / tp)


def test_memory_bounds_the_batch() -> None:
    small, large = (serve(LLAMA, a100(n), Ask(2048, 2048)) for n in (4, 8))
    most = [made.batch[made.fits & (made.replicas == 1)].max() for made in (small, large)]
    assert most[0] < most[1]
    assert not serve(LLAMA, a100(1), Ask(1, 1)).fits.any()
    assert np.all(small.cache[small.batch == 64] >= small.cache[small.batch == 32].min())


def test_what_cannot_be_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unphysical, match="prompt"):
        serve(LLAMA, a100(8), Ask(0, 1))
    assert main(["plan", "--model", "llama-70b", "--devices", "8", "--serve", "1024:256"]) == 0
    said = capsys.readouterr().out
    assert "of cache a sequence" in said and "TP 8" in said
    assert main(["plan", "--serve", "many"]) == 2
    assert "such as 1024:256" in capsys.readouterr().err
