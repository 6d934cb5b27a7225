"""Comparing runs: how their specs differ, whether they are comparable, and where the time went."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from django.test import Client

from dashboard.charts import many_lines
from dashboard.runs.differences import differences, flat
from dashboard.runs.models import Run, SeriesChunk
from dashboard.studies import compare, compare_views
from dashboard.studies.models import Study
from parallel_core.observe.records import POINT
from parallel_core.spec import RunSpec
from tests.dashboard import factory


def spec(**sections: Any) -> RunSpec:
    return RunSpec.model_validate(sections)


def test_only_differing_fields_are_listed() -> None:
    found, same = differences([spec(parallel={"dp": 2}), spec(parallel={"tp": 2}), spec()])
    assert [(d.field, d.values) for d in found] == [("parallel.dp", ["2", "1", "1"]), ("parallel.tp", ["1", "2", "1"])]
    assert [d.words for d in found] == ["Data parallel", "Tensor parallel"]
    assert same == len(flat(spec())) - 2


def test_a_run_without_a_pipeline_has_no_schedule() -> None:
    found, _ = differences([spec(parallel={"dp": 2}), spec(parallel={"pp": 2, "schedule": "1f1b"})])
    assert ("parallel.schedule", ["none", "1F1B"]) in [(d.field, d.values) for d in found]


def test_a_model_has_no_fields_of_another_kind() -> None:
    """An MLP had a sequence length of 128 beside a GPT's of 64."""
    gpt, mlp = spec(model={"seq": 64, "layers": 2}), spec(model={"kind": "mlp", "layers": 3})
    found, same = differences([gpt, mlp])
    values = {one.field: one.values for one in found}
    assert "model.seq" not in values and "model.image" not in values and values["model.kind"] == ["GPT", "MLP"]
    assert values["model.layers"] == ["2", "3"] and same + len(found) < len(flat(gpt))


def test_what_is_broken_on_purpose_is_a_difference() -> None:
    """In the words of the run's page, not as the command line spells it."""
    late = {"kind": "slow_data", "ms": 20}
    found, _ = differences([spec(inject=[{"kind": "straggler", "rank": 0, "factor": 3.0}, late]), spec(inject=[late])])
    straggler, data = "Straggler: rank 0 takes 3 times as long to compute", "Slow data: every batch comes 20 ms late"
    assert [(d.words, d.values) for d in found] == [("Broken on purpose", [f"{straggler}; {data}", data])]
    assert differences([spec(inject=[late]), spec()])[0][0].values == [data, "none"]


def test_a_memory_cap_is_in_the_unit_of_its_label() -> None:
    found, _ = differences([spec(trace={"memory_cap": 96 * 2**20}), spec()])
    assert [(d.words, d.values) for d in found] == [("Memory cap, MiB a rank", ["96", "none"])]


@pytest.mark.parametrize(
    ("other", "words"),
    (
        (
            {"train": {"global_batch": 32}},
            "Not like for like: batch 16 against 32; speedup uses samples/s, and a step in the table is 16 samples.",
        ),
        ({"train": {"precision": "fp64"}}, "Not like for like: precision fp32 against fp64."),
        ({"model": {"layers": 2}}, "Not like for like: model GPT 4 x 128 against GPT 2 x 128."),
        ({"model": {"heads": 2}}, "Not like for like: the models differ."),
        ({"parallel": {"dp": 2}}, ""),
    ),
)
def test_unlike_runs_are_named(other: dict[str, Any], words: str) -> None:
    assert compare.unlike([spec(), spec(**other)]) == words


