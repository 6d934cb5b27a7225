"""The Partition page follows its address, and offers plans for the fleet whose hosts have a profile."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.analyst.models import Search
from dashboard.ledger.alpa_part import Part
from dashboard.ledger.fleet_page import MOST_MIB
from dashboard.ledger.forms import models
from dashboard.ledger.models import Prediction, Profile, ProfileState
from dashboard.ledger.optimizers import named, with_optimizer
from dashboard.runs import services
from parallel_core.analysis.quantities import count_text
from parallel_core.plan.alpa.plans import OPTIMUM, OVERSIZE
from parallel_core.plan.room import FRAMEWORK
from parallel_core.searches.alpa import Answer, Question
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.run_analyst import answered

pytestmark = pytest.mark.django_db
SPEC = factory.PROFILED
MODEL = SPEC.model


def test_alpas_plans_come_with_the_others(member: Client, profile: Profile) -> None:
    page = member.get("/partition/", {"profile": profile.pk, "workers": 2, "samples": 4})
    address = page.context["page"].alpa
    assert address in page.content.decode().replace("&amp;", "&")
    waits = member.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "Searching Alpa" in waits and 'id="alpa"' not in waits, (
        "the answer replaces this element, so it must not contain another card with the same id"
    )
    answer = answered(member, address, part=True)
    rows = {row.name: row for row in answer.context["rows"]}
    assert {"Alpa's optimum", "Alpa, 2 replicas", "Alpa, 2 stages", "Alpa, 2 tensor ranks"} <= set(rows)
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(rows["Alpa, 2 tensor ranks"].run).query)["spec"][0])
    assert (spec.parallel.tp, spec.parallel.micro_batches, spec.model) == (2, 4, MODEL)
    assert rows["Alpa, 2 stages"].simulated and rows["PipeDream's optimum"].seconds
    assert "a step is the least of any plan" in answer.content.decode()
    assert member.get("/partition/alpa").status_code == 422
    odd = member.get("/partition/alpa", {"profile": str(profile.pk), "workers": "3", "samples": "4", "replicas": "3"})
    assert odd.status_code == 200


def test_the_answer_stands_before_the_form_that_asks_for_another_profile(member: Client, profile: Profile) -> None:
    """It filled the first screen; what became of a profile that was asked for is said there."""
    answer, asks = 'id="result"', 'id="profile-title"'
    page = member.get("/partition/").content.decode()
    assert 0 < page.index('<a href="#profile-title">') < page.index(answer) < page.index(asks)
    failed = Profile.objects.create(
        worker=profile.worker,
        spec=profile.spec,
        asked_by=profile.asked_by,
        state=ProfileState.FAILED,
        error="Ended.",
        done_at=timezone.now(),
        key=profile.key,
    )
    page = member.get("/partition/").content.decode()
    assert 0 < page.index(asks) < page.index('id="failed-profile"') < page.index(answer)
    failed.delete()
    Profile.objects.all().delete()
    page = member.get("/partition/").content.decode()
    assert asks in page and answer not in page and "#profile-title" not in page


def test_the_optimum_is_told_with_its_stages_and_replicas(member: Client, profile: Profile) -> None:
    page = plain(member.get(f"/partition/?profile={profile.pk}&workers=2&cuts=1").content.decode())
    assert re.search(r"is \d\.\d\d times as fast: 1 stage of 2 replicas\.", page), page[:3000]


@pytest.mark.full
def test_alpas_plans_fit_the_devices_of_the_profiles_worker(member: Client, profile: Profile) -> None:
    address = f"/partition/alpa?profile={profile.pk}&workers=2&samples=4"
    roomy = answered(member, address, part=True)
    assert "is the least of any plan that fits" in roomy.context["part"].sentence()
    assert "2 devices of 4 GiB less 300 MiB for the framework" in plain(roomy.content.decode())
    worker = profile.worker
    worker.devices = [{**device, "memory_total": FRAMEWORK["cpu"] + 1_200_000} for device in worker.devices]
    worker.save()
    tight = {row.name: row for row in answered(member, address, part=True).context["rows"]}
    larger = tight["Alpa's optimum with more memory"]
    assert not larger.run and larger.note == "It needs 1.3 MiB of 1.1 MiB a device."
    assert "Alpa, 2 replicas" not in tight and tight["Alpa, 2 tensor ranks"].run


CUT_OFF = "The search within 1 MiB a device did not finish."
LEAST = "500 ms a step is the least"


@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        (OPTIMUM, {}, f"{LEAST} of any plan that fits: 2 × 1. No run of this model has a plan that fits."),
        (
            OPTIMUM,
            {"unfinished": CUT_OFF},
            f"{CUT_OFF} {LEAST} of the plans found: 2 × 1. None that can run was found.",
        ),
        (
            OPTIMUM,
            {"unfinished": CUT_OFF, "runnable": 1.0},
            f"{CUT_OFF} {LEAST} of the plans found: 2 × 1. The best that can run takes 2.00 times as long.",
        ),
        (OVERSIZE, {"unfinished": CUT_OFF}, f"{CUT_OFF} With more memory {LEAST} of any plan: 2 × 1."),
    ],
)
def test_alpas_sentence_claims_no_more_than_was_searched(
    name: str, answer: dict[str, Any], told: str, profile: Profile
) -> None:
    rows = [{"name": name, "meshes": [[2, 1]], "seconds": 0.5, "memory": 1e6}]
    part = Part(profile, 4, 2, "paper", None)
    part.found = Answer.model_validate({"rows": rows, "stages": [], "runnable": None, **answer})
    assert part.sentence() == told


def test_a_plan_of_others_may_be_faster_than_alpas_optimum(profile: Profile) -> None:
    """Of a model with more layers than Alpa's search has groups, or where a stage has three devices."""
    part, names = Part(profile, 4, 2, "paper", None), (OPTIMUM, OVERSIZE, "PipeDream's optimum")
    plans = [{"name": name, "meshes": [[i + 1, 1]], "memory": 1e6} for i, name in enumerate(names)]
    rows = [{**plan, "seconds": seconds} for plan, seconds in zip(plans, (0.51, 0.4, 0.5), strict=True)]
    rows[2]["spec"] = {}
    part.found = Answer.model_validate({"rows": rows, "stages": [], "runnable": 0.5})
    assert part.sentence() == (
        f"{LEAST} of any plan that fits by PipeDream's optimum: 3 × 1. It can run. Alpa's optimum takes 2 % longer: "
        "it cuts between 24 groups of layers at most, over 1, 2, 4 … devices a stage."
    )
    rows[2]["seconds"] = 0.5098  # both are 510 ms in the table
    part.found = Answer.model_validate({"rows": rows, "stages": [], "runnable": 0.5098})
    assert part.sentence().startswith("510 ms a step is the least of any plan that fits: 1 × 1.")


