"""The search over plans: nothing that fits is missed, every refusal has its reason, and answers are true."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from parallel_core.cli import main
from parallel_core.plan.cluster import device_counts, memory, questions, search, verdict
from parallel_core.plan.cluster.advice import advise, part_text
from parallel_core.plan.cluster.efficiency import fitted
from parallel_core.plan.cluster.hardware import GIB, Cluster, clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import Transformer, presets
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.plan.cluster.problems import Unphysical
from parallel_core.plan.cluster.questions import QUESTIONS, ask
from parallel_core.plan.cluster.rules import Reason

SELENE = clusters()["selene"]
GPT3 = Job(presets()["gpt-175b"], 1536)
SMALL = replace(SELENE, devices=64)


@pytest.fixture(scope="module")
def found() -> search.SearchResult:
    return search.search(GPT3, SELENE)


def test_every_plan_is_possible_or_has_its_reason(found: search.SearchResult) -> None:
    fits = found.codes == 0
    assert np.array_equal(fits, ~np.isnan(found.seconds))
    assert set(found.order.tolist()) == set(np.flatnonzero(fits).tolist())
    assert (found.peak[fits] <= SELENE.capacity).all()
    large = (found.codes & Reason.MEMORY) != 0
    assert (found.peak[large] > SELENE.capacity).all()
    assert (found.plans.devices == 1024).all()


def test_counts_and_order(found: search.SearchResult) -> None:
    assert found.timed + found.too_large == np.count_nonzero(~np.isnan(found.peak)) > 10_000
    assert (np.diff(found.seconds[found.order]) >= 0).all()


def test_a_plan_alone_is_what_it_was_among_all(found: search.SearchResult) -> None:
    for place in (*found.best(3), int(found.order[-1])):
        alone = verdict.judge(GPT3, SELENE, found.plans.row(place))
        assert alone.fits
        assert alone.seconds == pytest.approx(found.seconds[place])
        assert alone.peak == pytest.approx(found.peak[place])


def test_pareto_is_beaten_by_none_and_beats_the_rest(found: search.SearchResult) -> None:
    front = search.pareto(found)
    assert front[0] == found.best()[0]
    points = np.stack([found.seconds[front], found.peak[front]])
    assert (np.diff(points[0]) >= 0).all()
    assert (np.diff(points[1]) < 0).all()
    for i in found.order[::997].tolist():
        assert ((points[0] <= found.seconds[i]) & (points[1] <= found.peak[i])).any()


def test_leaders_are_the_fastest_of_their_layout(found: search.SearchResult) -> None:
    layouts = [(plan.dp, plan.tp, plan.pp) for plan in map(found.plans.row, found.leaders(12))]
    assert len(set(layouts)) == 12
    assert found.leaders(1) == found.best(1)


def test_fewer_devices_join_the_search_where_the_space_says_so() -> None:
    space = search.Space(devices=(8, 16, 64), offload=(False,))
    wide = search.search(Job(presets()["gpt-13b"], 64), SMALL, space)
    assert {float(n) for n in wide.plans.devices[wide.order]} == {8.0, 16.0, 64.0}


@pytest.mark.parametrize("space", [search.Space(most_micro_batch=1), search.lean(search.Space())])
def test_a_sequence_is_split_only_over_ranks_that_divide_it(space: search.Space) -> None:
    """2 048 tokens over a third of 48 devices: the other tensor groups are searched without SP, in any space."""
    found = search.search(Job(GPT3.model, 96), replace(clusters()["h100"], devices=48), space)
    odd, split = GPT3.model.seq % found.plans.tp != 0, found.plans.sequence_parallel
    assert set(found.plans.tp[odd].tolist()) == {3.0, 6.0, 12.0, 24.0, 48.0} and (found.codes[odd] == 0).any()
    assert not (odd & split).any() and split[(found.plans.tp > 1) & ~odd].any()


@pytest.fixture(scope="module")
def odd() -> tuple[Job, Cluster, search.SearchResult]:
    """105 layers on 1 024 devices, a power of two: with all of them, only tensor groups and replicas."""
    job, cluster = Job(presets()["gpt-530b"], 1024), replace(clusters()["h100"], devices=1024)
    return job, cluster, search.search(job, cluster)


def test_a_pipeline_on_fewer_devices_is_found_where_it_is_faster(odd: tuple[Job, Cluster, search.SearchResult]) -> None:
    job, cluster, found = odd
    every = search.search(job, cluster, search.Space(devices=(1024,)))
    best, of_all = found.best()[0], float(every.seconds[every.best()[0]])
    plan = found.plans.row(best)
    assert plan.devices < 1024 and plan.pp > 1 and plan.devices % cluster.per_host == 0
    assert found.label(best) == f"{plan.label()}, on {plan.devices} of 1024 devices"
    assert read(found.label(best)) == plan
    few = found.plans.devices < 1024
    assert (found.seconds[few] < of_all).all() and found.codes[few].max() == 0
    assert np.count_nonzero(~few) == len(every.plans) and found.timed - np.count_nonzero(few) == every.timed
    front = search.pareto(found)
    assert len(set(found.plans.devices[front].tolist())) > 1 and (np.diff(found.peak[front]) < 0).all(), (
        "beaten in both"
    )


def test_fewer_devices_are_the_largest_numbers_that_a_pipeline_can_have(
    odd: tuple[Job, Cluster, search.SearchResult],
) -> None:
    job, cluster, _ = odd
    assert device_counts.fewer(job, cluster, search.Space(), 0.0) == (960, 896, 840, 768)
    assert device_counts.fewer(job, replace(cluster, devices=8), search.Space(most_pp=1), 0.0) == ()


def test_fewer_hosts_are_tried_down_to_a_device_unless_their_flops_alone_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two thirds of 3 hosts are 2, of these 1, and of its 8 devices 5, 3, 2 and 1. So few are all tried."""
    job, cluster = Job(presets()["gpt-2.7b"], 30), replace(clusters()["4090"], devices=24)
    assert device_counts.fewer(job, cluster, search.Space()) == (16, 8, 6, 5, 4, 3, 2, 1)
    monkeypatch.setattr(device_counts, "ALL_OF", 7)
    assert device_counts.fewer(job, cluster, search.Space()) == (16, 8, 5, 3, 2, 1)
    flops = 6 * job.tokens * job.model.layers * job.model.layer_matrices
    alone = flops / (cluster.device.half * fitted().matrix)
    assert device_counts.fewer(job, cluster, search.Space(), alone / 3.5) == (16, 8, 5)


