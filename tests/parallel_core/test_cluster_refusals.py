"""What cannot be trained or described is refused with its reason, and where there is one with what mends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel_core.plan.cluster import search, verdict
from parallel_core.plan.cluster.hardware import GIB, clusters, devices
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plans import Plan, changed
from parallel_core.plan.cluster.problems import Unphysical
from parallel_core.plan.cluster.rules import Reason
from tests.parallel_core.test_cluster_search import GPT3, SELENE


def test_200_billion_on_40_gib_which_plan_trains_it_and_why_the_other_cannot() -> None:
    job, cluster = Job(presets()["gpt-200b"], 1024), clusters()["a100-40"]
    alone = verdict.judge(job, cluster, Plan(dp=1024))
    assert alone.sentences == ("Every rank holds the whole state, 3.2 TiB; no number of GPUs helps.",)
    both = verdict.judge(job, cluster, Plan(8, 8, 16, zero=1, sequence_parallel=True))
    assert both.fits
    assert both.room == "21 of 38 GiB"


def test_a_refused_plan_gets_the_fastest_single_change_that_mends_it() -> None:
    job, cluster = Job(presets()["gpt-200b"], 1024), clusters()["a100-40"]
    judged = verdict.judge(job, cluster, Plan(8, 8, 16, zero=1))
    assert not judged.fits
    assert judged.fix is not None
    assert judged.fix.text == "sequence parallel"
    assert verdict.judge(job, cluster, judged.fix.plan).fits


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"tp": 5}, Reason.HEADS, "TP 5 does not divide the 96 heads"),
        ({"tp": 6, "sequence_parallel": True}, Reason.SEQUENCE,
         "TP 6 does not divide a sequence of 2\xa0048, which SP splits; use no SP or TP 2, 4, 8, 16, 32."),
        ({"pp": 9}, Reason.LAYERS, "96 layers do not divide over 9 stages; try"),
        ({"schedule": "interleaved", "chunks": 5}, Reason.LAYERS,
         "over 8 stages of 5 chunks, nor over any other number of stages with as many chunks."),
        ({"micro_batch": 7}, Reason.BATCH, "does not divide over 16 replicas x 7 a micro-batch; try 1\xa0456 or 1"),
        ({"schedule": "interleaved", "chunks": 2, "micro_batch": 32}, Reason.ROUNDS, "of 8 stages; there are 3"),
        ({"schedule": "interleaved", "chunks": 2, "micro_batch": 64}, Reason.ROUNDS, "of 8 stages; there is 1."),
        ({"dp": 1, "micro_batch": 7, "zero": 0}, Reason.BATCH, "does not divide over 1 replica x 7 a micro-batch; try"),
        ({"schedule": "zb-h1", "micro_batch": 32}, Reason.FEW, "zb-h1 needs at least 8 micro-batches"),
        ({"dp": 32}, Reason.DEVICES, "It takes 2\N{NO-BREAK SPACE}048 devices; there are 1\N{NO-BREAK SPACE}024."),
    ],
)  # fmt: skip
def test_each_reason_has_its_words(change: dict[str, object], reason: Reason, words: str) -> None:
    judged = verdict.judge(GPT3, SELENE, changed(Plan(16, 8, 8, zero=1), **change), suggest=False)
    assert reason in judged.reasons
    assert any(words in sentence for sentence in judged.sentences), judged.sentences


@pytest.mark.parametrize("change", [{"dp": 32}, {"dp": 64, "zero": 3}])
def test_a_plan_of_more_devices_than_there_are_is_led_to_one_that_is_possible(change: dict[str, object]) -> None:
    judged = verdict.judge(GPT3, SELENE, changed(Plan(16, 8, 8, zero=1, recompute="full"), **change))
    assert judged.reasons == Reason.DEVICES and judged.fix is not None
    assert judged.fix.plan.devices <= SELENE.devices and verdict.judge(GPT3, SELENE, judged.fix.plan).fits


def test_layers_that_a_tensor_group_cannot_share_are_refused() -> None:
    """Megatron-LM divides the inner width, too, and key heads unless each rank has a copy of one."""
    model = replace(presets()["llama-8b"], heads=24, hidden=3072, kv_heads=8, ffn=8200, seq=1)
    job = Job(model, 64)
    assert model.tensor_widths == [1, 2, 4, 8]
    for tp, split, reason, words in (
        (24, False, Reason.FFN, "TP 24 does not divide the inner width 8\xa0200; try 1, 2, 4, 8."),
        (3, False, Reason.HEADS, "TP 3 does not divide the 24 heads and 8 key heads; try 1, 2, 4, 8."),
        (8, True, Reason.SEQUENCE, "TP 8 does not divide a sequence of 1, which SP splits; use no SP."),
    ):
        judged = verdict.judge(job, SELENE, Plan(tp=tp, sequence_parallel=split), suggest=False)
        assert reason in judged.reasons and words in judged.sentences, judged.sentences


def test_what_hardly_does_not_fit_is_told_in_digits_that_differ() -> None:
    """10.13 GiB on a device with 10.08 GiB for a plan: to two digits both are 10 GiB, and it is refused."""
    job, plan = Job(presets()["gpt-125m"], 64), Plan(micro_batch=8)
    whole = replace(SELENE, devices=1, per_host=1)
    peak = verdict.judge(job, whole, plan).peak
    tight = replace(whole, device=replace(whole.device, memory=whole.reserved + 0.995 * peak))
    judged = verdict.judge(job, tight, plan, suggest=False)
    assert Reason.MEMORY in judged.reasons
    said = judged.room.replace(" of ", " "), judged.sentences[0].replace(" on every rank, of", "")
    for needs, has in ([word for word in text.split() if word[0].isdigit()][:2] for text in said):
        assert float(needs) > float(has), (judged.room, judged.sentences)
    alone = search.Space(recompute=("none",), most_micro_batch=1, offload=(False,))
    least = float(search.search(job, whole, alone).peak[0])
    less = replace(whole, device=replace(whole.device, memory=whole.reserved + 0.995 * least))
    text = verdict.none_fits(job, less, search.search(job, less, alone))
    room, smallest = (float(part.split()[0]) for part in (text.split("into ")[1], text.split("needs ")[1]))
    assert smallest > room, text


def test_a_host_too_small_for_the_offloaded_state_is_told() -> None:
    tiny = replace(SELENE, host_memory=64 * GIB)
    judged = verdict.judge(GPT3, tiny, Plan(16, 8, 8, offload=True, sequence_parallel=True), suggest=False)
    assert Reason.HOST in judged.reasons
    assert "for the optimizer of 8 ranks; it has 64 GiB" in judged.sentences[-1]


@pytest.mark.parametrize(
    ("field", "cluster"),
    [
        ("network", replace(SELENE, network=0.0)),
        ("link", replace(SELENE, link=float("nan"))),
        ("memory", replace(SELENE, device=replace(SELENE.device, memory=-1.0))),
        ("half", replace(SELENE, device=replace(SELENE.device, half=0.0))),
        ("devices", replace(SELENE, devices=1_000_000)),
        ("devices", replace(SELENE, devices=1001)),
        ("reserved", replace(SELENE, reserved=90.0 * GIB)),
    ],
)
def test_unphysical_hardware_is_refused_by_field(field: str, cluster: object) -> None:
    with pytest.raises(Unphysical) as caught:
        search.search(GPT3, cluster)  # type: ignore[arg-type]
    assert field in caught.value.messages


def test_catalogue_rows_are_physical_and_have_their_source() -> None:
    assert len(devices()) >= 13
    for device in devices().values():
        assert device.source
        assert device.memory > 0 < device.units
    for cluster in clusters().values():
        assert cluster.problems() == {}
        assert cluster.source
