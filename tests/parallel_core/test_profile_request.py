"""What a profile is asked to measure, and which request covers which other."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.profile.request import measured_with
from parallel_core.spec import RunSpec


def spec_of(batch: int = 16, **parallel: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"model": {"attention": "plain"}, "parallel": parallel, "train": {"global_batch": batch}}
    )


@pytest.mark.parametrize(
    ("other", "takes_in_plain"),
    [
        (spec_of(tp=2, tensor_split="columns"), True),
        (spec_of(tp=2, sequence=True), True),
        (spec_of(recompute="selective"), True),
        (spec_of(batch=32), False),
    ],
)
def test_a_request_takes_in_what_it_measures_anyway(other: RunSpec, takes_in_plain: bool) -> None:
    plain = spec_of()
    assert measured_with(other, other) and not measured_with(other, plain)
    assert measured_with(plain, other) == takes_in_plain
    assert measured_with(spec_of(recompute="full", dp=2), plain)
