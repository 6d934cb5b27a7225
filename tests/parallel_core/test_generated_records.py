"""The records of a generated text, joined in order or put between others that came first."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.analysis.generated import inserted, together


def header(first: int, *texts: list[int]) -> dict[str, Any]:
    count = len(texts[0]) - (first == 0)
    seconds = [first + at / 10 for at in range(count)]
    parts = {"collective": [one / 4 for one in seconds], "p2p": [one / 8 for one in seconds]}
    return {"first": first, "tokens": list(texts), "prefill": 0.5, "seconds": seconds, **parts, "kv_bytes": 8 * first}


RECORDS = [header(0, [1, 2], [5, 6]), header(2, [3], [7]), header(3, [4, 9], [8]), header(5, [0], [])]
"""The second text ends early."""


@pytest.mark.parametrize("missing", [(), (0,), (1,), (0, 1), (1, 2), (0, 2), (3,)])
def test_those_that_were_missing_find_their_places(missing: tuple[int, ...]) -> None:
    held = together(record for at, record in enumerate(RECORDS) if at not in missing)
    for at in missing:
        held = inserted(held, RECORDS[at])
    whole = together(RECORDS)
    assert held is not None and whole is not None
    assert (held["tokens"], held["seconds"]) == (whole["tokens"], whole["seconds"])
    assert (held["collective"], held["p2p"]) == (whole["collective"], whole["p2p"])
    if 3 not in missing:
        assert held == whole


def test_the_first_of_all_is_only_joined() -> None:
    assert inserted(None, RECORDS[0]) == together(RECORDS[:1])
