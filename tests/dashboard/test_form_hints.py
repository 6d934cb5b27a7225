"""Hints beside the fields of forms: each is true of its own form, in the unit that is typed."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs.form.presets import PRESETS, Preset
from dashboard.runs.form.spec_fields import ENTRIES, form_field
from parallel_core.plan.units import parameter_count
from parallel_core.spec import RunSpec

COUNTED = [preset for preset in PRESETS if " M parameters" in preset.blurb]


@pytest.mark.parametrize("preset", COUNTED, ids=lambda preset: preset.key)
def test_a_preset_has_as_many_parameters_as_it_says(preset: Preset) -> None:
    millions = parameter_count(RunSpec.model_validate(preset.spec).model) / 1e6
    assert preset.blurb.split(" M ")[0] in (f"{millions:.1f}", f"{millions:.0f}")


def test_a_field_says_no_bounds_in_another_unit_than_its_own() -> None:
    cap = form_field(ENTRIES["trace.memory_cap"])
    assert cap.help_text == "empty: the device's own limit", "the spec's bounds are bytes, and MiB are typed"


def test_bounds_are_written_without_exponents_and_needless_decimals() -> None:
    assert form_field(ENTRIES["train.loss_scale"]).help_text == "1 to 2^100"
    assert form_field(ENTRIES["inject.high_lr.factor"]).help_text.endswith("above 1 to 10^30")
    hints = [str(form_field(entry).help_text) for entry in ENTRIES.values()]
    assert "1 to 1 000 000 000" in [hint.replace("\N{NO-BREAK SPACE}", " ") for hint in hints], "RoPE's base"
    assert not [hint for hint in hints if re.search(r"e\+|\d\.0\b|\d{5}", hint)]


def test_a_hint_names_no_field_that_only_another_form_has(member: Client) -> None:
    devices = [{"index": i, "kind": "cpu", "memory_total": 2**30} for i in range(2)]
    Worker.objects.create(name="yard-a", devices=devices, heartbeat_at=timezone.now() + timedelta(hours=1))
    run, study = (html.unescape(member.get(at).content.decode()) for at in ("/runs/new/", "/studies/new/?kind=matrix"))
    assert "a checkpoint in Resume from comes first" in run
    assert "Llama weights of a worker" in study and "Resume from" not in study