def test_without_a_known_memory_alpas_sentence_has_no_limit(profile: Profile) -> None:
    profile.worker.devices = []
    part = Part(profile, 4, 2, "paper", None)
    rows = [{"name": OPTIMUM, "meshes": [[2, 1]], "seconds": 0.5}]
    part.found = Answer.model_validate({"rows": rows, "stages": [], "runnable": None})
    assert part.sentence() == f"{LEAST} of any plan: 2 × 1. No run of this model has such a plan."


@pytest.mark.full
def test_alpas_table_has_pipedreams_optimum_by_the_form_of_the_page(member: Client, profile: Profile) -> None:
    cuts = {}
    for form in ("paper", "released"):
        page = member.get("/partition/", {"profile": profile.pk, "workers": 2, "samples": 4, "form": form}).context[
            "page"
        ]
        rows = {row.name: row for row in answered(member, page.alpa, part=True).context["rows"]}
        cuts[form] = rows["PipeDream's optimum"].cuts
    paper = member.get("/partition/", {"profile": profile.pk, "workers": 2, "samples": 4}).context["page"]
    assert paper.named_cuts[1].chain.cuts == () and cuts == {"paper": "none", "released": "6"}


def test_this_fleet_is_a_cluster_of_the_planner(member: Client, profile: Profile) -> None:
    text = member.get("/planner/").content.decode()
    assert "This fleet, measured" in text and f'value="fleet:{profile.pk}"' in text
    asked = {"cluster": f"fleet:{profile.pk}", "devices": "2", "memory": "2"}
    page = member.get("/planner/", asked)
    assert page.context["fleet"] == f"profile={profile.pk}&devices=2&memory=2048.0"
    assert "cannot be planned" not in page.content.decode()
    splits = answered(member, f"{reverse('ledger:fleet-found')}?{page.context['fleet']}", part=True).content.decode()
    assert "Launch this plan" in splits
    assert member.get("/planner/plans.json", asked).status_code == 422
    for wrong in ("fleet:0", "fleet:x", "fleet:"):
        refused = member.get("/planner/", {"cluster": wrong})
        assert refused.status_code == 200 and "cannot be planned" in refused.content.decode()