def test_two_runs_get_a_waterfall_that_adds_up(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    page = reader.get(f"/compare/?runs={a.pk},{b.pk}&baseline={a.pk}")
    bars, _ = page.context["charts"]["waterfall"].figure["data"]
    right = page.context["charts"]["waterfall"].figure["layout"]["xaxis"]["range"][1]
    assert right > 1.1 * max(bars["x"][0], bars["x"][-1]), "the numbers next to the bars have room"
    here = 0.0
    for low, long, hue in list(zip(bars["base"], bars["x"], bars["marker"]["color"], strict=True))[:-1]:
        assert here == pytest.approx(low + long if "accent" in hue else low), (
            "each row starts where the previous one ended"
        )
        here = low if "accent" in hue else low + long
    assert (bars["base"][-1], bars["x"][-1]) == pytest.approx((0, here))
    text = page.content.decode()
    assert "DP is 1.7" in text
    assert "Losses differ by at most" in text


@pytest.mark.parametrize(
    ("kind", "shift", "said"), [("resnet50", 0.5, True), ("resnet50", 0, False), ("mlp", 0.5, False)]
)
def test_losses_that_batch_norms_drive_apart_are_said_to_be(
    reader: Client, alice: Any, kind: str, shift: float, said: bool
) -> None:
    runs = [factory.finished(alice, split, loss_shift=by) for split, by in (({}, 0.0), ({"dp": 2}, shift))]
    for run in runs:
        changed = {"model": {"kind": kind}, "train": {**run.spec["train"], "corpus": "digits"}}
        Run.objects.filter(pk=run.pk).update(spec=run.spec | changed)
    verdict = reader.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").context["verdict"]
    assert any("over 43 steps" in sentence for sentence in verdict)
    assert ("Batch norms amplify rounding at a high learning rate: compare the first steps." in verdict) == said


def test_one_step_is_not_plural(reader: Client, alice: Any) -> None:
    a, b = (factory.finished(alice, train={"steps": 1, "warmup_steps": 0}) for _ in range(2))
    verdict = reader.get(f"/compare/?runs={a.pk},{b.pk}").context["verdict"]
    assert "Losses are the same to the last bit over 1 step." in verdict


def test_equal_memory_of_two_runs_has_no_sign(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {})
    assert "Memory is the same on the worst rank." in reader.get(f"/compare/?runs={a.pk},{b.pk}").context["verdict"]


def test_a_run_that_was_slowed_on_purpose_is_slow_for_that(reader: Client, alice: Any) -> None:
    runs = [factory.finished(alice, {"dp": dp}) for dp in (2, 2, 1)]
    runs[2].spec["inject"] = [{"kind": "slow_data", "ms": 40}]
    runs[2].save()
    said = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}").context["verdict"]
    assert any(one.endswith("; it was broken on purpose: slow data.") for one in said), said


def test_parts_of_steps_with_different_batches_are_not_subtracted(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2}, train={"global_batch": 64})
    page = reader.get(f"/compare/?runs={a.pk},{b.pk}&baseline={a.pk}")
    assert not page.context["charts"].get("waterfall") and "speedup" in page.context["charts"]
    assert compare.UNEQUAL_STEPS in page.context["verdict"]
    assert not any("between their traced steps" in said for said in page.context["verdict"])


@pytest.mark.parametrize(("others", "place"), [((0.0, 0.0), None), ((0.0, 0.4), -1), ((0.5, 0.4), 0)])
def test_two_runs_say_that_they_were_disturbed(
    reader: Client, alice: Any, others: tuple[float, float], place: int | None
) -> None:
    """The warning comes last if one run was disturbed, and first if both were, since everything else then rests on
    it.
    """
    a, b = (factory.finished(alice, {"dp": dp}, cpu_others=share) for dp, share in zip((1, 2), others, strict=True))
    said = reader.get(f"/compare/?runs={a.pk},{b.pk}").context["verdict"]
    warned = [i for i, sentence in enumerate(said) if "disturbed" in sentence]
    assert warned == ([] if place is None else [range(len(said))[place]])


def test_three_runs_get_bars_with_the_chosen_baseline(reader: Client, alice: Any) -> None:
    runs = [factory.finished(alice, split) for split in ({}, {"dp": 2}, {"tp": 2})]
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}&baseline={runs[1].pk}")
    assert "waterfall" not in page.context["charts"]
    assert [row.run.pk for row in page.context["rows"]] == [runs[1].pk, runs[0].pk, runs[2].pk]
    assert page.context["view"].baseline.run == runs[1]
    assert f"baseline={runs[0].pk}" in page.context["swap"]


