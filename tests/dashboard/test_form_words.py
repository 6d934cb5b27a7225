"""Messages of the engine say on pages what forms call their fields."""

from __future__ import annotations

import pytest

from dashboard.form_words import first_error, in_form_words
from dashboard.traces.models import Trace
from dashboard.traces.page import missing, notes


@pytest.mark.parametrize(
    ("spelt", "said"),
    [
        ("tensor=3 does not divide heads=8; try 2.", "Tensor parallel = 3 does not divide Attention heads = 8; try 2."),
        ("schedule=zb-h1 with pipeline=1", "Pipeline schedule = ZB-H1 with Pipeline stages = 1"),
        ("early_gradients=true needs recompute=none", "Early gradients = on needs Activation recomputation = None"),
        ("(parallel.micro_batches: Must be at least 1.)", "(Micro-batches: Must be at least 1.)"),
        ("x=3 and train.nothing stay", "x=3 and train.nothing stay"),
        ("replicas=2-1, global_batch=7.", "Replicas of each stage = 2-1, Global batch = 7."),
    ],
)
def test_a_field_is_called_as_its_form_calls_it(spelt: str, said: str) -> None:
    assert in_form_words(spelt).replace("\N{NO-BREAK SPACE}", " ") == said


def test_an_error_without_its_field_is_told_with_it() -> None:
    assert first_error({"parallel.pp": "Must be at most 8."}) == "Pipeline stages: Must be at most 8."
    assert first_error({"spec": "Is none."}) == "Is none."


def test_notes_of_an_imported_trace_name_fields_of_its_run_alone() -> None:
    """What a file is called may look like a setting."""
    told = ["The spec of its run does not hold here (parallel.micro_batches: Must be 4).", "seed=7.json was not read."]
    assert notes(Trace(notes=told)) == [told[0].replace("parallel.micro_batches", "Micro-batches"), told[1]]


def test_an_import_that_never_said_whether_it_is_whole_counts_as_whole() -> None:
    """As older versions kept it."""
    assert missing(Trace(ranks={"0": {"file": "a.json", "device": "cpu", "steps": {"1": 3}}}), 1) == ""