@pytest.mark.parametrize(("batch", "faster"), [(12, 1.7), (64, 0.0)])
def test_a_plan_on_fewer_hosts_is_found_where_the_network_is_slow(batch: int, faster: float) -> None:
    """A batch of 64 does not divide over three hosts in any way; 12 sequences are slower on these than on two."""
    job, cluster = Job(presets()["gpt-2.7b"], batch), replace(clusters()["4090"], devices=24)
    found, every = search.search(job, cluster), search.search(job, cluster, search.Space(devices=(24,)))
    best = found.best()[0]
    assert found.label(best).endswith(", on 16 of 24 devices") and bool(every.timed) == (batch == 12)
    assert not faster or float(every.seconds[every.best()[0]]) > faster * float(found.seconds[best])
    near = search.search(job, replace(cluster, devices=16))
    assert float(found.seconds[best]) == float(near.seconds[near.best()[0]])


def test_a_batch_that_divides_over_no_such_cluster_has_a_plan_on_a_few_devices() -> None:
    """The 12 layers and heads do not divide over 1 024 devices either; 6 ms are what one host takes."""
    job, cluster = Job(presets()["gpt-125m"], 1), replace(SELENE, devices=1024)
    found = search.search(job, cluster)
    best = found.plans.row(found.best()[0])
    assert best.devices <= cluster.per_host and (found.plans.devices[found.codes == 0] < 1024).all()


def test_where_all_devices_are_faster_no_others_join(found: search.SearchResult) -> None:
    assert found.slower > 0 and (found.plans.devices == 1024).all()


def test_plans_survive_the_way_into_columns_and_back() -> None:
    plans = [
        Plan(),
        Plan(4, 8, 2, 2, 4, "zb-v", "selective", 1, True, "fp32", 16, True),
        Plan(pp=4, schedule="1f1b-2bw"),
    ]
    columns = Plans.of(plans)
    assert [columns.row(i) for i in range(3)] == plans
    assert [read(plan.label()) for plan in plans[1:]] == plans[1:]
    assert columns.take(np.array([1])).row(0) == plans[1]


@pytest.mark.parametrize("space", ["", " ", "\t", "\u00a0", " \t "])
def test_any_white_space_may_stand_before_the_chunks(space: str) -> None:
    assert read(f"PP 4, interleaved{space}") == read("PP 4, chunks 2")
    assert not space or read(f"PP 4, interleaved{space}4") == read("PP 4, chunks 4")