def test_plans_for_this_fleet_can_be_launched(member: Client, profile: Profile) -> None:
    answer = answered(member, "/partition/fleet/?devices=2")
    rows, text = answer.context["page"].rows(), plain(answer.content.decode())
    assert f"{rows[0].seconds} a step: {rows[0].name} is the fastest of" in text
    assert text.count("Launch this plan") == len(rows)
    assert f"{len(rows)} of {len(answer.context['page'].found.able)} splits that can run" in text
    found, search = answer.context["page"].found, Search.objects.get()
    more = sum(way.found for way in found.able)
    words = f"the fastest of {search.of} splits, and of {more} whose cuts, order or recomputation were searched for"
    assert more and words in text, "as counted by the search"
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(rows[0].address).query)["spec"][0])
    run = services.submit(owner=profile.asked_by, spec=spec.model_dump(mode="json"))
    settled = Prediction.objects.get(run=run)
    assert settled.seconds == pytest.approx(answer.context["page"].found.able[0].seconds)


@pytest.mark.full  # as below
def test_plans_that_a_little_memory_refuses_are_counted(member: Client, profile: Profile) -> None:
    little = answered(member, "/partition/fleet/?memory=301")  # of which 300 MiB are not for tensors
    able, refused = little.context["page"].found.able, little.context["page"].refused()
    assert refused[-1][1] == "too large" or refused[0][1] == "too large"
    assert all(way.memory <= 1 << 20 for way in able)
    assert f"{refused[0][0]} splits: {refused[0][1]}" in little.content.decode()


@pytest.mark.full  # Alpa's search of a model that only just fits takes long
def test_what_the_devices_have_is_the_limit_where_none_is_asked_for(member: Client, profile: Profile) -> None:
    found = answered(member, "/partition/fleet/")
    assert " devices of 4 GiB less 300 MiB for the framework at most" in plain(found.content.decode())
    assert found.context["page"].found.able
    worker = profile.worker
    worker.devices = [one | {"memory_total": (4 << 30, 301 << 20)[one["index"] == 1]} for one in worker.devices]
    worker.save()
    little = answered(member, "/partition/fleet/").context["page"]
    assert little.found.able and all(way.memory <= 1 << 20 for way in little.found.able if way.devices == 2)
    assert any(way.memory > 1 << 20 for way in little.found.able), "a run on one device has the larger"
    assert "memory" not in little.query
    worker.devices = [one | {"memory_total": 0} for one in worker.devices]  # a host that reports no memory
    worker.save()
    assert answered(member, "/partition/fleet/").context["page"].each == ""


