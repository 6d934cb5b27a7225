"""A value that many requests ask for at the same time is made once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from dashboard.once import once


def test_requests_at_the_same_time_wait_for_the_one_that_makes_it() -> None:
    made, may_end = [], threading.Event()

    def make() -> str:
        made.append(1)
        may_end.wait(10)
        return "value"

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(once, "test-once", make, 60) for _ in range(4)]
        other = once("test-once-other", dict[str, str], 60)
        may_end.set()
        assert [one.result() for one in asked] == ["value"] * 4
    assert len(made) == 1 and other == {}


def test_a_value_that_could_not_be_made_is_asked_for_again() -> None:
    answers: Iterator[ValueError | str] = iter([ValueError("no"), "yes"])

    def make() -> str:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    try:
        once("test-once-again", make, 60)
    except ValueError:
        assert once("test-once-again", make, 60) == "yes"
    else:
        raise AssertionError("the first answer is an error")