def test_the_same_device_with_more_memory_is_not_slower() -> None:
    """The fastest plan, a zero-bubble schedule, fits there, too."""
    job, cluster = Job(presets()["gpt-22b"], 8), replace(clusters()["a100-40"], devices=24, per_host=4, network=1.25e9)
    answer = ask("next", job, cluster, search.search(job, cluster, search.Space(offload=(False,))))
    gains = {name: float(ratio.removesuffix("x")) for name, ratio in answer.numbers}
    assert gains["A100-SXM4-80GB"] >= 1 and gains["H100-SXM5-80GB"] > 1


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_answered_in_a_sentence(name: str, found: search.SearchResult) -> None:
    answer = ask(name, GPT3, SELENE, found)
    assert answer.question.endswith("?")
    assert answer.sentence.endswith(".")
    nothing = search.search(Job(presets()["gpt-1t"], 8), replace(SELENE, devices=8))
    assert not nothing.timed
    assert ask(name, Job(presets()["gpt-1t"], 8), replace(SELENE, devices=8), nothing).sentence.endswith(".")


def test_one_device_is_spoken_of_as_one() -> None:
    alone = replace(SELENE, devices=1)
    for model, said in (("gpt-125m", "1 device holds it: one device, "), ("gpt-1t", "Not even 1 device holds it.")):
        job = Job(presets()[model], 1)
        found = search.search(job, alone)
        assert ask("fewest", job, alone, found).sentence.startswith(said)
        fits = ask("fits", job, alone, found).sentence
        assert f" of {found.timed + found.too_large} plans fit" in fits, "the count that the page shows"


def tiny(layers: int, hidden: int, batch: int, **cluster: float) -> tuple[Job, Cluster]:
    """A GPT of few layers on twelve A100s, with other values of the cluster, and of the memory of a device."""
    device = replace(SELENE.device, memory=cluster.pop("memory"))
    model = Transformer("t", hidden, layers, 16, 16, 4 * hidden, 51200, 2048)
    return Job(model, batch), replace(SELENE, devices=12, device=device, **cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "hidden", "batch", "memory"), [(4, 8192, 48, 20), (7, 8192, 8, 20), (7, 4096, 12, 20), (8, 2048, 16, 10)]
)
def test_over_slow_links_the_best_plan_is_that_of_any_number_of_devices(
    layers: int, hidden: int, batch: int, memory: int
) -> None:
    """Seven of twelve devices were never tried, and of eight only plans without zero-bubble schedules: the plan that
    was named took up to 1.2 times as long."""
    job, cluster = tiny(layers, hidden, batch, per_host=1, network=1e9, memory=memory * GIB)
    found = search.search(job, cluster)
    least = min(
        float(seconds[order[0]])
        for count in range(1, 13)
        if len(plans := search.grid(job, cluster, search.Space(devices=(count,))))
        for _, _, seconds, order in [search.evaluate(job, cluster, plans)]
        if len(order)
    )
    assert found.seconds[found.best()[0]] == pytest.approx(least)


def test_fewest_counts_v_schedules_whose_ends_are_on_one_rank() -> None:
    """On three devices neither 1F1B fits nor anything else but ZB-V, whose rank with both ends has no other layer."""
    job, cluster = tiny(4, 4096, 24, per_host=4, network=25e9, memory=5 * GIB)
    said = ask("fewest", job, cluster, search.search(job, cluster)).sentence
    assert said.startswith("3 devices are the fewest that hold it: PP 3, zb-v")


def test_fewest_is_the_smallest_count_that_a_search_can_fill(found: search.SearchResult) -> None:
    sentence = ask("fewest", GPT3, SELENE, found).sentence
    assert sentence.startswith("16 devices")
    assert not search.search(GPT3, replace(SELENE, devices=8)).timed


@pytest.mark.parametrize(
    ("model", "batch", "offload", "said"), [("gpt-175b", 1536, False, 48), ("gpt-1t", 3072, True, 96)]
)
def test_fewest_need_be_no_power_of_two(model: str, batch: int, offload: bool, said: int) -> None:
    """Every number of whole hosts that a plan can use is tried."""
    job = Job(presets()[model], batch)
    space = search.Space(offload=(False, True) if offload else (False,))
    found = search.search(job, SELENE, space)
    assert ask("fewest", job, SELENE, found).sentence.startswith(f"{said} devices are the fewest")
    assert not any(search.search(job, replace(SELENE, devices=n), space).timed for n in range(8, said, 8))


