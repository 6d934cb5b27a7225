"""The reasons of refusals, numbered: sentences that differ only in values are one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

Pair = tuple[str, str]
_VALUE = re.compile(r"(?<==)[\w.:,-]*\w|'[^']*'|(?<=has no field )\w+|(?<=it has )[^;]+|(?<=: )[^;]+")
"""What differs between sentences of one rule: `kind=mlp`, a quoted corpus, the fields of a kind, the explanation after
a colon."""
_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")


class Reasons:
    """Collects the refusals of pairs: problem without its values -> advice without its values -> (problem, advice,
    pair) of each."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[tuple[str, str, Pair]]]] = {}

    def number(self, why: str, pair: Pair) -> int:
        """Adds the refusal of a pair; returns the number of its reason, from 1 on."""
        problem, _, advice = short(why).rpartition("; ")
        key = _VALUE.sub("=", problem)
        of_problem = self._found.setdefault(key, {})
        of_problem.setdefault(_VALUE.sub("=", advice), []).append((problem, advice, pair))
        return list(self._found).index(key) + 1

    def lines(self) -> list[str]:
        """Returns a Markdown item for each reason, with what would do for which pairs."""
        return [self._item(number, list(ways.values())) for number, ways in enumerate(self._found.values(), 1)]

    @staticmethod
    def _item(number: int, ways: Sequence[Sequence[tuple[str, str, Pair]]]) -> str:
        problem = alternatives([problem for way in ways for problem, _, _ in way])
        said = [
            (alternatives([advice for _, advice, _ in way]), pairs_text([pair for _, _, pair in way])) for way in ways
        ]
        if len(said) == 1:
            ((advice, pairs),) = said
            return f"* **r{number}** {'; '.join(filter(None, (problem, advice)))} ({pairs})"
        return "\n".join([f"* **r{number}** {problem}:", *(f"  * {advice} ({pairs})" for advice, pairs in said)])


def short(text: str) -> str:
    """Returns the text with every SHA-256 cut to its first digits."""
    return _HASH.sub(r"\1…", text)


def alternatives(texts: Sequence[str]) -> str:
    """Returns the one text that all `texts` are but for values, with `{a | b}` where those differ."""
    slots = zip(*(_VALUE.findall(text) for text in texts), strict=True)
    values = iter([list(dict.fromkeys(slot)) for slot in slots])

    def filled(_: re.Match[str]) -> str:
        found = next(values)
        return found[0] if len(found) == 1 else f"{{{' | '.join(found)}}}"

    return _VALUE.sub(filled, texts[0])


def pairs_text(pairs: Iterable[Pair]) -> str:
    """Returns `a, b + c, d` for the four pairs of those, and so on, separated by semicolons."""
    given = list(pairs)
    ways = [_grouped(given), [(a, b) for b, a in _grouped([(b, a) for a, b in given])]]
    return "; ".join(f"{', '.join(first)} + {', '.join(second)}" for first, second in min(ways, key=len))


def _grouped(pairs: Iterable[Pair]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Groups pairs into products of first and second ones."""
    seconds: dict[str, list[str]] = defaultdict(list)
    for first, second in pairs:
        seconds[first].append(second)
    firsts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for first, found in seconds.items():
        firsts[tuple(found)].append(first)
    return [(first, second) for second, first in firsts.items()]
