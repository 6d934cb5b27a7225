"""Memory of plans on a cluster: the published figures exactly, and relations that must hold between plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_core.plan.cluster import accuracy, memory, rules, search, verdict
from parallel_core.plan.cluster.hardware import GIB, clusters
from parallel_core.plan.cluster.job import Job, Software
from parallel_core.plan.cluster.model import Transformer, presets
from parallel_core.plan.cluster.plans import STATES, Plan, Plans, changed
from parallel_core.plan.cluster.questions import what_fits
from parallel_core.plan.cluster.rules import Reason
from parallel_core.plan.in_flight import copies, in_flight
from parallel_core.rules.pipeline import fewest_micro_batches
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import Kind
from parallel_core.spec import ParallelSpec, RunSpec

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


def test_sgd_has_a_moment_or_none_in_16_bits_as_in_fp32() -> None:
    """Adam has two, each of 4 bytes; fp32 needs no master weights."""
    plans = [Plan(state=state, precision=precision) for state in (10, 14, 18) for precision in ("16-bit", "fp32")]
    found = memory.of(GPT3, Plans.of(plans))
    each = [found.optimizer[i] / GPT3.model.parameters for i in range(len(plans))]
    assert each == pytest.approx([4, 0, 8, 4, 12, 8])
    assert found.params[1] == found.grads[1] == pytest.approx(4 * GPT3.model.parameters)


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
    assert judged.sentences[0].endswith("; more replicas do not help.")


def test_stashed_weight_versions_are_kept_beside_the_newest() -> None:
    plans = [changed(ALONE, schedule=name) for name in ("1f1b", "1f1b-stash", "1f1b-2bw")]
    flush, stash, double = memory.of(GPT3, Plans.of(plans)).params.tolist()
    assert stash == pytest.approx(8 * flush)
    assert double == pytest.approx(2 * flush)
    assert memory.of(GPT3, Plans.of([Plan(schedule="1f1b-stash")])).params[0] == 2 * GPT3.model.parameters


def test_a_pipeline_without_flushes_keeps_as_much_whatever_a_step_has() -> None:
    """Few micro-batches a step do not empty the pipeline: versions and activations are those of several steps, as in
    the engine.
    """
    kept = [
        memory.of(Job(GPT3.model, 16 * m), Plans.of([changed(ALONE, schedule="1f1b-stash")])) for m in (2, 4, 8, 64)
    ]
    assert len({float(found.params[0]) for found in kept}) == len({float(found.activations[0]) for found in kept}) == 1
    spec = RunSpec.model_validate(
        {
            "model": {"layers": 8},
            "parallel": {"pp": 8, "schedule": "1f1b-stash", "micro_batches": 2},
            "train": {"steps": 20, "global_batch": 2, "clip_norm": None},
        }
    )
    few = Plans.of([Plan(pp=8, schedule="1f1b-stash")])
    job = Job(GPT3.model, 2)
    for rank, place in ((0, 0), (-1, 7)):
        assert memory.activations.in_flight(job, few, rank)[0] == in_flight(spec, place) == 1 + copies(spec, place)


def test_two_weight_versions_need_p_less_one_micro_batches() -> None:
    """As in the engine (`rules.pipeline`)."""
    few, enough = (
        verdict.judge(Job(GPT3.model, 16 * m), clusters()["selene"], changed(ALONE, schedule="1f1b-2bw"), False)
        for m in (6, 7)
    )
    words = "1f1b-2bw needs at least 7 micro-batches, or two weight versions do not last; there are 6."
    assert words in few.sentences and Reason.FEW in few.reasons and Reason.FEW not in enough.reasons
    least = fewest_micro_batches(ParallelSpec(pp=8, schedule="1f1b-2bw", micro_batches=7))
    assert least == rules.fewest_micro_batches(Plans.of([changed(ALONE, schedule="1f1b-2bw")]))[0] == 7


WIDE = Transformer("wide vocabulary", 512, 8, 8, 8, 2048, 1 << 20, 512)
LOGITS = 512 * (1 << 20)
"""Elements of WIDE's logits for one sequence."""


@pytest.mark.parametrize(
    ("schedule", "more"),
    [("gpipe", 7 * 4 * LOGITS), ("1f1b", 0), ("zb-h1", 3 * 2 * LOGITS), ("zb-h2", 6 * 2 * LOGITS)],
)
def test_the_last_rank_keeps_logits_of_all_micro_batches_that_still_need_them(schedule: str, more: int) -> None:
    """GPipe: all eight, in fp32. ZB-H1 and ZB-H2: the 16-bit gradients of those whose W is still to come."""
    found = memory.of(Job(WIDE, 8), Plans.of([Plan(pp=4, schedule=schedule)]))
    assert found.place[0] == memory.LAST
    inner = 2 * memory.activations.of_layer(Job(WIDE, 8), Plans.of([Plan(pp=4)])).kept[0]
    flight = memory.activations.in_flight(Job(WIDE, 8), Plans.of([Plan(pp=4, schedule=schedule)]), -1)[0]
    assert found.activations[0] - flight * inner - 4 * LOGITS == pytest.approx(more, abs=0.002 * LOGITS * 8)


