"""Memory of plans on a cluster: the published figures exactly, and relations that must hold between plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel_core.plan.cluster import accuracy, memory, search, verdict
from parallel_core.plan.cluster.hardware import GIB, clusters
from parallel_core.plan.cluster.job import Job, Software
from parallel_core.plan.cluster.model import Transformer, presets
from parallel_core.plan.cluster.plans import STATES, Plan, Plans, changed
from parallel_core.plan.cluster.questions import what_fits

GPT3 = Job(presets()["gpt-175b"], 1024)
ALONE = Plan(tp=8, pp=8, dp=16)


def peaks(job: Job, *plans: Plan) -> list[float]:
    return memory.of(job, Plans.of(plans)).peak.tolist()


def test_figure_1_of_korthikanti_exactly() -> None:
    rows = accuracy.figure_1()
    assert len(rows) == 12
    assert max(abs(row.error) for row in rows) < 1e-12


def test_figure_7_of_korthikanti_as_far_as_its_bars_were_read() -> None:
    rows = accuracy.figure_7()
    assert len(rows) == 16
    assert max(abs(row.predicted - row.measured) for row in rows) < 0.14  # percentage points


PUBLISHED = {
    "gpt-175b": 174.6,
    "gpt-1t": 1008.0,
    "gpt-530b": 529.6,
    "llama-8b": 8.03,
    "llama-70b": 70.55,
    "llama-405b": 405.9,
}


@pytest.mark.parametrize(("key", "billions"), PUBLISHED.items())
def test_parameters_of_presets_are_those_published(key: str, billions: float) -> None:
    assert presets()[key].parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert presets()[key].problems() == {}


def test_flops_are_equation_7() -> None:
    model = presets()["gpt-175b"]
    b, n, s, h, v = 64, model.layers, model.seq, model.hidden, model.vocab
    assert model.flops(b) == pytest.approx(72 * b * n * s * h * h * (1 + s / (6 * h) + v / (12 * h * n)))


@pytest.mark.parametrize("state", STATES)
def test_state_takes_its_bytes_for_every_parameter(state: int) -> None:
    found = memory.of(GPT3, Plans.of([Plan(state=state)]))
    assert found.built[0] == pytest.approx(state * GPT3.model.parameters, rel=1e-9)


def test_zero_cuts_one_part_more_at_every_stage() -> None:
    plans = [Plan(dp=64, zero=zero) for zero in range(4)]
    found = memory.of(GPT3, Plans.of(plans))
    whole = GPT3.model.parameters
    assert found.optimizer.tolist() == pytest.approx([12 * whole, *([12 * whole / 64] * 3)])
    assert found.grads.tolist() == pytest.approx([4 * whole] * 2 + [4 * whole / 64] * 2)
    assert found.params.tolist() == pytest.approx([2 * whole] * 3 + [2 * whole / 64])


def test_offload_moves_the_optimizer_to_the_host_and_nothing_else() -> None:
    here, there = (memory.of(GPT3, Plans.of([changed(ALONE, offload=on)])) for on in (False, True))
    assert there.host[0] == here.optimizer[0] > 0
    assert there.peak[0] == here.peak[0] - here.optimizer[0]


def test_less_is_kept_with_every_step_of_recomputation_and_with_flash() -> None:
    plain = Job(GPT3.model, 1024, Software(flash=False))
    none, selective, full = (changed(ALONE, recompute=kind) for kind in ("none", "selective", "full"))
    kept = memory.of(plain, Plans.of([none, selective, full])).activations
    assert kept[0] > kept[1] > kept[2]
    assert memory.of(GPT3, Plans.of([none])).activations[0] == pytest.approx(kept[1], rel=0.01)


@pytest.mark.parametrize(
    ("schedule", "chunks", "flight"),
    [
        ("gpipe", 1, 64),
        ("1f1b", 1, 8),
        ("zb-h1", 1, 8),
        ("zb-h2", 1, 15),
        ("zb-v", 2, 8),
        ("interleaved", 3, 8 + 7 / 3),
    ],
)
def test_micro_batches_in_flight_by_schedule(schedule: str, chunks: int, flight: float) -> None:
    plan = changed(ALONE, schedule=schedule, chunks=chunks, dp=16, micro_batch=1)
    base = changed(ALONE, schedule="1f1b")
    layers = 12 * memory.activations.of_layer(GPT3, Plans.of([base])).kept[0]
    assert memory.activations.in_flight(GPT3, Plans.of([plan]), 0)[0] == pytest.approx(flight)
    assert memory.of(GPT3, Plans.of([plan])).activations[0] >= flight * layers


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-v"])
def test_the_activations_of_one_micro_batch_remain_with_any_number_of_replicas(schedule: str) -> None:
    """The state fits eight stages; the layers of a stage for a micro-batch of 64 long sequences do not."""
    job = Job(replace(presets()["gpt-1.3b"], seq=8192, vocab=1024), 1024)
    judged = verdict.judge(job, clusters()["selene"], Plan(pp=8, schedule=schedule, micro_batch=64), suggest=False)
    assert judged.hopeless and judged.sentences[0].endswith("; more replicas do not help.")


def test_stashed_weight_versions_are_kept_beside_the_newest() -> None:
    plans = [changed(ALONE, schedule=name) for name in ("1f1b", "1f1b-stash", "1f1b-2bw")]
    flush, stash, double = memory.of(GPT3, Plans.of(plans)).params.tolist()
    assert stash == pytest.approx(8 * flush)
    assert double == pytest.approx(2 * flush)
    assert memory.of(GPT3, Plans.of([Plan(schedule="1f1b-stash")])).params[0] == 2 * GPT3.model.parameters


def test_flight_agrees_with_the_engines_own_schedules() -> None:
    """The closed forms agree with the programs that ranks execute."""
    from parallel_core.schedule import compute_only
    from parallel_core.schedule.peaks import peak_in_flight

    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)):
        plan = Plan(pp=4, schedule=schedule, chunks=chunks)
        made = compute_only(schedule, 4, 16, chunks=chunks)
        for stage, rank in ((0, 0), (-1, 3)):
            if schedule == "zb-h1" and stage == -1:
                continue  # zb-h1 defers W on the last rank, which `peak_in_flight` does not count
            closed = memory.activations.in_flight(Job(GPT3.model, 16), Plans.of([plan]), stage)[0]
            assert closed * chunks == pytest.approx(peak_in_flight(made)[rank]), schedule


def test_first_and_last_rank_hold_embedding_and_output_layer() -> None:
    small = Transformer("wide vocabulary", 512, 8, 8, 8, 2048, 1 << 20, 512)
    found = memory.of(Job(small, 16), Plans.of([Plan(pp=4)]))
    assert found.peak[0] > 18 * small.embedding
    assert not found.first[0]  # the logits of a million words outweigh four micro-batches in flight


def test_instants_grow_to_the_peak_and_activations_are_gone_in_the_step() -> None:
    built, forward, peak, step = memory.of(GPT3, Plans.of([ALONE])).at(0).values()
    assert built < step < forward < peak
    assert peak == pytest.approx(peaks(GPT3, ALONE)[0])


def test_llama_405_in_126_layers_divides_with_the_ends_in_place_of_two() -> None:
    job = Job(presets()["llama-405b"], 256)
    plans = Plans.of([Plan(pp=16), Plan(pp=9), Plan(pp=10)])
    assert memory.divides(job, plans).tolist() == [True, True, False]
    assert memory.layers_per_chunk(job, plans).tolist()[:2] == [8, 14]


def test_parts_add_up_to_the_peak_in_whole_bytes() -> None:
    found = memory.of(GPT3, Plans.of([ALONE]))
    assert sum(found.parts(0).values()) == pytest.approx(found.peak[0], abs=5)
    assert 10 * GIB < found.peak[0] < 120 * GIB


def test_what_the_host_alone_refuses_is_not_said_to_exceed_the_device() -> None:
    job, host = Job(presets()["gpt-175b"], 64), replace(clusters()["b200"], devices=8)
    both = what_fits(job, host, search.search(job, host)).sentence
    assert " fit into 178 GiB a device, but the host needs 1.9 TiB for the optimizer of 8 ranks; it has 1 TiB." in both
    assert "smallest" not in both
    kept = what_fits(job, host, search.search(job, host, search.Space(offload=(False,)))).sentence
    assert kept.endswith(" plans fit into 178 GiB a device; the smallest plan needs 371 GiB.")
