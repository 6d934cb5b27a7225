"""Values that cannot be planned are reported at their field: no stack trace, no silent replacement, no endless
computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django import forms
from django.test import Client

from dashboard.fields import Choice, Number, WholeNumber
from dashboard.ledger.graph_views import GraphForm
from dashboard.ledger.models import Profile
from dashboard.plans.forms import PlannerForm
from dashboard.schedules.forms import ScheduleForm
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.plan_timeline import drawn
from parallel_core.spec import ModelSpec, RunSpec
from tests.dashboard import factory

pytestmark = pytest.mark.django_db
MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16)
BATCH = 16
PLANNER = "/planner/"
OF_DJANGO = (forms.IntegerField, forms.FloatField, forms.ChoiceField, forms.TypedChoiceField)
"""Django's own messages for these fields name neither the field nor what would be valid."""


@pytest.fixture
def profile(alice: Any) -> Profile:
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": BATCH}})
    return factory.profiled(alice, factory.worker(devices=1), spec)


@pytest.mark.parametrize(
    ("page", "asked", "field", "words"),
    [
        (PLANNER, {"half": "1e-308"}, "half", "Must be from 0.000001 to "),
        (PLANNER, {"link": "1e-9"}, "link", "Must be from 0.000001 to 100\xa0000 GB/s; got 1e-09."),
        (PLANNER, {"per_host": "0"}, "per_host", "Must be from 1 to 1"),
        (PLANNER, {"memory": "2000", "reserved": "3000"}, "reserved", "less than the memory, 2\xa0000 GiB."),
        (PLANNER, {"hidden": "9" * 400}, "hidden", "999…"),
        (f"{PLANNER}crossover/", {"hidden": "9" * 400}, "hidden", "must be a whole number from 1 to 1\xa0048\xa0576;"),
        (f"{PLANNER}crossover/", {"flops": "1e-308"}, "flops", "Must be from 0.000001 to "),
        (f"{PLANNER}crossover/", {"bandwidth": "1e-308"}, "bandwidth", "Must be from 0.000001 to "),
        (f"{PLANNER}crossover/", {"alpha": "2e7"}, "alpha", "must be a number from 0 to 10\xa0000\xa0000; got 2e7."),
        (
            f"{PLANNER}crossover/",
            {"devices": "9" * 9},
            "devices",
            "Devices must be a whole number from 2 to 1\xa0048\xa0576;",
        ),
        (f"{PLANNER}inference/", {"half": "1e-308"}, "half", "Must be from 0.000001 to "),
        (f"{PLANNER}inference/", {"per_host": "0"}, "per_host", "Must be from 1 to 1"),
    ],
)
def test_values_that_no_hardware_has(reader: Client, page: str, asked: dict[str, str], field: str, words: str) -> None:
    answer = reader.get(page, asked)
    assert answer.status_code == 200
    assert words in " ".join(answer.context["form"].errors[field])


def test_only_what_was_given_is_marked(reader: Client) -> None:
    """If it is left out, the MLP's width is derived from the hidden size; its field must then not be marked as
    wrong.
    """
    asked = {"hidden": "-1"}
    assert list(reader.get(PLANNER, asked).context["form"].errors) == ["hidden"]
    assert list(reader.get(PLANNER, {**asked, "ffn": "0"}).context["form"].errors) == ["hidden", "ffn"]


def test_stages_that_would_need_too_many_steps_to_fill(reader: Client) -> None:
    stages = "\n".join(f"s{i}, 1, 2, 32" for i in range(32))
    asked = {"a": "1f1b-stash", "b": "", "m": "64", "stages": stages}
    (told,) = reader.get("/schedules/", asked).context["form"].errors["stages"]
    assert told == "215040 operations until 1024 devices are full; use fewer replicas."


@pytest.mark.parametrize("count", ["²", "0", "1", "5", "x", "-3", "99999999999999999999", "9" * 5000])
def test_another_number_of_set_ups_is_not_put_in_silence(reader: Client, count: str) -> None:
    page = reader.get(f"{PLANNER}judge/", {"n": count})
    assert page.status_code == 200 and "n: 2 to 4 set-ups can be judged; got" in page.content.decode()
    part = reader.get(f"{PLANNER}judge/common", {"n": count})
    assert part.status_code == 422 and "n: 2 to 4" in part.content.decode()


@pytest.mark.parametrize("part", ["timeline.json", "plans.json", "plans.csv", "questions", "judge/common"])
def test_a_part_without_fields_names_them(reader: Client, part: str) -> None:
    name = "b-network" if part.startswith("judge") else "network"
    answer = reader.get(f"{PLANNER}{part}", {name: "0"})
    assert answer.status_code == 422
    said = answer.content.decode().replace("\\u00a0", "\xa0")  # JSON writes it so
    assert f"{name}: Must be from 0.000001 to 100\xa0000 GB/s; got 0" in said