def test_frozen_weights_need_no_gradient_of_the_logits() -> None:
    plans = Plans.of([Plan(pp=4, schedule="zb-h1"), Plan(pp=4, schedule="1f1b")])
    trained, frozen = (memory.of(Job(WIDE, 8, adapters=rank), plans).activations for rank in (0, 8))
    assert trained[0] - trained[1] > 6 * LOGITS > 0.1 * LOGITS > frozen[0] - frozen[1]


def test_flight_agrees_with_the_engines_own_schedules() -> None:
    """The closed forms agree with the programs that ranks execute."""
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
    assert found.place[0] == memory.LAST  # the logits of a million words outweigh four micro-batches in flight


def test_instants_grow_to_the_peak_and_activations_are_gone_in_the_step() -> None:
    built, forward, peak, step = memory.of(GPT3, Plans.of([ALONE])).at(0).values()
    assert built < step < forward < peak
    assert peak == pytest.approx(peaks(GPT3, ALONE)[0])


def test_llama_405_in_126_layers_divides_with_the_ends_in_place_of_two() -> None:
    job = Job(presets()["llama-405b"], 256)
    plans = Plans.of([Plan(pp=16), Plan(pp=9), Plan(pp=10)])
    assert memory.divides(job, plans).tolist() == [True, True, False]
    assert memory.layers_per_chunk(job, plans).tolist()[:2] == [8, 14]


UNEVEN = [
    ("1f1b", 1, 16),
    ("interleaved", 2, 16),
    ("interleaved", 2, 2),
    ("zb-h1", 1, 8),
    ("zb-v", 2, 8),
    ("zb-v", 2, 2),
]


@pytest.mark.parametrize("layers", [126, 128])
@pytest.mark.parametrize(("schedule", "chunks", "stages"), UNEVEN)
def test_ranks_have_all_parameters_of_the_model(schedule: str, chunks: int, stages: int, layers: int) -> None:
    job = Job(replace(presets()["llama-405b"], layers=layers), 256)
    plans = Plans.of([Plan(pp=stages, schedule=schedule, chunks=chunks)])
    first, second, last = (float(np.sum(memory.parameters(job, plans, place))) for place in (0, 1, -1))
    inner = second if stages > 2 else 0
    assert first + max(0, stages - 2) * inner + last == pytest.approx(job.model.parameters)


@pytest.mark.parametrize("layers", [126, 128])
@pytest.mark.parametrize(("schedule", "chunks", "stages"), UNEVEN)
def test_layers_in_flight_are_those_of_the_programs(schedule: str, chunks: int, stages: int, layers: int) -> None:
    """Walked through: a forward keeps its chunk's layers until the last part of its backward."""
    job = Job(replace(presets()["llama-405b"], layers=layers), 64)
    plans = Plans.of([Plan(pp=stages, schedule=schedule, chunks=chunks)])
    made = compute_only(schedule, stages, 64, chunks=chunks)
    each, short = memory.layers_per_chunk(job, plans)[0], layers % (stages * chunks) > 0
    for place in (0, 1, -1):
        kept, most = 0.0, 0.0
        for op in made.programs[place]:
            count = each - short * (op.stage in (0, made.stages - 1))
            kept += count * ((op.kind is Kind.F) - (op.kind in (Kind.W, Kind.BW)))
            most = max(most, kept)
        flight = memory.activations.in_flight(job, plans, place)
        found = memory._layers_in_flight(job, plans, place, flight)[0]
        assert found == pytest.approx(most, rel=0.07) and found >= most - 1e-9


def test_the_second_rank_may_hold_most_where_the_ends_count_as_layers() -> None:
    """Llama 3 405 B over 16 stages: it has eight layers, the first one seven and the embedding."""
    job, plan = Job(presets()["llama-405b"], 256), Plan(tp=8, pp=16, dp=8, zero=1, recompute="full")
    found, plans = memory.of(job, Plans.of([plan])), Plans.of([plan])
    peaks = [float(memory._rank(job, plans, place).peak[0]) for place in (0, 1, -1)]
    assert found.place[0] == memory.SECOND and found.peak[0] == max(peaks) == peaks[1] > peaks[0]
    large = verdict.judge(job, replace(clusters()["selene"], devices=128), replace(plan, dp=1, zero=0), suggest=False)
    assert large.fullest == "the second rank" and " on the second rank, of 78 GiB" in large.sentences[0]


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
