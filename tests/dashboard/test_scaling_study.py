"""The scaling study: what it runs, how it is requested, and what its page says about speed against number of
devices.
"""

from __future__ import annotations

import csv
import html
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.charts import scaling as charts
from dashboard.charts.scaling import Point
from dashboard.studies import scaling, services
from dashboard.studies.models import Study
from dashboard.studies.new.axes import Axes
from dashboard.studies.overview.entries import Setting
from dashboard.studies.selectors import overview
from parallel_core.plan.strategy import recompute_share
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW
from tests.dashboard.study_charts import charts_of
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.django_db
ASKED = {
    **{key: value for key, value in MATRIX.items() if key not in ("recompute", "precisions", "devices")},
    "kind": "scaling",
    "name": "Scaling",
    "strategies": ["dp", "1f1b"],
    "ways": ["strong", "weak"],
    "counts": "1, 2",
    "micro_batches": "4",
    "timed_steps": "20",
}


@pytest.fixture(autouse=True)
def _broker(redis_url: str) -> None:
    """Announcements need a broker."""


def planned(**asked: Any) -> Any:
    base = {"strategies": ["dp", "tp"], "ways": ["strong", "weak"], "counts": [1, 2, 4]}
    return scaling.plan(factory.BASE, **{**base, **asked})


def test_each_strategy_at_each_count_with_the_same_batch_and_with_the_same_a_device() -> None:
    plan, batch = planned(strategies=["dp"]), factory.BASE["train"]["global_batch"]
    seen = [(v.name, v.spec.parallel.dp, v.spec.train.global_batch) for v in plan.variants]
    assert seen == [
        ("Single", 1, batch),
        *(("DP", 2, batch), ("DP, weak", 2, 2 * batch), ("DP 4", 4, batch), ("DP 4, weak", 4, 4 * batch)),
    ]
    assert not plan.skipped


def test_other_models_bring_their_own_batch_and_their_own_first_run() -> None:
    plan = planned(strategies=["dp"], ways=["weak"], counts=[2], models=["vgg16", "mlp"])
    assert [v.name for v in plan.variants] == [
        f"{model}, {name}" for model in ("GPT", "VGG-16", "MLP") for name in ("Single", "DP, weak")
    ]
    assert [v.spec.train.global_batch for v in plan.variants[2:]] == [32, 64, 32, 64]
    refused = planned(strategies=["tp"], ways=["strong"], counts=[3]).skipped
    assert len(refused) == 1 and refused[0].reason


def test_the_form_queues_it_and_wants_more_than_one_device(client: Client, alice: Any) -> None:
    client.force_login(alice)
    factory.worker(devices=2)
    assert client.get(f"{NEW}?kind=scaling").status_code == 200
    assert "begins with two devices" in client.post(NEW, {**ASKED, "counts": "1"}).content.decode()
    answer = client.post(NEW, ASKED)
    assert answer.status_code == 302, answer.content.decode()
    study = Study.objects.latest("pk")
    assert study.kind == "scaling"
    assert list(study.runs.order_by("position").values_list("name", flat=True)) == [
        *("Single", "DP", "DP, weak", "PP-1F1B", "PP-1F1B, weak")
    ]
    assert client.get(f"{NEW}?clone={study.pk}").context["kind"].key == "scaling"
    assert client.get(f"/studies/{study.pk}/").status_code == 200


def test_more_cpu_devices_than_cores_are_said_to_share_them(client: Client, alice: Any) -> None:
    """Wherever a form says how many there are."""
    host = factory.worker(devices=2)
    host.heartbeat_at = timezone.now() + timedelta(hours=1)  # still fresh at the last request on a busy host
    host.save()
    client.force_login(alice)
    kinds = ("matrix", "scaling", "stashing", "generation")

    def said() -> list[bool]:
        pages = [client.post("/runs/new/check", filled(parallel__dp="2"))]
        pages += [client.get(f"{NEW}?kind={kind}") for kind in kinds]
        words = "2 CPU devices share 1 core on yard-a: processes take turns there"
        return [words in page.content.decode().replace("\xa0", " ") for page in pages]

    assert not any(said())
    assert "yard-a: 2 CPU devices</option>" in client.get("/runs/new/").content.decode()
    host.devices = [{**one, "name": "a CPU, core 0"} for one in host.devices]
    host.save()
    assert said() == [True] * 5
    assert "yard-a: 2 CPU devices on 1 core</option>" in client.get("/runs/new/").content.decode()


