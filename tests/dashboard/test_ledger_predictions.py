"""Predictions of runs: made when they are queued, settled when they are done, and said on pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.ledger import forms, records, selectors
from dashboard.ledger import simulated as simulated_steps
from dashboard.ledger.models import Prediction, Profile, ProfileState
from dashboard.ledger.services import answer_profile, ask_profile, settle
from dashboard.runs import services, submission
from dashboard.runs.findings import case_of
from dashboard.runs.form.panel import Panel
from dashboard.runs.models import Run, State
from dashboard.studies.new.axes import Axes
from dashboard.studies.services import create_matrix
from dashboard.studies.templatetags.quantities import whole_words
from parallel_core.analysis.quantities import range_text
from parallel_core.known_fields import EARLIEST, without_unknown
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import POINT
from parallel_core.simulate.likely import elsewhere_text
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import unmarked
from tests.parallel_core.tables import table

pytestmark = pytest.mark.django_db
SPEC = factory.PROFILED
MODEL = SPEC.model
EXACT: dict[str, Any] = {"device": "cuda", "deterministic": True}
SPEC_EXACT = RunSpec.model_validate({"model": MODEL.model_dump(), "train": EXACT})


def test_a_run_is_predicted_when_queued_and_settled_when_done(profile: Profile, alice: Any) -> None:
    run = services.submit(owner=alice, spec=SPEC.model_dump(mode="json"))
    said = Prediction.objects.get(run=run)
    assert said.profile == profile and said.seconds and said.memory
    assert records.time_record().sentence() == "No predictions settled yet."
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    run.refresh_from_db()
    measured = {"timed": {"median": said.seconds / 1.25}, "memory": {"peak_total": 2 * said.memory}, "cpu_others": 0.0}
    settle(run, measured)
    assert records.time_record().sentence() == "1 prediction, mean error 25.0 %, bias +25.0 %, worst +25.0 %."
    assert records.memory_record().sentence() == "1 prediction, mean error 50.0 %, bias −50.0 %, worst −50.0 %."
    settle(run, {**measured, "cpu_others": 0.5})
    assert records.time_record().sentence() == "No predictions settled yet (1 disturbed left out)."


def test_runs_with_deterministic_kernels_have_profiles_of_their_own(worker: Worker, alice: Any) -> None:
    """Profiles stored before are of the usual kernels, under the keys that they have: without later fields."""
    plain, exact = (
        RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"device": "cuda", "deterministic": how}})
        for how in (False, True)
    )
    model = {name: value for name, value in MODEL.model_dump(mode="json").items() if f"model.{name}" in EARLIEST}
    stored = hashlib.sha256(json.dumps([model, "fp32", "cuda"], sort_keys=True).encode())
    assert selectors.profile_key(plain) == stored.hexdigest() != selectors.profile_key(exact)
    asked = ask_profile(worker=worker, spec=plain, user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, device="cuda").dump()})
    assert selectors.predicted(plain).seconds and selectors.predicted(exact).unprofiled
    again = ask_profile(worker=worker, spec=exact, user=alice)
    assert again.spec["train"]["deterministic"] is True and again.title == "GPT 4 x 32, fp32, deterministic"
    answer_profile("yard-a", {"profile": again.pk, "table": table(MODEL, **EXACT).dump()})
    assert selectors.predicted(exact).profile == again and selectors.predicted(plain).profile == asked


def test_a_worker_that_knows_only_the_usual_kernels_has_not_profiled_the_deterministic_ones(
    worker: Worker, alice: Any, member: Client
) -> None:
    asked = ask_profile(worker=worker, spec=SPEC_EXACT, user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, device="cuda").dump()})
    asked.refresh_from_db()
    assert asked.state == ProfileState.FAILED and not asked.table
    assert selectors.predicted(SPEC_EXACT).unprofiled and selectors.last_failure() == asked
    page = member.get(reverse("ledger:partition")).content.decode()
    assert "yard-a is too old to profile deterministic kernels" in page


@pytest.mark.parametrize(
    ("state", "keyed", "has", "now"),
    [
        ("done", "usual", {}, "usual"),  # before deterministic kernels had profiles of their own
        ("failed", "usual", None, "usual"),
        ("asked", "usual", None, "exact"),
        ("done", "exact", {"deterministic": False}, "usual"),  # a worker of an older version answered
        ("done", "usual", {"deterministic": True}, "exact"),  # asked for before, answered after
        ("done", "exact", {"deterministic": True}, "exact"),
        ("failed", "exact", None, "exact"),
    ],
)
def test_profiles_from_before_say_which_kernels_they_measured(
    worker: Worker, alice: Any, state: str, keyed: str, has: dict[str, bool] | None, now: str
) -> None:
    usual = SPEC_EXACT.model_copy(update={"train": SPEC_EXACT.train.model_copy(update={"deterministic": False})})
    specs = {"usual": usual, "exact": SPEC_EXACT}
    costs = table(MODEL, device="cuda").dump()
    del costs["deterministic"]
    profile = Profile.objects.create(
        worker=worker,
        spec=without_unknown(SPEC_EXACT.model_dump(mode="json"), ()),  # without the fields that came later
        key=selectors.profile_key(specs[keyed]),
        state=state,
        table={} if has is None else costs | has,
        done_at=timezone.now(),
    )
    for _ in range(2):
        import_module("dashboard.ledger.migrations.0015_kernels").tell_kernels(apps, None)
        profile.refresh_from_db()
        assert RunSpec.stored(profile.spec) == specs[now] and profile.key == selectors.profile_key(specs[now])
    if state == "done":
        assert selectors.predicted(specs[now]).profile == profile


def test_on_cpus_a_profile_serves_deterministic_runs_too(profile: Profile) -> None:
    exact = SPEC.model_copy(update={"train": SPEC.train.model_copy(update={"deterministic": True})})
    assert selectors.predicted(exact).profile == profile


def test_models_are_offered_with_either_kernels(alice: Any) -> None:
    for how in (False, True):
        factory.queued(alice, train={"device": "cuda", "deterministic": how})
    titles = [title for title in forms.models() if title.startswith("GPT 4 x 64") and ", CUDA GPU" in title]
    assert len(titles) == 2 and sum(title.endswith(", deterministic") for title in titles) == 1


def test_a_prediction_says_how_far_the_drift_of_its_devices_may_take_it(
    worker: Worker, alice: Any, member: Client
) -> None:
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    moments = [(0.8, 1.2), (1.2, 0.8), (1.3, 1.0), (0.7, 1.0)]
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, spells=moments).dump()})
    run, said = submitted(alice, {"dp": 2})
    assert said.low_seconds and said.seconds and said.high_seconds
    assert said.low_seconds < said.seconds < said.high_seconds
    panel = Panel.of(submission.assess(run.spec))
    assert f"predicted ({elsewhere_text(said.low_seconds, said.high_seconds)}); simulated from" in panel.step
    within, beyond = (said.high_seconds * share for share in (0.99, 1.01))
    for median, inside in ((within, 1), (beyond, 0)):
        settle(run, {"timed": {"median": median}, "memory": None, "cpu_others": 0.0})
        assert records.time_record().inside == inside and len(records.time_record().as_likely) == 1
        page = member.get(reverse("ledger:record")).content.decode()
        assert f"{inside} of 1 lay in the range said for eight of ten" in page
        assert range_text(said.low_seconds, said.high_seconds) in page
    settle(run, {"timed": {"median": within}, "memory": None, "cpu_others": 0.5})
    assert records.time_record().as_likely == (), "a disturbed run does not count"


def test_what_is_not_settled_is_said_once() -> None:
    none, one = records.Record(), records.Record((0.25,))
    assert records.of_both(none, none) == ("No predictions settled yet.", "")
    assert records.of_both(none, one)[0] == "No step times settled yet."
    assert records.of_both(one, none)[0].startswith("Step times: 1 prediction, ")


def test_what_is_left_out_is_counted_by_its_reason() -> None:
    kinds = [records.Record(disturbed=noisy, elsewhere=away) for noisy, away in ((0, 0), (2, 0), (0, 1), (2, 1))]
    assert [kind.sentence() for kind in kinds] == [
        "No predictions settled yet.",
        "No predictions settled yet (2 disturbed left out).",
        "No predictions settled yet (1 on other hosts left out).",
        "No predictions settled yet (3 left out: 2 disturbed, 1 on other hosts).",
    ]


def test_a_run_on_a_slower_host_is_held_against_its_own_pace_too(worker: Worker, alice: Any, member: Client) -> None:
    """The original prediction stays and counts. A second number says how much of its error came from the speed of the
    host.
    """
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, reference={1: 0.002, 2: 0.002}).dump()})
    run, said = submitted(alice, {})
    assert said.seconds
    measured = {"timed": {"median": 1.5 * said.seconds}, "memory": None, "cpu_others": 0.0}
    settle(run, measured)
    assert Prediction.objects.get(run=run).paced_seconds is None and not records.paced_record().errors
    paces(run, [0.003] * 6)
    settle(run, measured)
    now = Prediction.objects.get(run=run)
    assert now.seconds == said.seconds and now.time_error == "−33.3 %"
    assert now.paced_seconds == pytest.approx(1.5 * said.seconds, rel=0.02) and now.paced_error in ("+0.0 %", "0.0 %")
    page = member.get(reverse("ledger:record")).content.decode()
    assert f"at its pace {whole_words(now.paced_error)}" in page and records.paced_record().sentence() in page


def test_rules_know_the_pace_of_each_rank(profile: Profile, alice: Any) -> None:
    """The median of the times that the rank reported; None for a rank that did not do the reference work."""
    run, _ = submitted(alice, {"dp": 2})
    assert case_of(run).paces == {}
    paces(run, [0.003, 0.001, 0.009])
    assert case_of(run).paces == {0: 0.003}
    assert case_of(run).slower_device(0, [1]) is None


def test_its_pace_is_that_of_whoever_was_slow_at_each_moment(worker: Worker, alice: Any) -> None:
    """On average each of two replicas is as fast as in the profile, but one of them is always slow. The pace must
    follow the slower rank at each moment; a moment that only one rank reported is ignored.
    """
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, reference={1: 0.002, 2: 0.002}).dump()})
    run, said = submitted(alice, {"dp": 2})
    paces(run, [0.003] * 3 + [0.001] * 3, [0.001] * 3 + [0.003] * 3 + [0.009])
    assert said.seconds
    settle(run, {"timed": {"median": said.seconds}, "memory": None, "cpu_others": 0.0})
    assert Prediction.objects.get(run=run).paced_seconds == pytest.approx(1.5 * said.seconds, rel=0.05)


def submitted(owner: Any, split: dict[str, Any]) -> tuple[Run, Prediction]:
    """A run that has succeeded, and its prediction."""
    run = services.submit(owner=owner, spec={**SPEC.model_dump(mode="json"), "parallel": split})
    factory.start(run)
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    run.refresh_from_db()
    return run, Prediction.objects.get(run=run)


def paces(run: Run, *of_ranks: Sequence[float]) -> None:
    """Feeds the times that each rank took for the reference work, step by step."""
    attempt = run.attempts.get()
    for rank, values in enumerate(of_ranks):
        rows = np.array([(step, 0.0, value) for step, value in enumerate(values)], POINT)
        head = {"kind": "points", "rank": rank, "t": 0.0, "series": [["reference_time", len(rows)]]}
        factory.feed(attempt, rank, encode(head, rows.tobytes()))


def test_an_older_profile_answers_for_a_split_that_the_newest_has_not(
    profile: Profile, worker: Worker, alice: Any
) -> None:
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, tps=(1,)).dump()})
    wide = RunSpec.model_validate(SPEC.model_dump() | {"parallel": {"tp": 2}})
    assert selectors.predicted(SPEC).profile == Profile.objects.get(pk=asked.pk)
    assert selectors.predicted(wide).profile == profile
    profile.delete()
    assert "profile that width too" in selectors.predicted(wide).why_not


def test_a_study_simulates_each_setting_once_and_before_its_transaction(
    profile: Profile, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: list[tuple[str, int]] = []

    def noted(spec: RunSpec, *args: Any, **kwargs: Any) -> Any:
        simulated.append((spec.model_dump_json(), len(connection.savepoint_ids)))
        return predict_step(spec, *args, **kwargs)

    monkeypatch.setattr(simulated_steps, "predict_step", noted)
    outside = len(connection.savepoint_ids)
    study = create_matrix(
        owner=alice,
        name="thrice",
        base=SPEC.model_dump(mode="json"),
        axes=Axes(["single", "dp"], recompute=["none"]),
        repeats=3,
    )
    assert len(simulated) == len({spec for spec, _ in simulated}) == 2
    assert {depth for _, depth in simulated} == {outside}, "the database is locked only to write"
    said = Prediction.objects.filter(run__study=study)
    assert said.count() == 6 and len(set(said.values_list("seconds", flat=True))) == 2
    assert study.baseline == study.runs.order_by("position").first()


def test_what_a_form_has_shown_is_not_simulated_again_when_it_is_queued(
    profile: Profile, worker: Worker, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what differs only in what no step time depends on; a newer profile, or another split, is simulated."""
    simulated: list[RunSpec] = []

    def noted(spec: RunSpec, *args: Any, **kwargs: Any) -> Any:
        simulated.append(spec)
        return predict_step(spec, *args, **kwargs)

    def changed(room: str, **fields: Any) -> RunSpec:
        plain = SPEC.model_dump(mode="json")
        return RunSpec.model_validate({**plain, room: plain[room] | fields})

    monkeypatch.setattr(simulated_steps, "predict_step", noted)
    shown = selectors.predicted(SPEC)
    run = services.submit(owner=alice, spec=SPEC.model_dump(mode="json"))
    assert Prediction.objects.get(run=run).seconds == shown.seconds
    alike = [changed("train", lr=0.5, seed=3, clip_norm=2.0), changed("trace", trace_every=1)]
    assert {selectors.predicted(one).seconds for one in alike} == {shown.seconds}
    assert simulated == [SPEC]
    for i, other in enumerate((changed("train", clip_norm=None), changed("parallel", dp=2)), 2):
        assert selectors.predicted(other).seconds and len(simulated) == i
    newer = factory.profiled(alice, worker, SPEC)
    assert selectors.predicted(SPEC).profile == newer and len(simulated) == 4


