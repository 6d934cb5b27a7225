"""What a worker of an older version is sent of a spec."""

from __future__ import annotations

from typing import Any, Literal, get_origin

import pytest

from parallel_core import known_fields
from parallel_core.field_names import sections
from parallel_core.known_fields import CORPUS, EARLIEST, WORDS, later, needs_later, without_unknown, words_of
from parallel_core.spec import RunSpec


def dumped(**parts: Any) -> dict[str, Any]:
    return RunSpec.model_validate(parts).model_dump(mode="json")


@pytest.fixture
def two_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a field of `train`, all of `trace`, a kind of fault and a field of another were new, and nothing else."""
    old = {"train.deterministic", "inject.flipped_bit", "inject.flipped_bit.rank", "inject.flipped_bit.step"}
    old |= {"inject.straggler.factor"} | {name for name in EARLIEST if name.startswith("trace.")}
    monkeypatch.setattr(known_fields, "EARLIEST", (EARLIEST | set(later())) - old)


def test_every_field_is_one_of_the_first_or_announced() -> None:
    every = {f"{at}.{name}" for at, kind in sections(RunSpec).items() if at for name in kind.model_fields}
    assert every <= EARLIEST | set(later()) and not EARLIEST & set(later())
    assert without_unknown(dumped(), later()) == dumped() and not set(needs_later(dumped())) - set(later())


def test_defaults_that_are_unknown_are_left_out_and_nothing_else(two_later: None) -> None:
    spec = dumped(
        train={"lr": 0.5}, model={"kind": "mlp"}, inject=[{"kind": "straggler", "rank": 1}], parallel={"dp": 2}
    )
    sent = without_unknown(spec, ())
    assert "trace" not in sent and "deterministic" not in sent["train"]
    assert sent["inject"] == [{"kind": "straggler", "rank": 1}]
    assert RunSpec.model_validate(sent).model_dump(mode="json") == spec, "the default of the kind's corpus is sent"
    assert sent["train"] == {name: value for name, value in spec["train"].items() if f"train.{name}" not in later()}
    assert without_unknown(spec, later()) == spec and spec == dumped(**spec), "the stored spec is not changed"
    assert without_unknown(spec, ["train.deterministic"])["train"]["deterministic"] is False
    assert needs_later(spec) == ()


def test_a_field_whose_default_is_new_behaviour_holds_no_run_back_from_an_older_worker() -> None:
    """With either value: the worker does what versions without the field do."""
    for value in (True, False):
        spec = dumped(train={"stop_on_nan": value})
        assert needs_later(spec) == () and "stop_on_nan" not in without_unknown(spec, ())["train"]
        assert without_unknown(spec, ["train.stop_on_nan"])["train"]["stop_on_nan"] is value


def test_what_is_not_at_its_default_is_needed_and_sent(two_later: None) -> None:
    faults = [{"kind": "flipped_bit"}, {"kind": "straggler", "factor": 3.0}]
    spec = dumped(train={"deterministic": True}, trace={"trace_every": 7}, inject=faults, parallel={"dp": 2})
    assert needs_later(spec) == (
        "inject.flipped_bit",
        "inject.straggler.factor",
        "trace.trace_every",
        "train.deterministic",
    )
    sent = without_unknown(spec, ())
    assert sent["train"]["deterministic"] is True and sent["trace"] == {"trace_every": 7}
    assert [fault["kind"] for fault in sent["inject"]] == ["flipped_bit", "straggler"]


def test_a_word_that_is_new_in_a_known_choice_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the schedule and the kind of model were new, as one that docs/extend.md adds: workers without it refuse a
    spec that has it, although they know the field."""
    new = {"parallel.schedule=zb-v", "model.kind=gnmt"}
    monkeypatch.setattr(known_fields, "EARLIEST", EARLIEST - new)
    assert new <= set(later())
    two = {"pp": 2, "micro_batches": 4}
    assert needs_later(dumped(parallel={**two, "schedule": "zb-v"})) == ("parallel.schedule=zb-v",)
    assert needs_later(dumped(model={"kind": "gnmt"}, parallel=two)) == ("model.kind=gnmt",)
    assert needs_later(dumped(parallel=two)) == () and needs_later({"model": {"kind": "gpt"}}) == ()


def test_every_choice_is_known_with_words_that_there_are() -> None:
    kinds = {
        f"{at}.{name}": info for at, kind in sections(RunSpec).items() if at for name, info in kind.model_fields.items()
    }
    choices = {name for name, info in kinds.items() if get_origin(info.annotation) is Literal} | {CORPUS}
    unlike = sorted(choices ^ set(WORDS))
    assert not unlike, f"{', '.join(unlike)}: a new choice is added to WORDS with the words that it begins with"
    gone = {field: set(words.split()) - set(words_of(field)) for field, words in WORDS.items()}
    assert not any(gone.values()), "a word that is gone goes from WORDS, too"


def test_images_of_a_file_are_needed_even_of_a_model_for_digits() -> None:
    """Workers without them know the field, all of the model's too, and refuse the value."""
    spec = dumped(model={"kind": "mlp"}, train={"corpus": "images:pets"})
    assert needs_later(spec) == ("train.corpus=images",) and "train.corpus=images" in later()
    assert needs_later(dumped(model={"kind": "mlp"})) == ()
    assert needs_later(dumped(train={"corpus": "tokens:images"})) == ()