def test_every_kind_of_study_knows_how_many_cores_its_devices_share(alice: Any) -> None:
    host = factory.worker(devices=4)
    asked: dict[str, Any] = {"owner": alice, "name": "n", "base": factory.BASE, "axes": Axes(["single", "dp"])}
    assert services.create_matrix(**asked).shared_cores == 0
    host.devices = [{**one, "name": f"a CPU, core {one['index'] % 2}"} for one in host.devices]
    host.save()
    assert services.create_matrix(**asked).shared_cores == 2


@pytest.mark.parametrize(("schedule", "ideal"), [("naive", 1), ("1f1b", 2), ("gpipe", 2), ("zb-h1", 2)])
def test_a_rank_in_the_bubble_leaves_its_core_to_the_others(alice: Any, schedule: str, ideal: float) -> None:
    """Four stages on two cores: what the cores allow, not the strategy's own ideal times their share."""
    split = {"pp": 4, "schedule": schedule, "micro_batches": 4}
    run = factory.queued(alice, split)
    base = factory.queued(alice)
    single, spec = (RunSpec.stored(one.spec) for one in (base, run))
    setting = Setting(base, single, None, {}, cores=2)
    assert setting.ideal(spec) == ideal and setting.ideal(single) == 1
    again = spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"recompute": "full"})})
    assert setting.ideal(again) <= 2 / (1 + recompute_share(again))


def finished(owner: Any, **asked: Any) -> Study:
    made = Study.objects.create(name="Scaling", owner=owner, kind="scaling", base=factory.BASE)
    for i, variant in enumerate(planned(**asked).variants):
        spec = variant.spec.model_dump(mode="json")
        batch = {"global_batch": spec["train"]["global_batch"]}
        run = factory.finished(owner, spec["parallel"], train=batch, study=made, position=i, name=variant.name)
        train = run.spec["train"] | {"corpus": spec["train"]["corpus"]}
        run.spec = run.spec | {"model": spec["model"], "train": train}
        run.save(update_fields=("spec",))
    made.baseline = made.runs.order_by("position").first()
    made.save()
    return made


def test_the_page_says_what_scales_and_what_stalls(client: Client, alice: Any) -> None:
    study = finished(alice, counts=[1, 2])
    client.force_login(alice)
    Study.objects.filter(pk=study.pk).update(settings={"cores": 1})
    assert "of what 1 core allows, shared by 2 devices" in client.get(f"/studies/{study.pk}/").content.decode()
    study.refresh_from_db()
    shared = overview(study.runs.all(), study.baseline)
    Study.objects.filter(pk=study.pk).update(settings={})
    study.refresh_from_db()
    view = overview(study.runs.all(), study.baseline)
    found = {point.name: point for point in scaling.points(view)}
    assert set(found) == {"Single", *(f"{s}, {way}" for s in ("DP", "TP") for way in ("strong", "weak"))}
    rate = {row.entry.label: row.spec.train.global_batch / (row.entry.traced_median or 1) for row in view.rows}
    for name, label in (("DP, strong", "DP"), ("DP, weak", "DP, weak")):
        assert found[name].speedup == pytest.approx(rate[label] / rate["Single"])
        assert found[name].efficiency == pytest.approx(rate[label] / rate["Single"] / 2)
    of_one, of_all = ({row.entry.label: row.entry.of_ideal for row in one.rows} for one in (shared, view))
    assert of_all["DP"] and of_all["TP"]
    assert of_one["DP"] == pytest.approx(2 * of_all["DP"]) and of_one["TP"] == pytest.approx(2 * of_all["TP"])
    assert of_all["DP, weak"] is None, "another batch has no ideal over the baseline's"
    page = client.get(f"/studies/{study.pk}/")
    best = max((p for p in found.values() if p.devices == 2), key=lambda p: p.efficiency)
    assert best.name in page.context["verdict"][0] and "efficiency on 2 devices" in page.content.decode()
    assert {p.way for p in found.values()} == {"", "strong", "weak"}
    stalls = page.context["charts"]["stalls"]
    assert stalls.figure["data"][0]["x"] == [1, 2]
    assert stalls.subtitle.startswith("Communication of data parallelism that"), "TP is not drawn"
    assert stalls.figure["data"][0]["y"][1] == pytest.approx(100 * (found["DP, strong"].stall or 0))
    report = client.get(f"/studies/{study.pk}/report/").content.decode()
    assert page.context["charts"]["scaling"].title in report and stalls.title in report
    assert set(charts_of(client, study)) >= {"scaling", "stalls"}
    assert "efficiency on 2 devices" in client.get("/studies/").content.decode()