def test_devices_and_memory_that_cannot_be_are_said_before_anything_is_searched(
    member: Client, profile: Profile
) -> None:
    wrong = member.get("/partition/fleet/found", {"devices": 0}, headers={"HX-Request": "true"})
    assert wrong.status_code == 422 and "Devices must be a whole number from 1 to" in wrong.content.decode()
    page = member.get("/partition/fleet/", {"devices": 0}).content.decode()
    assert "Devices must be a whole number from 1 to" in page and "Devices: Devices" not in page
    part = member.get("/partition/fleet/", {"devices": 0}, headers={"HX-Request": "true"})
    assert part.status_code == 200, "or it would not be shown"
    changed = part.content.decode()
    assert "Devices must be" in changed and 'id="error-memory" hx-swap-oob' in changed and "<form" not in changed
    right = f"from 301 to {count_text(MOST_MIB)}, as the framework takes 300"
    for memory in ("1", "300", "300.9"):
        none = member.get("/partition/fleet/found", {"memory": memory}, headers={"HX-Request": "true"})
        told = f"Memory a device, MiB must be {right}; got {memory}."
        assert none.status_code == 422 and plain(none.content.decode()).count(told) == 1, memory
    alone = member.get("/partition/fleet/found", {"devices": 2})
    assert alone.status_code == 302 and alone.headers["Location"] == "/partition/fleet/?devices=2"
    odd = member.get("/partition/alpa", {"profile": str(profile.pk), "cuts": "9,2"}, headers={"HX-Request": "true"})
    assert odd.status_code == 200 and "Cuts must rise" in odd.content.decode()
    assert not Search.objects.exists()


def test_wrong_cuts_are_said_at_their_field(member: Client, profile: Profile) -> None:
    """Both in the page and in the fragment that HTMX requests."""
    asked = {"profile": str(profile.pk), "cuts": "99,x"}
    told = "Whole numbers are needed, separated by commas; got 99,x."
    whole = member.get("/partition/", asked).content.decode()
    assert f'<p class="error" id="error-cuts">{told}</p>' in whole and "hx-swap-oob" not in whole
    part = member.get("/partition/", asked, headers={"HX-Request": "true"}).content.decode()
    assert f'<p class="error" id="error-cuts" hx-swap-oob="true">{told}</p>' in part
    assert '<p class="error" id="error-replicas" hx-swap-oob="true"></p>' in part
    beyond = member.get("/partition/", asked | {"cuts": "99"}, headers={"HX-Request": "true"}).content.decode()
    assert "Cuts must rise" in beyond.partition('id="error-cuts"')[2][:200]


def test_without_a_profile_the_fleet_page_says_what_to_do(member: Client) -> None:
    assert "No profile yet" in member.get("/partition/fleet/").content.decode()


def test_the_page_follows_its_address(profile: Profile, member: Client) -> None:
    page = member.get("/partition/", {"profile": str(profile.pk), "cuts": "2", "replicas": "1-1", "samples": "4"})
    text = page.content.decode()
    assert page.status_code == 200
    assert "Stage 1 sets the pace" in text and "Exact min-max split" in text and "NOAM" in text
    made = page.context["page"]
    assert made.yours.cuts == (2,)
    optimum, exact, even = made.named_cuts[1:]
    assert optimum.chain.seconds <= exact.chain.seconds <= made.yours.seconds
    assert even.chain.cuts == (MODEL.units().index("block.2.attn"),)
    moved = member.get(page.context["stages"][1]["later"])
    assert moved.context["page"].yours.cuts == (3,)
    form = member.get(page.context["run_address"])
    assert form.context["form"].assessment.spec.parallel.cuts == (2,)
    assert form.context["form"].assessment.spec.micro_batch_size == 4


def test_each_colour_of_the_layers_charts_is_in_the_legend(profile: Profile, member: Client) -> None:
    page = member.get("/partition/", {"profile": str(profile.pk), "samples": "4"})
    text = page.content.decode()
    for name in ("forward", "backward"):
        assert f'<li data-phase="{name}">{name}</li>' in text
    for name, word in (("activations", "activations"), ("params", "parameters")):
        assert f'<li data-category="{name}">{word}</li>' in text
    assert '<i data-category="' not in text, "a stage's time has no colour of memory"