def test_without_a_profile_memory_alone_is_predicted(alice: Any) -> None:
    said = Prediction.objects.get(run=services.submit(owner=alice, spec=SPEC.model_dump(mode="json")))
    assert said.seconds is None and said.memory
    assert "no worker has profiled" in selectors.predicted(SPEC).why_not


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"pp": 2, "micro_batches": 1024}, "this one has about 4\N{NO-BREAK SPACE}096"),
        ({"pp": 2, "micro_batches": 512, "schedule": "1f1b-2bw"}, "this one has about 36\N{NO-BREAK SPACE}864"),
    ],
)
def test_a_step_of_many_operations_is_not_simulated_while_somebody_waits(
    profile: Profile, alice: Any, monkeypatch: pytest.MonkeyPatch, split: dict[str, Any], said: str
) -> None:
    """Neither in the form nor when it is queued; its memory is predicted."""
    train = SPEC.model_dump()["train"] | {"global_batch": split["micro_batches"], "clip_norm": None}
    long = RunSpec.model_validate(SPEC.model_dump() | {"parallel": split, "train": train})
    monkeypatch.setattr(selectors, "predict_step", lambda *args, **kwargs: pytest.fail("it was simulated"))
    assert selectors.predicted(long).why_not.endswith(said)
    queued = Prediction.objects.get(run=services.submit(owner=alice, spec=long.model_dump(mode="json")))
    assert queued.seconds is None and queued.memory