def test_the_efficiency_of_a_pipeline_is_not_called_its_share_of_the_ideal(reader: Client, alice: Any) -> None:
    """Its ideal is lower than the number of devices by its bubble."""
    study = finished(alice, strategies=["gpipe"], ways=["strong"], counts=[1, 2])
    view = overview(study.runs.all(), study.baseline)
    (row,) = [row for row in view.rows if row.run.devices == 2]
    (point,) = [point for point in scaling.points(view) if point.devices == 2]
    assert row.entry.of_ideal == pytest.approx(point.efficiency * 5 / 4)
    told = charts_of(reader, study)
    assert "efficiency" in told["scaling"]["columns"] and "of ideal" not in told["scaling"]["columns"]
    assert "of ideal" in told["speedup"]["columns"] and " efficiency on 2 devices: " in told["scaling"]["title"]


def test_efficiencies_over_a_disturbed_device_are_warned_of_first(alice: Any) -> None:
    study = finished(alice, counts=[1, 2])
    quiet = scaling.verdict(study, overview(study.runs.all(), study.baseline))
    single = study.runs.get(position=0)
    single.summary = {**single.summary, "cpu_others": 0.63}
    single.save(update_fields=("summary",))
    said = scaling.verdict(study, overview(study.runs.all(), study.baseline))
    assert "63 %" in said[0] and said[0].startswith("The baseline, Single, was disturbed")
    assert said[1] == quiet[0] and "efficiency on 2 devices" in said[1]


def test_titles_follow_the_numbers() -> None:
    one = [Point(m, "Single", "single", "", 1, 1.0, 0.0) for m in ("GPT", "VGG-16")]
    gpt = Point("GPT", "DP", "dp", "weak", 4, 3.6, 0.1)
    vgg = Point("VGG-16", "DP", "dp", "weak", 4, 1.2, 0.62)
    assert charts.sentences([*one, gpt, vgg]) == [
        "90 % efficiency on 4 devices: GPT, DP, weak scales best, 3.60x of one.",
        "30 % is the least on 4 devices: VGG-16, DP, weak, 1.20x of one.",
    ]
    stalls = charts.stalls([*one, gpt, vgg], "s")
    assert stalls.title.startswith("62 % of a step stalls on communication: VGG-16, DP, weak on 4 devices")
    assert len({line["marker"]["symbol"] for line in stalls.figure["data"]}) == 2
    shared = [point._replace(cores=2) for point in (*one, gpt._replace(speedup=1.5))]
    assert charts.sentences(shared) == [
        "75 % of what 2 cores allow, shared by 4 devices: GPT, DP, weak scales best, 1.50x of one."
    ]
    assert charts.speedup(shared, "s").figure["data"][0]["y"] == [1, 2], "the ideal speedup ends at the number of cores"
    assert charts.sentences(one) == [] and charts.speedup([], "s").empty


def test_what_may_scale_as_well_is_said_to_be_within_noise() -> None:
    one = Point("", "Single", "single", "", 1, 1.0, 0.0)
    best, other = (
        Point("", "DP", "dp", way, 2, speedup, 0.1, whiskers=(speedup - 0.4, speedup + 0.4))
        for way, speedup in (("weak", 1.3), ("strong", 1.0))
    )
    assert charts.sentences([one, best, other]) == [
        "65 % efficiency on 2 devices: DP, weak scales best, 1.30x of one; DP, strong is within noise.",
        "50 % is the least on 2 devices: DP, strong, 1.00x of one.",
    ]
    far = other._replace(whiskers=(0.8, 0.85))
    assert "noise" not in charts.sentences([one, best, far])[0]


def test_the_whiskers_of_a_point_are_those_of_its_steps(alice: Any) -> None:
    study = finished(alice, counts=[1, 2])
    for point in scaling.points(overview(study.runs.all(), study.baseline)):
        assert point.whiskers and point.whiskers[0] < point.speedup < point.whiskers[1]


def test_other_models_are_not_held_against_the_baseline(client: Client, alice: Any) -> None:
    study = finished(alice, strategies=["dp"], ways=["weak"], counts=[2], models=["mlp"])
    client.force_login(alice)
    page = client.get(f"/studies/{study.pk}/")
    assert {row[0] for row in page.context["charts"]["speedup"].rows} == {"GPT, Single", "GPT, DP, weak"}
    assert {row[0] for row in page.context["charts"]["scaling"].rows} >= {"GPT, DP, weak", "MLP, DP, weak"}
    assert "MLP, Single" in page.content.decode()
    said = "A step is 16 samples, the baseline's batch, also where the run's own differs. Another model has no speedup"
    table = client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()
    assert said in html.unescape(page.content.decode()) and said in html.unescape(
        client.get(f"/studies/{study.pk}/report/").content.decode()
    )
    speedups = {row["label"]: row["speedup"] for row in csv.DictReader(table)}
    assert speedups["GPT, DP, weak"] and not speedups["MLP, Single"] and not speedups["MLP, DP, weak"]