def test_a_step_too_long_for_its_clock_is_not_drawn(reader: Client) -> None:
    form = PlannerForm({"model": "gpt-1t", "half": "0.000001"})
    assert form.is_valid()
    with pytest.raises(ValueError, match="is too long to draw"):
        drawn(*form.setup, read("TP 8 x PP 64 x DP 2"))
    assert reader.get(PLANNER, {"model": "gpt-1t", "half": "0.000001"}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"samples": "17"}, "samples", f"17 samples are more than the batch of {BATCH}; use {BATCH} or fewer."),
        ({"cuts": "-1"}, "cuts", "Whole numbers are needed, separated by commas; got -1."),
        ({"cuts": "1,,2"}, "cuts", "Whole numbers are needed"),
        ({"cuts": "1," * 3000}, "cuts", "At most 64 numbers; got 3001."),
        ({"replicas": "1000000"}, "replicas", "Each stage has 1 to 64 replicas; got 1000000."),
        ({"replicas": "0"}, "replicas", "1 to 64 replicas; got 0"),
        ({"replicas": "64-64"}, "replicas", "All stages have 64 devices at most; got 128."),
        ({"replicas": "1-1-1", "cuts": "3"}, "replicas", "2 stages need 2 numbers of replicas; got 3."),
        ({"replicas": "-".join("1" * 60)}, "replicas", "into 60 stages"),
    ],
)
def test_partitions_that_cannot_be(
    reader: Client, profile: Profile, asked: dict[str, str], field: str, words: str
) -> None:
    page = reader.get("/partition/", {"profile": str(profile.pk), **asked})
    assert page.status_code == 200 and words in " ".join(page.context["form"].errors[field])
    if field == "samples":
        part = reader.get("/partition/alpa", {"profile": str(profile.pk), **asked})
        assert part.status_code == 422 and words in part.content.decode()


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"devices": "1000000"}, "devices", "Must be from 1 to 8; got 1000000."),
        ({"memory": "0"}, "memory", "from 0.2939453125"),
        ({"memory": "0.29"}, "memory", "from 0.2939453125"),  # 300 MiB and more are for the framework
        ({"memory": "-1"}, "memory", "GiB; got -1"),
        ({"memory": "1e308"}, "memory", "GiB; got 1e+308"),
    ],
)
def test_this_fleet_has_its_own_bounds(
    reader: Client, profile: Profile, asked: dict[str, str], field: str, words: str
) -> None:
    page = reader.get(PLANNER, {"cluster": f"fleet:{profile.pk}", **asked})
    assert page.status_code == 200 and not page.context["fleet"]
    assert words in " ".join(page.context["form"].errors[field])


def _forms(base: type[forms.Form] = forms.Form) -> Iterator[type[forms.Form]]:
    for form in base.__subclasses__():
        yield from (form, *_forms(form))


def test_every_number_and_choice_says_what_would_be_right() -> None:
    own = {form for form in _forms() if form.__module__.startswith("dashboard.")}
    assert {PlannerForm, GraphForm, ScheduleForm} <= own
    assert not [(form, name) for form in own for name, field in form.base_fields.items() if type(field) in OF_DJANGO]


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        (WholeNumber(label="Devices", min_value=1, max_value=64), "65", "a whole number from 1 to 64; got 65."),
        (WholeNumber(label="Devices", min_value=1), "²", "a whole number of at least 1; got ²."),
        (WholeNumber(label="Devices", max_value=9), "", "a whole number of at most 9; got nothing."),
        (
            Number(label="Devices", min_value=1e-6, max_value=1e6),
            "inf",
            "a number from 0.000001 to 1\xa0000\xa0000; got inf.",
        ),
        (Number(label="Devices"), "9" * 5000, f"a number; got {'9' * 24}…."),
        (Choice(label="Devices", choices=[("a", "A"), ("x", [("b", "B")])]), "c", "a or b; got c."),
        (
            Choice(label="Devices", choices=[(f"a{i}", "") for i in range(9)]),
            "a9",
            "one of 9 names, such as a5, a6, a7 or a8; got a9.",
        ),
        (Choice(label="Devices"), "c", "none; got c."),
    ],
)
def test_a_field_names_itself_and_its_bounds(field: forms.Field, given: str, said: str) -> None:
    with pytest.raises(forms.ValidationError) as told:
        field.clean(given)
    (message,) = told.value.messages
    assert message.startswith("Devices must be ") and message.endswith(said)