def test_unequal_replicas_run_as_pipedream_does(profile: Profile, member: Client) -> None:
    page = member.get("/partition/", {"profile": str(profile.pk), "cuts": "5", "replicas": "2-1", "samples": "4"})
    form = member.get(page.context["run_address"])
    split = form.context["form"].assessment.spec.parallel
    assert (split.replicas, split.cuts, split.schedule, split.world) == ((2, 1), (5,), "1f1b-stash", 3)
    assert 'value="2, 1"' in form.content.decode()
    page = member.get("/partition/", {"profile": str(profile.pk), "cuts": "5", "replicas": "3-1", "samples": "16"})
    assert not page.context["run_address"] and "Replicas of each stage = 3-1 needs at least 3" in page.content.decode()


def test_what_is_left_empty_shows_what_stands_in_for_it(profile: Profile, member: Client) -> None:
    page = member.get("/partition/", {"profile": profile.pk})
    asked, text = page.context["page"].asked, page.content.decode()
    assert f'placeholder="{asked.samples}"' in text and f'placeholder="{asked.workers}"' in text
    assert f"Micro-batches of {asked.samples} samples on {asked.workers} devices." in text and "-----" not in text


@pytest.mark.full
@pytest.mark.parametrize(("kind", "norms"), [("resnet50", True), ("vgg16", False)])
def test_what_batch_norms_exchange_between_replicas_is_said_to_be_left_out(
    member: Client, alice: Any, profile: Profile, kind: str, norms: bool
) -> None:
    given = {"model": {"kind": kind, "width": 2}, "train": {"global_batch": 16, "corpus": "digits"}}
    found = factory.profiled(alice, profile.worker, RunSpec.model_validate(given))
    said = "Replicas would also exchange statistics at 53 batch norms, forward and backward, which this cost leaves out"
    page = member.get("/partition/", {"profile": str(found.pk), "replicas": "2", "workers": "2"}).content.decode()
    assert (said in page) == norms
    alone = member.get("/partition/", {"profile": str(found.pk), "replicas": "1", "workers": "1"}).content.decode()
    assert "statistics" not in alone, "one device has no replicas"
    alpa = answered(member, f"/partition/alpa?profile={found.pk}&workers=2&samples=8", part=True).content.decode()
    assert ("leaves out the statistics that replicas exchange at 53 batch norms;" in alpa) == norms


def test_cuts_alone_ask_for_a_device_a_stage(profile: Profile, member: Client) -> None:
    """Otherwise the optimum is over fewer devices than yours, and nothing faster is said to be where it is."""
    page = member.get("/partition/", {"profile": str(profile.pk), "cuts": "1, 2, 3"}).context["page"]
    assert page.asked.replicas == (1, 1, 1, 1) and page.asked.workers == 4


def test_others_are_held_against_as_many_devices_as_yours_take(profile: Profile, member: Client) -> None:
    asked = {"profile": str(profile.pk), "cuts": "2", "replicas": "2-1", "samples": "4"}
    page = member.get("/partition/", {**asked, "workers": "2"})
    assert sum(page.context["page"].named_cuts[1].chain.replicas) == page.context["page"].asked.workers == 3
    page = member.get("/partition/", {**asked, "workers": "4"})
    assert "on 3 devices. NOAM = ⌈3 devices / 2" in page.content.decode()
    joined = member.get(page.context["stages"][1]["join"]).context["page"]
    assert (joined.asked.workers, joined.yours.replicas) == (2, (2,))


