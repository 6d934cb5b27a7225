"""Step times of plans on a cluster: against published measurements, and relations that hold whatever the constants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parallel_core.analysis.quantities import percent_text
from parallel_core.analysis.rows import last_end
from parallel_core.plan.cluster import accuracy, plan_timeline, search, step
from parallel_core.plan.cluster.efficiency import fitted
from parallel_core.plan.cluster.fit import FREE, fit
from parallel_core.plan.cluster.hardware import Cluster, clusters, devices
from parallel_core.plan.cluster.job import MEGATRON_2022, Job
from parallel_core.plan.cluster.model import Transformer, presets
from parallel_core.plan.cluster.plan_timeline import drawn
from parallel_core.plan.cluster.plans import Plan, Plans, changed
from parallel_core.plan.cluster.questions import ask
from parallel_core.plan.cluster.zero_bubble import PREDICTED, bubble_rows, models
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import Kind, Op
from parallel_core.simulate import simulate

SELENE = clusters()["selene"]
GPT3 = Job(presets()["gpt-175b"], 1024)
BASE = Plan(tp=8, pp=8, dp=16)


FREE_LINKS = replace(SELENE, link=1e18, network=1e18)


def seconds(*plans: Plan) -> list[float]:
    return step.of(GPT3, SELENE, Plans.of(plans)).total.tolist()


def test_published_step_times_out_of_the_fit() -> None:
    rows = [row for row in accuracy.step_times() if not row.fitted]
    found = accuracy.summary(rows)
    assert (found.count, found.mean <= 0.02, found.worst <= 0.04) == (14, True, True), found


def test_published_step_times_in_the_fit() -> None:
    rows = [row for row in accuracy.step_times() if row.fitted]
    assert len(rows) == 4
    assert accuracy.summary(rows).worst <= 0.03


def test_the_readme_says_what_comes_out() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    for fitted_on, count in ((False, 14), (True, 4)):
        found = accuracy.summary([row for row in accuracy.step_times() if row.fitted is fitted_on])
        assert f"| {count} | {100 * found.mean:.1f} % | {100 * found.worst:.1f} % |" in readme


def test_the_constants_are_what_the_fit_finds() -> None:
    made = fit(fitted(), accuracy.fitted_rows())
    for name in FREE:
        assert getattr(made, name) == pytest.approx(getattr(fitted(), name), abs=1e-3)


def test_one_layers_times_and_replicas_which_nothing_was_fitted_on() -> None:
    assert accuracy.summary(accuracy.layer_times()).mean <= 0.035
    assert accuracy.summary(accuracy.layer_times()).worst <= 0.055
    assert accuracy.summary(accuracy.with_replicas()).worst <= 0.055


@pytest.mark.parametrize("model", [m if m == "1.5B" else pytest.param(m, marks=pytest.mark.full) for m in models()])
def test_zero_bubble_rates_within_one_point(model: str) -> None:
    for row in bubble_rows(model):
        assert row.weights == pytest.approx(row.profiled_weights, abs=0.002)
        assert row.message == pytest.approx(row.profiled_message, abs=0.001)
        assert max(abs(row.points(name)) for name in PREDICTED) < 0.5, row


def test_parts_add_up_to_the_step() -> None:
    found = step.of(GPT3, SELENE, Plans.of([BASE]))
    assert sum(found.parts(0).values()) == pytest.approx(found.total[0])


def test_recomputation_costs_about_a_third_and_selective_little() -> None:
    none, selective, full = seconds(*(changed(BASE, recompute=kind) for kind in ("none", "selective", "full")))
    assert none < selective < 1.15 * none < 1.25 * none < full < 1.45 * none


def test_better_schedules_wait_less() -> None:
    by_schedule = [("gpipe", 1), ("1f1b", 1), ("interleaved", 4), ("zb-h1", 1), ("zb-h2", 1)]
    found = step.of(GPT3, SELENE, Plans.of([changed(BASE, schedule=s, chunks=c) for s, c in by_schedule])).bubble
    assert found[0] == found[1] > found[3] >= found[4] >= 0
    assert found[2] == pytest.approx(found[1] / 4)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)]
)
def test_bubbles_in_closed_form_are_those_of_the_simulated_programs(schedule: str, chunks: int) -> None:
    plan = Plan(tp=8, pp=8, dp=16, schedule=schedule, chunks=chunks)
    job = replace(GPT3, batch=16 * drawn(GPT3, FREE_LINKS, plan).micro_batches)
    drawn_step, found = drawn(job, FREE_LINKS, plan), step.of(job, FREE_LINKS, Plans.of([plan]))
    # 1F1B and interleaved leave out the output layer, which changes the simulated idle time by a few percent.
    close = 0.005 if schedule.startswith("zb-") else 0.15
    assert drawn_step.idle / 1e9 == pytest.approx(found.bubble[0], rel=close)


@pytest.mark.parametrize(("schedule", "chunks"), [("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("interleaved", 6)])
def test_a_step_with_one_micro_batch_a_stage_idles_as_long_as_its_programs(schedule: str, chunks: int) -> None:
    """GPT 175 B on 1 024 devices with 16 stages and a batch of 512: too few micro-batches for a zero bubble."""
    job, plan = replace(GPT3, batch=512), Plan(tp=2, pp=16, dp=32, schedule=schedule, chunks=chunks)
    assert drawn(job, SELENE, plan).micro_batches == 16
    found, close = step.of(job, FREE_LINKS, Plans.of([plan])).bubble[0], 0.005 if schedule.startswith("zb-") else 0.15
    assert drawn(job, FREE_LINKS, plan).idle / 1e9 == pytest.approx(found, rel=close)


@pytest.mark.parametrize(
    ("schedule", "stages", "layers"),
    [
        *(("zb-v", stages, layers) for stages in (2, 4, 8) for layers in (30, 32, 62)),
        *(("interleaved", 2, layers) for layers in (10, 12)),
        *(("zb-h1", 8, layers) for layers in (30, 32)),
    ],
)
def test_a_step_is_as_long_as_its_programs_whether_or_not_the_layers_divide(
    schedule: str, stages: int, layers: int
) -> None:
    """Where they do not, the first and the last chunk have one layer less; in ZB-V one rank has both."""
    chunks, close = (1, 0.02) if schedule == "zb-h1" else (2, 0.01)
    plan = Plan(pp=stages, schedule=schedule, chunks=chunks)
    made = compute_only(schedule, stages, 24, chunks=chunks)
    for hidden, vocabulary in ((4096, 2560), (4096, 51200), (4096, 128256)):  # an output layer of 0.05 to 2.7 layers
        job = Job(Transformer("small", hidden, layers, 16, 16, 4 * hidden, vocabulary, 1024), 24)
        costs = replace(plan_timeline._costs(job, FREE_LINKS, plan, made), message=0, between=0)
        parts = step.of(job, FREE_LINKS, Plans.of([plan])).parts(0)
        found = sum(parts[part] for part in ("compute", "recompute", "tensor", "bubble"))
        assert found == pytest.approx(last_end(simulate(made, costs)) / 1e9, rel=close), (hidden, vocabulary)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
def test_the_idle_time_of_a_drawing_is_the_bubble_of_the_step(schedule: str, chunks: int) -> None:
    """Of the same stage and in the same unit, however many of the micro-batches are drawn."""
    plan = Plan(tp=8, pp=8, dp=1, schedule=schedule, chunks=chunks)
    made, parts = drawn(GPT3, SELENE, plan), step.of(GPT3, SELENE, Plans.of([plan])).parts(0)
    assert made.micro_batches < made.of
    assert parts["bubble"] == pytest.approx(made.idle / 1e9, rel=0.15)


@pytest.mark.parametrize(
    ("schedule", "batch", "shown"), [("interleaved", 1024, 60), ("interleaved", 12, 12), ("1f1b", 1024, 112)]
)
def test_an_interleaved_step_is_drawn_in_whole_rounds(schedule: str, batch: int, shown: int) -> None:
    """A step with more micro-batches than a picture shows must not be cut within a round of six, as it would be at
    56.
    """
    chunks = 2 if schedule == "interleaved" else 1
    plan = Plan(tp=8, pp=6, dp=1, schedule=schedule, chunks=chunks)
    made = drawn(replace(GPT3, batch=batch), SELENE, plan)
    assert (made.micro_batches, made.of) == (shown, batch) and made.ranks == 6
    for rows in made.spans.values():
        forward = rows[rows["kind"] == Kind.F]
        assert len(forward) == shown * chunks and set(forward["micro_batch"].tolist()) == set(range(shown))


def test_slower_links_and_devices_never_make_a_step_shorter() -> None:
    plans = Plans.of([BASE, Plan(tp=8, dp=128, zero=3), Plan(tp=16, pp=4, dp=16)])
    base = step.of(GPT3, SELENE, plans).total
    device = SELENE.device
    for worse in (
        replace(SELENE, link=SELENE.link / 4),
        replace(SELENE, network=SELENE.network / 10),
        replace(SELENE, device=replace(device, half=device.half / 2)),
        replace(SELENE, device=replace(device, bandwidth=device.bandwidth / 2)),
    ):
        assert (step.of(GPT3, worse, plans).total >= base).all()


def test_without_a_flush_there_is_no_bubble_but_a_step_for_every_micro_batch() -> None:
    flush, stash, double = (changed(BASE, schedule=name) for name in ("1f1b", "1f1b-stash", "1f1b-2bw"))
    found = step.of(GPT3, SELENE, Plans.of([flush, stash, double]))
    assert found.bubble[0] > found.bubble[1] == found.bubble[2] == 0
    assert found.optimizer[1] == pytest.approx(GPT3.batch / BASE.dp * found.optimizer[2])


def test_an_update_for_every_micro_batch_reduces_all_gradients_each_time() -> None:
    job = replace(GPT3, model=replace(GPT3.model, tied=False), software=replace(GPT3.software, overlap_dp=False))
    found = step.of(job, SELENE, Plans.of([changed(BASE, schedule=name) for name in ("1f1b", "1f1b-stash")]))
    assert found.gradients[1] == pytest.approx(GPT3.batch / BASE.dp * found.gradients[0])


def test_free_communication_has_no_latency_either() -> None:
    job, small = Job(presets()["gpt-125m"], 512), replace(SELENE, devices=512)
    found = search.search(job, small, search.Space(most_pp=1))
    parts = step.of(job, small, found.plans.take(found.order))
    left = (parts.compute + parts.recompute + parts.optimizer + parts.offload).min()
    saved = percent_text(1 - left / found.seconds[found.best()[0]])
    assert ask("free", job, small, found).sentence == f"Free communication would save {saved} of the best plan's step."


def test_with_free_communication_a_plan_may_be_best_that_is_far_behind_now() -> None:
    """On a slow network the plans with most communication are not among the first thousands."""
    job = Job(presets()["gpt-2.7b"], 32)
    slow = replace(SELENE, device=devices()["H100-PCIE-80GB"], devices=32, per_host=2, link=25e9, network=1.25e9)
    assert "save 86 % of the best plan" in ask("free", job, slow, search.search(job, slow)).sentence


def test_tensor_groups_across_hosts_pay_for_it() -> None:
    inside, across = (step.of(GPT3, SELENE, Plans.of([p])).tensor[0] for p in (BASE, changed(BASE, tp=16, dp=8)))
    assert across > 4 * inside


V100 = replace(clusters()["v100"], devices=16)
TIED = Job(presets()["gpt-2.7b"], 512)
TWO_HOSTS = Plan(pp=4, dp=4)
"""Stages of 4 devices on hosts of 8: the middle of their three hops is between hosts."""


def _parts(cluster: Cluster, plan: Plan) -> dict[str, float]:
    return step.of(TIED, cluster, Plans.of([plan])).parts(0)


def test_a_pipeline_over_two_hosts_waits_for_the_network_although_most_hops_stay_on_a_host() -> None:
    slow = replace(V100, network=V100.network / 2)
    for part in ("messages", "gradients"):  # the tied embedding is on the first and the last host
        seconds, longer = (_parts(cluster, TWO_HOSTS)[part] for cluster in (V100, slow))
        assert longer == pytest.approx(2 * seconds, rel=0.05)
        one_host = changed(TWO_HOSTS, dp=2)
        assert _parts(slow, one_host)[part] == _parts(V100, one_host)[part] < seconds


@pytest.mark.parametrize("per_host", [1, 2, 6, 8])
def test_a_hop_leaves_its_host_where_any_rank_has_its_peer_on_another(per_host: int) -> None:
    """Also where the width of a stage does not divide a host: with 3 ranks a stage on hosts of 8 two hops leave the
    first one."""
    cluster, each = replace(V100, per_host=per_host), range(1, 13)
    wide, stages = (axis.ravel() for axis in np.meshgrid(np.array(each, float), np.array(each, float)))
    counted = [
        sum(
            any((s * w + rank) // per_host != ((s + 1) * w + rank) // per_host for rank in range(w))
            for s in range(p - 1)
        )
        for w, p in zip(wide.astype(int), stages.astype(int), strict=True)
    ]
    assert cluster.hops_between_hosts(wide, stages).tolist() == counted


@pytest.mark.parametrize("per_host", [1, 2, 6, 8])
def test_a_group_has_as_many_ranks_on_a_host_as_its_worst_placed_one(per_host: int) -> None:
    """Of all tensor and data groups, laid out rank by rank: also where they straddle hosts or stages do."""
    cluster, sizes = replace(V100, per_host=per_host), [*range(1, 10), 12, 16]
    layouts = [
        (tp, dp, devices)
        for tp in sizes
        for dp in sizes
        for devices in (tp * dp, tp * dp * per_host)  # one stage, or as many as fill hosts
        if devices % per_host == 0 or devices < per_host
    ]
    tp, dp, devices = np.array(layouts, float).T
    tensor = [_worst([np.arange(at, at + t) for at in range(0, n, t)], per_host) for t, _, n in layouts]
    data = [
        _worst([np.arange(at + r, at + t * d, t) for at in range(0, n, t * d) for r in range(t)], per_host)
        for t, d, n in layouts
    ]
    assert cluster.fewest_in_host(tp, np.ones_like(tp), devices).tolist() == tensor
    assert cluster.fewest_in_host(dp, tp, devices).tolist() == data


def _worst(groups: list[np.ndarray], per_host: int) -> int:
    return min(int(np.unique(group // per_host, return_counts=True)[1].min()) for group in groups)


def test_groups_that_straddle_hosts_wait_for_the_network() -> None:
    """Tensor groups of 6 on hosts of 8: ranks 6 to 11 have two on the first host. Replicas of 6 on 24 devices alike."""
    pair = replace(V100, devices=24, per_host=2)  # here no group has more than two on a host
    for plan, part in ((Plan(tp=6, pp=4), "tensor"), (Plan(dp=6, pp=4), "gradients")):
        found, two, inside = (
            _parts(cluster, plan)[part] for cluster in (replace(V100, devices=24), pair, replace(pair, per_host=6))
        )
        assert found == pytest.approx(two) and found > 2 * inside


def test_micro_batches_wait_for_the_slowest_hop_and_the_first_and_the_last_for_all() -> None:
    boundary, reached = TIED.model.seq * TIED.model.hidden * 2, fitted()
    near = boundary / (V100.link * reached.link) + reached.latency
    far = boundary / (V100.network * reached.network) + reached.network_latency
    assert _parts(V100, TWO_HOSTS)["messages"] == pytest.approx(2 * ((512 / 4 + 1) * far + 2 * near))
    uneven = Plan(pp=4, dp=3)  # the third stage is on both hosts
    assert _parts(V100, uneven)["messages"] == pytest.approx(2 * ((512 / 3 + 2) * far + near))


@pytest.mark.parametrize("slower", [1, 8, 32])
@pytest.mark.parametrize("micro_batches", [8, 32])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", 1), ("interleaved", 2), ("interleaved", 6), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)],
)
def test_messages_that_a_schedule_hides_take_as_long_as_in_its_programs(
    schedule: str, chunks: int, micro_batches: int, slower: float
) -> None:
    """ZB-H1 and ZB-H2 were to wait for every message, as 1F1B does, and interleaved 1F1B for a fifth of them at most,
    however slow the network."""
    plan, network = Plan(pp=8, dp=128, schedule=schedule, chunks=chunks), SELENE.network / slower
    job, cluster = replace(GPT3, batch=128 * micro_batches), replace(SELENE, network=network)
    found = step.of(job, cluster, Plans.of([plan]), replace(fitted(), beside=0.0))  # programs are not slowed either
    costs = plan_timeline._costs(job, cluster, plan, compute_only(schedule, 8, micro_batches, chunks=chunks))
    simulated = last_end(simulate(compute_only(schedule, 8, micro_batches, chunks=chunks), costs)) / 1e9
    computed = found.compute + found.recompute + found.bubble + found.messages
    assert computed[0] == pytest.approx(simulated, rel=0.03)


def test_messages_wait_for_each_other_where_nothing_overlaps() -> None:
    """The Megatron-LM of 2022 sent and received in turn with compute, whatever the schedule."""
    job = replace(GPT3, software=MEGATRON_2022)
    plans = [changed(BASE, schedule=s, chunks=c) for s, c in (("1f1b", 1), ("zb-h1", 1), ("interleaved", 2))]
    found = step.of(job, SELENE, Plans.of(plans)).messages
    assert found[0] == found[1] and found[2] == pytest.approx(found[0] * (64 * 2 + 7) / (64 + 7))


@pytest.mark.parametrize(
    ("schedule", "chunks", "far"), [("1f1b", 1, {1}), ("zb-v", 2, {1, 5}), ("interleaved", 2, {1, 3, 5})]
)
def test_a_drawn_message_is_slow_only_where_it_leaves_a_host(schedule: str, chunks: int, far: set[int]) -> None:
    plan = changed(TWO_HOSTS, schedule=schedule, chunks=chunks)
    costs = plan_timeline._costs(TIED, V100, plan, compute_only(schedule, 4, 8, chunks=chunks))
    slow = {stage for stage in range(4 * chunks - 1) if costs.latency(Op(Kind.SEND_ACT, stage)) > 2 * costs.message}
    assert (
        slow == far == {s - 1 for s in range(1, 4 * chunks) if costs.latency(Op(Kind.SEND_GRAD, s)) > 2 * costs.message}
    )
    one_host = replace(V100, per_host=16)
    assert drawn(TIED, one_host, plan).idle < drawn(TIED, V100, plan).idle


def test_zero_3_gathers_weights_for_every_micro_batch() -> None:
    job = Job(GPT3.model, 2048)
    few, many = (Plan(tp=8, dp=128, zero=3, micro_batch=size) for size in (16, 1))
    found = step.of(job, clusters()["a100-1nic"], Plans.of([few, many])).gradients
    assert found[1] > 8 * found[0] > 0