def test_swapping_the_baseline_keeps_the_other_parameters(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    page = reader.get(f"/compare/?run={a.pk}&run={b.pk}&axis=seconds")
    assert page.context["swap"] == f"?axis=seconds&runs={b.pk},{a.pk}&baseline={b.pk}"


@pytest.mark.parametrize("address", ("/compare/", "/compare/?runs=", "/compare/?runs=x,-1,99999999999999999999"))
def test_nothing_to_compare_says_what_to_do(reader: Client, address: str) -> None:
    page = reader.get(address)
    assert page.status_code == 200
    assert "No runs chosen" in page.content.decode()


def test_missing_runs_are_named(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, {})
    text = reader.get(f"/compare/?runs={run.pk},999999").content.decode()
    assert "Run 999999 in the address does not exist, so there is nothing to compare with" in text
    assert "all specs are equal" not in text and "equal fields hidden" not in text
    alone = reader.get(f"/compare/?runs={run.pk}").content.decode()
    assert "1 run alone" in alone and "What differs" not in alone and "times the baseline" not in alone
    both = reader.get(f"/compare/?runs={run.pk},{factory.finished(alice, {}).pk}").content.decode()
    assert "What differs" in both and 'id="times"' in both and 'id="tradeoff"' in both


def test_one_run_is_offered_others_to_compare_it_with(reader: Client, alice: Any) -> None:
    study = Study.objects.create(name="Split", owner=alice)
    alone = factory.queued(alice, study=study)
    assert "has none yet" in reader.get(f"/compare/?runs={alone.pk}").content.decode()
    near, text, far = factory.queued(alice, study=study), factory.queued(alice), factory.queued(alice)
    Run.objects.filter(pk=text.pk).update(task={"prompt": "def "})
    page = reader.get(f"/compare/?runs={alone.pk}")
    assert list(page.context["others"]) == [near, far]
    assert f'<option value="{near.pk}">{near.name}, run {near.pk}: queued</option>' in page.content.decode()
    done = factory.finished(alice, {})
    lost = factory.queued(alice)
    found = reader.get(f"/compare/?runs={alone.pk}").context["others"]
    assert list(found) == [near, done, lost, far], "one with results is chosen already where the study has no other"
    both = reader.get(f"/compare/?run={alone.pk}&run={near.pk}")
    assert [row.run for row in both.context["rows"]] == [alone, near] and 'id="other-run"' not in both.content.decode()


def test_runs_beyond_the_most_are_counted_and_the_baseline_is_never_left_out(
    reader: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_views, "MAX_COMPARED", 2)
    runs = [factory.queued(alice) for _ in range(4)]
    listed = ",".join(str(run.pk) for run in runs)
    page = reader.get(f"/compare/?runs={listed},999999&baseline={runs[3].pk}")
    assert [row.run.pk for row in page.context["rows"]] == [runs[3].pk, runs[0].pk]
    assert page.context["view"].baseline.run == runs[3]
    text = page.content.decode()
    assert "2 of 4 chosen runs are compared; the others are left out." in text and "Run 999999 in the" in text
    assert "are left out" not in reader.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").content.decode()


def test_a_run_that_went_on_from_a_checkpoint_shares_no_step_with_another(reader: Client, alice: Any) -> None:
    """The second run starts at step 100 of the first. No losses can be compared, and the time to reach a loss does not
    include the first run's training.
    """
    short, later = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    later.resume_step, later.resume_run = 100, short
    later.save(update_fields=("resume_step", "resume_run"))
    for chunk in SeriesChunk.objects.filter(attempt__run=later, name="loss"):
        points = np.frombuffer(bytes(chunk.data), POINT).copy()
        points["step"] += 100
        points["value"][:5] = 0.0
        chunk.data, chunk.first_step, chunk.last_step = points.tobytes(), chunk.first_step + 100, chunk.last_step + 100
        chunk.save()
    page = reader.get(f"/compare/?runs={short.pk},{later.pk}")
    text = page.content.decode()
    assert "no step in common" in text and "Not like for like: DP begins after 100 trained steps" in text
    assert [line.seconds for line in page.context["reached"].lines if line.label == "DP"] == [compare.BELOW]


def test_at_most_twelve_are_drawn(reader: Client, alice: Any) -> None:
    runs = [factory.queued(alice, {"dp": 2}) for _ in range(14)]
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}")
    text, listed = page.content.decode(), ",".join(str(run.pk) for run in runs[:12])
    assert "and 10 more; timelines of the first 12<" in text
    assert f"show={quote(listed)}" in text, "timelines are shown for the first chips"
    fewer = reader.get(f"/compare/{page.context['fewer']}")
    assert [row.run for row in fewer.context["rows"]] == runs[:12] and "loss" in fewer.context["charts"]