@pytest.mark.parametrize(
    ("asked", "heading", "told"),
    [
        ({"cuts": "9,2"}, "These cuts cannot be", "Cuts must rise"),
        ({"cuts": "x"}, "These cuts cannot be", "Cuts: Whole numbers"),
        ({"cuts": "2", "replicas": "2-1-1"}, "These cuts cannot be", "2 stages need 2 numbers"),
        ({"samples": "4000"}, "These values cannot be", "more than the batch"),
        ({"profile": "77"}, "There is no such profile", "Choose a finished profile"),
    ],
)
def test_what_cannot_be_is_said(
    profile: Profile, member: Client, asked: dict[str, str], heading: str, told: str
) -> None:
    page = member.get("/partition/", {"profile": str(profile.pk), **asked})
    assert page.status_code == 200 and told in page.content.decode()
    assert f"<h2>{heading}</h2>" in page.content.decode()


def test_who_may_only_look_is_led_to_no_form_that_refuses(member: Client, reader: Client, profile: Profile) -> None:
    """Nothing on these pages leads a viewer to New run, where they would be refused; each leads a member there."""
    asked = {"profile": profile.pk, "workers": 2, "samples": 4}
    for address, query in (
        ("/partition/", asked),
        ("/schedules/strategies/", {}),
        ("/schedules/", {}),
        ("/planner/", {"model": "gpt-125m", "devices": "2", "batch": "16"}),
    ):
        to_members, to_viewers = (client.get(address, query).content.decode() for client in (member, reader))
        assert "/runs/new/" not in to_viewers, address
        assert "/runs/new/" in to_members or "planner" in address, address


def test_who_may_only_look_is_told_to_do_nothing(reader: Client, member: Client, profile: Profile) -> None:
    """A viewer was told to launch plans and to choose a worker, and read "for members" in each row."""
    address = "/partition/fleet/?devices=1"
    assert plain(answered(member, address).content.decode()).count("Launch any of them") == 1
    seen = plain(reader.get(address).content.decode()).partition("<main")[2]
    assert "Fastest splits" in seen and "for members" not in seen and "Launch" not in seen
    assert "Profile another model" not in reader.get("/partition/").content.decode()
    Profile.objects.all().delete()
    assert "Choose a worker" not in reader.get("/partition/").content.decode()
    assert "a member of the yard profiles a model first" in reader.get("/partition/fleet/").content.decode()
    assert 'href="/partition/">profile a model' in member.get("/partition/fleet/").content.decode()


@pytest.mark.full
def test_plans_count_the_states_of_the_chosen_optimizer(member: Client, profile: Profile) -> None:
    """AdamW's unless another is chosen, whatever the run trained with whose spec was profiled."""
    profile.spec = with_optimizer(profile.spec, "plain-sgd")
    profile.save()
    fleet = {}
    for name, states in (("", 2), ("plain-sgd", 0)):
        answer = answered(member, f"/partition/fleet/?profile={profile.pk}&devices=1&optimizer={name}")
        page = answer.context["page"]
        assert ", 1 device of" in plain(answer.content.decode())
        fleet[name] = min(split.memory for split in page.found.able)
        (memory,) = (sentence for sentence in page.sentences() if sentence.startswith("Least memory"))
        assert memory.endswith(f" with {named(name)}.")
        assert page.found.able[0].devices == 1 and "times as fast as" not in page.sentences()[0], "as itself"
        first = page.rows()[0].address
        train = RunSpec.model_validate_json(parse_qs(urlsplit(first).query)["spec"][0]).train
        assert train.optimizer_states == states
    assert fleet[""] > fleet["plain-sgd"]
    for name, states in (("", 2), ("sgd", 1), ("plain-sgd", 0)):
        part = Part(profile, 4, 1, "paper", None, name)
        assert Question.model_validate(part._question()).spec.train.optimizer_states == states
        assert part.optimizer == named(name)
    refused = member.get(f"/partition/fleet/?profile={profile.pk}&optimizer=lion").content.decode()
    assert "must be adamw, sgd or plain-sgd" in plain(refused)


def test_models_to_profile_name_their_device_as_other_pages_do() -> None:
    assert any(title.endswith("fp32, CPU") for title in models()) and not any(", cpu" in title for title in models())
