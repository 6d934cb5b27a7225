"""Which topics an entry of the stream updates."""

from __future__ import annotations

import pytest

from dashboard.live.topics import parse_topics, topics_of


def test_topics_of_a_runs_entry() -> None:
    entry = {b"run": b"12", b"study": b"3", b"what": b'["log", "points"]'}
    assert topics_of(entry) == {"run:12": {"log", "points"}, "study:3": {"points"}, "runs": {"points"}}


def test_a_change_of_state_is_news_of_the_fleet() -> None:
    assert topics_of({b"run": b"12", b"study": b"", b"what": b'["state"]'})["fleet"] == {"state"}


@pytest.mark.parametrize("fields", [{}, {b"what": b"{"}, {b"what": b"7", b"run": b"1"}])
def test_an_unreadable_entry_is_about_nothing(fields: dict[bytes, bytes]) -> None:
    assert topics_of(fields) == {}


@pytest.mark.parametrize(
    "text", ["", "run:", "run:0", "run:1;drop", "admin", ",".join(f"run:{i}" for i in range(1, 102))]
)
def test_wrong_topics_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        parse_topics(text)