@pytest.mark.full
def test_from_13_runs_on_bars_scatter_and_table_hold_every_run_and_a_few_lines_are_coloured(
    reader: Client, alice: Any
) -> None:
    runs = [factory.finished(alice, {"dp": 2}, name=f"run {i}") for i in range(13)]
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}")
    charts = page.context["charts"]
    assert "13 of 13 runs" in charts["speedup"].source and len(charts["speedup"].rows) == 13
    assert "13 of 13 runs" in charts["tradeoff"].source
    assert "steps" not in charts and 'data-chart="steps"' not in page.content.decode()
    lines = charts["loss"].figure["data"]
    assert len(lines) == 13 and sum(line.get("showlegend", True) for line in lines) == many_lines.LEADERS
    assert all(f">run {i}<" in page.content.decode() for i in range(13))


def test_lines_of_one_hue_have_symbols_of_their_own(reader: Client, alice: Any) -> None:
    splits: tuple[dict[str, Any], ...] = ({"dp": 2}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {})
    runs = [factory.finished(alice, split) for split in splits]
    chart = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}").context["charts"]["loss"]
    looks = [
        (trace["line"]["color"], trace["line"]["dash"], trace.get("marker", {}).get("symbol"))
        for trace in chart.figure["data"]
    ]
    assert len(looks) == len(set(looks)) == 4, "each line in the legend looks different from every other"


def test_of_other_models_or_data_no_time_to_a_loss_is_said(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    Run.objects.filter(pk=b.pk).update(spec={**b.spec, "model": {**b.spec["model"], "layers": 6}})
    page = reader.get(f"/compare/?runs={a.pk},{b.pk}")
    assert page.context["unlike"] and not page.context["reached"].lines
    assert page.context["rows"][1].entry.of_ideal is None, "there is no ideal for another model"


def test_empty_lists_of_a_spec_are_none(reader: Client) -> None:
    found, _ = differences([spec(), spec(trace={"profile_steps": [8, 9]})])
    assert [d.values for d in found] == [["none", "8, 9"]]


def test_files_of_one_name_with_other_content_are_not_the_same_data(reader: Client, alice: Any) -> None:
    runs = [factory.finished(alice, {"dp": dp}) for dp in (1, 2, 1)]
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}")
    assert "Not like for like" not in page.content.decode()
    for run, digits in zip(runs, ("aaaaaaaabbbbbbbb", "ccccccccdddddddd", "aaaaaaaabbbbbbbb"), strict=True):
        run.summary = {**run.summary, "reads": {"corpus": digits}}
        run.save()
    text = reader.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").content.decode()
    assert "Not like for like: data stdlib (content aaaaaaaa) against stdlib (content cccccccc)." in text
    assert "Losses differ by at most" not in text
    assert "Not like for like" not in reader.get(f"/compare/?runs={runs[0].pk},{runs[2].pk}").content.decode()
