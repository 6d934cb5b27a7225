"""JSON in which a name stands twice is refused, and soon."""

from __future__ import annotations

import pytest

from parallel_core import json_text


class Name(str):
    """A name that counts how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_the_name_is_found_among_very_many_in_one_pass() -> None:
    names = [*(Name(f"n{i}") for i in range(2_000)), Name("n1999")]
    with pytest.raises(json_text.NamedTwice, match="'n1999' stands twice in one object"):
        json_text._object([(name, 1) for name in names])
    assert Name.compared < 10 * len(names)


def test_the_first_of_several_is_named() -> None:
    with pytest.raises(json_text.NamedTwice, match="'b' stands twice"):
        json_text.read('{"a": 1, "b": 2, "c": 3, "c": 4, "b": 5}')
