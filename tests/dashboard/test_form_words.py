"""Pages refer to fields by their labels; the dotted names of the spec are for API, command line and JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.form.form_words import LABELS, first_error, in_form_words, short_label, value_words
from dashboard.runs.form.spec_fields import ENTRIES, leaves
from dashboard.traces.models import Trace
from dashboard.traces.page import missing, notes
from tests.dashboard import factory

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (
            "heads=5 does not divide hidden=128; try 1, 2.",
            "Attention heads = 5 does not divide Hidden size = 128; try 1, 2.",
        ),
        ("use early_gradients=false, or pp=2.", "use Early gradients = off, or Pipeline stages = 2."),
        ("use 1f1b, 1f1b-stash, or leave replicas empty.", "“1F1B async, stashed”, or leave “Replicas of each stage”"),
        ("schedule=1f1b-2bw keeps a pipeline full", "Pipeline schedule = 2BW keeps a pipeline full"),
        ("Set parallel.schedule to 1f1b.", "Set “Pipeline schedule” to 1F1B."),
        ("Leave parallel.cuts empty: it is evener.", "Leave “Stage cuts” empty: it is evener."),
        ("train.lr is 1 at a batch of 8.", "“Learning rate” is 1 at a batch of 8."),
        (
            "use zero_backend='own', or tied=false.",
            "use Parameters are sharded by = Trainyard, or Tie embedding and head = off.",
        ),
        ("use clip=stage, or leave clip_norm empty.", "or leave “Clip gradient norm” empty."),
        ("dp in place of replicas.", "“Data parallel” in place of “Replicas of each stage”."),
        ("Cell 2.\ndp=1 schedule=1f1b", "Cell 2.\ndp=1 schedule=1f1b"),
        ("(parallel.micro_batches: Must be at least 1.)", "(“Micro-batches”: Must be at least 1.)"),
        ("slow_link makes messages late, and device=cuda", "“Slow link” makes messages late, and Device kind = CUDA"),
        ("x=3 and train.nothing stay", "x=3 and train.nothing stay"),
        ("The rank of the model has layers and steps.", "The rank of the model has layers and steps."),
    ],
)
def test_a_message_of_the_engine_is_read_in_the_words_of_the_form(said: str, read: str) -> None:
    assert read in in_form_words(said)


def test_every_leaf_has_a_label_and_no_two_sections_share_a_name() -> None:
    names = [path.split(".", 1)[1] for path in leaves() if not path.startswith("inject.")]
    without = sorted(set(names) - set(LABELS))
    assert not without, f"give {', '.join(without)} an Entry in dashboard/runs/form/spec_groups.py: GROUPS"
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"name {', '.join(twice)} otherwise: a message calls a field by its name without its section"
    assert all(short_label(path) for path in ENTRIES)


@pytest.mark.parametrize(
    ("path", "value", "read"),
    [
        ("parallel.schedule", "1f1b-2bw", "2BW"),
        ("model.bias", True, "yes"),
        ("trace.memory_cap", 2 << 20, "2"),
        ("parallel.cuts", [3, 6], "3, 6"),
        ("model.kv_heads", None, ""),
        ("model.rope_base", 10_000.0, "10\N{NO-BREAK SPACE}000"),
        ("model.vocab", 50_304, "50\N{NO-BREAK SPACE}304"),
        ("train.lr", 0.0003, "0.0003"),
        ("train.seed", 12_345, "12345"),
    ],
)
def test_values_are_those_of_the_fields(path: str, value: Any, read: str) -> None:
    assert value_words(path, value) == read


def test_spec_tab_and_compare_name_no_leaf(client: Client, alice: Any) -> None:
    one, two = (factory.finished(alice, {"pp": 2, "micro_batches": 4, "schedule": n}) for n in ("gpipe", "1f1b"))
    client.force_login(alice)
    pages = [f"/runs/{one.pk}/?tab=spec", f"/compare/?runs={one.pk},{two.pk}"]
    for page in (client.get(address).content.decode().partition("As JSON")[0] for address in pages):
        assert "Pipeline schedule" in page and "GPipe" in page
        assert not re.search(r">[^<>]*\b(parallel|train|trace)\.[a-z_]+", page)


def test_no_comment_of_a_template_is_shown() -> None:
    """A `{# … #}` comment must end on its line; Django shows a multi-line one as text of the page."""
    opened = re.compile(r"\{#(?!.*#\})")
    shown = [path for path in (ROOT / "templates").rglob("*.html") if opened.search(path.read_text())]
    assert not shown


def test_a_page_may_call_a_field_otherwise() -> None:
    said = in_form_words("pp=3 needs heads=4, or parallel.pp.", {"parallel.pp": "Devices"})
    assert said == "Devices = 3 needs Attention heads = 4, or “Devices”."


def test_an_error_without_its_field_is_told_with_it() -> None:
    assert first_error({"parallel.pp": "Must be at most 8."}) == "Pipeline stages: Must be at most 8."
    assert first_error({"spec": "Is none."}) == "Is none."
    assert first_error({"parallel.cuts.0": "Must be at least 1."}) == "Stage cuts: Must be at least 1."


def test_notes_of_an_imported_trace_name_fields_of_its_run_alone() -> None:
    """The name of a file may look like a setting and must not be replaced by a label."""
    told = ["The spec of its run does not hold here (parallel.micro_batches: Must be 4).", "seed=7.json was not read."]
    assert notes(Trace(notes=told)) == [told[0].replace("parallel.micro_batches", "“Micro-batches”"), told[1]]


def test_an_import_that_never_said_whether_it_is_whole_counts_as_whole() -> None:
    """Versions that did not record it stored only whole imports."""
    assert missing(Trace(ranks={"0": {"file": "a.json", "device": "cpu", "steps": {"1": 3}}}), 1) == ""


@pytest.mark.parametrize(
    ("path", "value", "read"),
    [
        ("train.max_minutes", 0.0, "none"),
        ("train.max_minutes", 1.5, "1.5 minutes"),
        ("train.checkpoint_every", 1, "1 step"),
        ("trace.trace_every", 10, "10 steps"),
        ("trace.trace_every", 1000, "1\N{NO-BREAK SPACE}000 steps"),
        ("train.eval_every", 0, "never"),
    ],
)
def test_a_number_that_may_be_0_is_read_with_its_unit_or_with_what_0_means(path: str, value: float, read: str) -> None:
    assert value_words(path, value) == read
