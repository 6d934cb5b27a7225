"""Findings of pipelines whose messages between stages take long."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.analysis.diagnosis import diagnose
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import MODEL, costs, found, healthy, spec
from tests.parallel_core.test_replay import step


def test_more_micro_batches_are_no_advice_where_each_message_takes_long() -> None:
    made = spec(pp=2, micro_batches=2)
    quick, slow = ([step(made, costs(made, message=us))] * 3 for us in (20, 12_000))
    assert "few_micro_batches" in found(healthy(made, traced=quick))
    assert not any("micro_batches" in one.change for one in diagnose(healthy(made, traced=slow)))


@pytest.mark.parametrize(
    ("model", "hosts", "words"),
    [
        (MODEL, (), "Give these two ranks a faster link"),
        (MODEL, ("a", "b"), "Place these two ranks on one host or a faster link"),
        ({"kind": "vgg16"}, (), "Give these two ranks a faster link, or cut the model where less crosses over"),
    ],
)
def test_a_slow_link_is_not_to_be_mended_by_what_the_run_has_already(
    model: dict[str, Any], hosts: tuple[str, ...], words: str
) -> None:
    split = {"pp": 2, "micro_batches": 8}
    made = RunSpec.model_validate({"model": model, "parallel": split, "train": {"global_batch": 64}})
    slow = healthy(made, traced=[step(made, costs(made, message=12_000))] * 3, hosts=hosts)
    assert [one.change.split(".")[0] for one in diagnose(slow) if one.rule == "slow_link"] == [words]


@pytest.mark.parametrize(
    ("micro_batches", "message", "device", "words"),
    [
        (1, 30, "cpu", "Raise train.global_batch, so that more is computed between two messages: no link"),
        (8, 30, "cpu", "Send fewer: lower parallel.micro_batches to 4, so that more is computed between two"),
        (8, 60, "cpu", "Give these two ranks a faster link"),
        (8, 30, "cuda", "Give these two ranks a faster link"),
    ],
)
def test_no_faster_link_is_asked_for_where_each_message_is_as_short_as_can_be(
    micro_batches: int, message: int, device: str, words: str
) -> None:
    made = spec(pp=2, micro_batches=micro_batches)
    made = made.model_copy(update={"train": made.train.model_copy(update={"device": device})})
    short = costs(made, message=message, factor={0: 0.002, 1: 0.002})
    (link,) = [one for one in diagnose(healthy(made, traced=[step(made, short)] * 3)) if one.rule == "slow_link"]
    assert link.change.startswith(words)


@pytest.mark.parametrize(("micro_batches", "message", "more"), [(16, 6_000, True), (2, 40_000, False)])
def test_many_late_messages_ask_for_fewer(micro_batches: int, message: int, more: bool) -> None:
    made = spec(pp=2, micro_batches=micro_batches)
    slow = healthy(made, traced=[step(made, costs(made, message=message))] * 3)
    (link,) = [one for one in diagnose(slow) if one.rule == "slow_link"]
    assert link.change.endswith("lower parallel.micro_batches to 8.") is more
    assert ("micro_batches" in link.change) is more