def test_new_run_says_what_a_step_will_take(profile: Profile, member: Client) -> None:
    page = member.get("/runs/new/", {"spec": SPEC.model_dump_json()}).content.decode()
    assert "simulated from the profile of yard-a" in unmarked(page) and 'value="32"' in page


def test_new_run_says_where_a_profile_is_made(member: Client) -> None:
    page = member.get("/runs/new/", {"spec": SPEC.model_dump_json()}).content.decode()
    assert 'no worker has profiled this model (<a href="/partition/">' in page.replace("&#x27;", "'")


def test_a_new_study_says_what_steps_will_take(profile: Profile, alice: Any, member: Client) -> None:
    run = services.submit(owner=alice, spec=SPEC.model_dump(mode="json"))
    page = member.get("/studies/new/", {"run": run.pk}).content.decode()
    assert "a step predicted" in page and "No predictions settled yet." in page


def test_the_record_lists_what_was_said_and_what_came(profile: Profile, alice: Any, member: Client) -> None:
    assert "Nothing settled yet" in member.get("/partition/record/").content.decode()
    run = services.submit(owner=alice, spec=SPEC.model_dump(mode="json"), name="<b>one</b>")
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    run.refresh_from_db()
    settle(run, {"timed": {"median": 1.0}, "memory": None, "cpu_others": None})
    text = member.get("/partition/record/").content.decode()
    assert "&lt;b&gt;one&lt;/b&gt;" in text and "1 of 1 shown" in text
    accuracy = member.get("/planner/accuracy/").content.decode()
    assert "Runs of this yard" in accuracy and "&lt;b&gt;one&lt;/b&gt;" in accuracy and "/partition/record/" in accuracy
    assert "/planner/accuracy/" in text
    named = f'</a> <span class="small sub">{run.label}</span>'
    assert named in text, "a name of its own does not say the strategy"
    Run.objects.filter(pk=run.pk).update(name=run.label)
    assert named not in member.get("/partition/record/").content.decode(), "the same words once, not in two columns"
