"""Stages typed by the user: what is accepted, what is refused with its line and field, and how they are simulated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.schedule.traits import TRAITS, Traits
from parallel_core.simulate.schedule_preview import UNIT, preview
from parallel_core.simulate.typed_stages import Stage, StagesError, names, read, typed_preview, wrong_count


def test_a_line_a_stage() -> None:
    assert read("a;2;-;3\n\nb, 1\nc\t.5\t4,") == (
        Stage("a", 2, None, 3, 1),
        Stage("b", 1, 2, 1, 3),
        Stage("c", 0.5, 4, 1, 4),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Type at least one stage"),
        ("a", "Line 1, forward: it is missing"),
        ("a,1\n,2", "Line 2, name: give one"),
        ("a,1\na,2", "Line 2, name: a is the stage of line 1"),
        ("a,0", "Line 1, forward: 0 is too short"),
        ("a,nan", "Line 1, forward: nan is out of range; write 0 to 1000"),
        ("a,1,soon", "Line 1, backward: soon is no number"),
        ("a,1,2,1.5", "Line 1, replicas: 1.5 cannot be; write a whole number, 1 to 32"),
        ("a,1,2,3,4", "Line 1 has 5 values"),
        ("a,1,2\nb,1,forward only", "Line 2, backward: the gradients of a (line 1) come through b"),
        ("\n".join(f"s{i},1" for i in range(33)), "Line 33: 33 stages are too many"),
    ],
)
def test_what_cannot_be_names_line_and_field(text: str, said: str) -> None:
    with pytest.raises(StagesError) as error:
        read(text)
    assert said in str(error.value)


@pytest.mark.parametrize("name", names(read("a,1")))
def test_equal_stages_are_the_schedule_that_has_the_name(name: str) -> None:
    made, known = typed_preview(name, read("a,1,2\nb,1,2\nc,1,2"), 6, 0.5), preview(name, 3, 6, message=0.5)
    assert (made.length, made.busy, made.kept, made.skewed) == (known.length, known.busy, known.kept, known.skewed)


def test_a_schedule_that_cannot_deal_out_micro_batches_is_not_offered_for_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A schedule that was added with no trait but its place: the page would offer what cannot be drawn."""
    monkeypatch.setitem(TRAITS, "new", Traits("PP-New"))
    assert "new" in names(read("a,1,2\nb,1,2")) and "new" not in names(read("a,1,2,2\nb,1,2,1"))


@pytest.mark.parametrize("name", names(read("a,1,2,2\nb,1,2,1")))
def test_every_schedule_that_is_offered_for_replicas_can_be_drawn(name: str) -> None:
    assert typed_preview(name, read("a,1,2,2\nb,1,2,1"), 4).length > 0


COSTS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4)


@given(st.sampled_from(["naive", "gpipe", "1f1b"]), COSTS, st.integers(0, 4), st.integers(3, 9))
def test_all_work_of_a_step_is_there(name: str, costs: list[tuple[int, int, int]], silent: int, batches: int) -> None:
    """No step is shorter than its slowest stage allows, and what is kept returns to zero."""
    stages = [Stage(str(i), f, None if i < silent else b, r, i) for i, (f, b, r) in enumerate(costs)]
    made = typed_preview(name, stages, batches, 0.25)
    times = [stage.forward + (stage.backward or 0) for stage in stages]
    assert made.busy == batches * sum(times) * UNIT
    slowest = max(-(-batches // stage.replicas) * time for stage, time in zip(stages, times, strict=True))
    assert slowest * UNIT <= made.length <= batches * (sum(times) + 0.5 * len(stages)) * UNIT
    for device, most in enumerate(made.in_flight):
        forward = made.held(device)[1]
        assert (forward.min(), forward.max(), forward[-1]) == (0, most, 0)


def test_a_full_pipeline_goes_at_the_pace_of_its_slowest_stage() -> None:
    """Three replicas of 9 units complete a micro-batch every 3 units; the next stage needs 4."""
    stages = read("a, 3, 6, 3\nb, 2, 2")
    made = typed_preview("1f1b-stash", stages, 6)
    assert (made.length, made.working) == (6 * 4 * UNIT, pytest.approx((9 + 4) / 4))
    assert wrong_count("1f1b-stash", stages, 7) == "replicas need equal shares where nothing flushes; use 9."
    assert wrong_count("1f1b", stages, 7) == wrong_count("1f1b-stash", stages, 6) == ""