@pytest.mark.full
def test_fewest_are_found_among_thousands_of_devices() -> None:
    """The answer, 1 344, is no power of two: doubling the number of devices would miss it and say 1 536."""
    small = replace(SELENE, devices=3072, device=replace(SELENE.device, memory=7 * GIB))
    space = search.Space(offload=(False,))
    sentence = ask("fewest", GPT3, small, search.search(GPT3, small, space)).sentence
    assert sentence.startswith("1\N{NO-BREAK SPACE}344 devices are the fewest")
    few = questions.lean(space)
    assert not any(search.search(GPT3, replace(small, devices=n), few).timed for n in range(8, 1344, 8))


def test_advice_names_the_bottleneck_and_a_faster_neighbour() -> None:
    slow = Plan(8, 64, 2, micro_batch=1, sequence_parallel=True, recompute="full", zero=1)
    advice = advise(GPT3, SELENE, slow)
    assert advice.part == "tensor"
    assert re.match(r"2 min \d+ s of 3 min \d+ s \(\d+ %\) are ", advice.sentence)
    assert "First try" in advice.sentence
    assert advice.change is not None
    assert verdict.judge(GPT3, SELENE, advice.change.plan).fits


def test_models_that_cannot_be_are_refused_by_field() -> None:
    odd = Transformer("odd", 100, 7, 3, 2, 400, 1000, 128)
    with pytest.raises(Unphysical) as caught:
        search.search(Job(odd, 0), SELENE)
    assert set(caught.value.messages) == {"batch", "heads", "kv_heads"}
    assert "try" in caught.value.messages["heads"]


def test_the_largest_cluster_and_a_prime_model_stay_bounded() -> None:
    prime = Transformer("prime", 127 * 64, 127, 127, 127, 4 * 127 * 64, 50000, 2048)
    found = search.search(Job(prime, 800_000), replace(SELENE, devices=100_000))
    assert len(found.plans) <= search.MOST_PLANS
    assert found.timed


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "gpt-22b", "--cluster", "a100-40", "--devices", "32", "--batch", "128"]
    assert main([*command, "--json", "--top", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3
    assert rows[0]["step_s"] <= rows[1]["step_s"]
    assert rows[0]["peak_bytes"] < 38 * GIB
    assert main([*command, "--ask", "all"]) == 0
    assert "MFU" in capsys.readouterr().out
    assert main(["plan", "--devices", "1001"]) == 2
    assert "try 1000 or 1008" in capsys.readouterr().err
    assert main(["plan", "--accuracy"]) == 0
    assert "out of the fit: 14 step times" in capsys.readouterr().out


def test_memory_of_a_judged_plan_adds_up() -> None:
    judged = verdict.judge(GPT3, SELENE, Plan(16, 8, 8))
    assert sum(judged.parts.values()) == pytest.approx(judged.peak, abs=5)
    assert sum(judged.times.values()) == pytest.approx(judged.seconds)
    assert list(judged.instants) == list(memory.INSTANTS)


def test_chunks_that_only_divide_with_the_ends_are_tried() -> None:
    """126 layers and the two ends over 16 stages with 2 or 4 chunks: the split that Llama 3 was trained with is in the
    search.
    """
    job = Job(presets()["llama-405b"], 256)
    found = search.search(job, SELENE)
    asked = (found.plans.pp == 16) & (found.plans.chunks > 1)
    assert set(found.plans.chunks[asked].tolist()) == {2.0, 4.0, 8.0}
    whole = search.evaluate(job, SELENE, found.plans.take(found.plans.chunks == 1))
    assert found.seconds[found.best()[0]] < 0.9 * np.nanmin(whole[2])


def test_questions_that_search_again_keep_what_was_asked_for(found: search.SearchResult) -> None:
    """Fewer bytes per parameter need fewer devices; if offload is excluded, no answer mentions it."""
    lean = search.search(GPT3, SELENE, search.Space(states=(8,), offload=(False,)))
    full = search.search(GPT3, SELENE, search.Space(offload=(False,)))
    counts = [int(ask("fewest", GPT3, SELENE, one).sentence.split()[0]) for one in (lean, full)]
    assert counts[0] < counts[1]
    assert "offload" not in ask("fewest", GPT3, SELENE, full).sentence
    assert "8 bytes" in ask("fewest", GPT3, SELENE, lean).sentence


@pytest.mark.parametrize(
    ("part", "total", "said"),
    [
        (0.281, 15.814, "281 ms of 15.8 s"),
        (1.5, 15.814, "1.5 of 15.8 s"),
        (0.0046, 0.281, "4.6 of 281 ms"),
        (5.0, 200.0, "5 s of 3 min 20 s"),
        (200.0, 500.0, "3 min 20 s of 8 min 20 s"),
    ],
)
def test_a_part_has_the_unit_of_its_step(part: float, total: float, said: str) -> None:
    assert part_text(part, total) == said
