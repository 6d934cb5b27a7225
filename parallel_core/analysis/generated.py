"""Generated text from the records of its ranks: the records joined, their cost, and the text itself."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from parallel_core.analysis.quantities import seconds_text, significant
from parallel_core.analysis.stats import LEAST, speedup, summarise
from parallel_core.layout import Layout
from parallel_core.model_spec import BYTES

PerToken = Literal["seconds", "collective", "p2p"]
PER_TOKEN: tuple[PerToken, ...] = ("seconds", "collective", "p2p")
"""What is measured of each token after the first."""


class Generated(TypedDict):
    """Generation on one rank: `tokens` of each sample of its replica without the prompt, seconds of the prefill and of
    each token after the first, of the latter those in tensor-parallel collectives and in messages between stages (both
    with the wait for others; [] in records of earlier versions), bytes of its KV cache."""

    tokens: list[list[int]]
    prefill: float
    seconds: list[float]
    collective: list[float]
    p2p: list[float]
    kv_bytes: int


def joined(before: Mapping[str, Any] | None, header: Mapping[str, Any]) -> Generated:
    """`before` with one more `generated` record added. A record that was added already changes nothing."""
    first = int(header["first"])
    known = before or {"tokens": [[] for _ in header["tokens"]], "seconds": []}

    def each(name: str) -> list[float]:
        return [*known.get(name, ())[: max(first - 1, 0)], *header.get(name, ())]

    return {
        "tokens": [[*a[:first], *b] for a, b in zip(known["tokens"], header["tokens"], strict=True)],
        "prefill": float(header["prefill"]),
        "seconds": [*known["seconds"][: max(first - 1, 0)], *header["seconds"]],
        "collective": each("collective"),
        "p2p": each("p2p"),
        "kv_bytes": int(header["kv_bytes"]),
    }


def inserted(before: Mapping[str, Any] | None, header: Mapping[str, Any]) -> Generated:
    """`before` with a `generated` record that others have passed: what they added follows it. Everything in front of it
    has to be there, and it must not have been added yet."""
    first = int(header["first"])
    whole = joined(before, header)
    if not before:
        return whole
    since = max(first - 1, 0)
    return {
        "tokens": [[*a, *b[first:]] for a, b in zip(whole["tokens"], before["tokens"], strict=True)],
        "prefill": float(before["prefill"]),
        "seconds": [*whole["seconds"], *before["seconds"][since:]],
        "collective": [*whole["collective"], *before.get("collective", ())[since:]],
        "p2p": [*whole["p2p"], *before.get("p2p", ())[since:]],
        "kv_bytes": int(before["kv_bytes"]),
    }


def together(headers: Iterable[Mapping[str, Any]]) -> Generated | None:
    """All `generated` records of a rank joined in order; None if there are none."""
    found: Generated | None = None
    for header in headers:
        found = joined(found, header)
    return found


def replicas(ranks: Mapping[int, Mapping[str, Any]], layout: Layout) -> list[Mapping[str, Any]]:
    """The record of one rank of each replica, by replica (all ranks of a replica report the same). Replicas without a
    record are left out."""
    found: dict[int, Mapping[str, Any]] = {}
    for rank in sorted(ranks):
        found.setdefault(layout.coords(rank).replica, ranks[rank])
    return [found[replica] for replica in sorted(found)]


def merged(told: Sequence[Mapping[str, Any]]) -> Generated:
    """All `replicas` in one record: all texts in order, the longest prefill, and the seconds of the slowest."""
    slowest = max(told, key=lambda replica: statistics.median(replica["seconds"] or [0]))
    return {
        "tokens": [tokens for replica in told for tokens in replica["tokens"]],
        "prefill": max(replica["prefill"] for replica in told),
        "seconds": list(slowest["seconds"]),
        "collective": list(slowest.get("collective", ())),
        "p2p": list(slowest.get("p2p", ())),
        "kv_bytes": max(replica["kv_bytes"] for replica in told),
    }


class Parts(NamedTuple):
    """Mean seconds of a token after the first on one replica: `compute` of its stages one after the other,
    `collective` = tensor-parallel collectives, with the wait for the slowest rank, `p2p` = messages between stages,
    without the wait for the other stages' work. They add up to the token."""

    compute: float
    collective: float
    p2p: float

    @property
    def total(self) -> float:
        """Seconds of the token."""
        return sum(self)

    @property
    def communication(self) -> float:
        """Share of the token, 0 .. 1."""
        return (self.collective + self.p2p) / self.total if self.total else 0.0


def parts(ranks: Mapping[int, Mapping[str, Any]], layout: Layout) -> Parts | None:
    """Where a token goes on the slowest replica; None if a rank has not reported it.

    One stage works at a time, and a rank waits for messages while it does not. So what no stage's own work takes of a
    token is the time of the messages.
    """
    found = [_parts_of(ranks, layout, replica) for replica in range(layout.dp)]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.total) if known and len(known) == len(found) else None


def _parts_of(ranks: Mapping[int, Mapping[str, Any]], layout: Layout, replica: int) -> Parts | None:
    busy: list[float] = []
    collective: list[float] = []
    total = 0.0
    for place in range(layout.pp):
        group = [layout.rank(place, replica, tensor) for tensor in range(layout.tp)]
        told = [ranks.get(rank) for rank in group]
        own = [_means(one) for one in told if one]
        if len(own) < len(group) or any(one is None for one in own):
            return None
        took, inside, waited = (statistics.fmean(column) for column in zip(*filter(None, own), strict=True))
        busy.append(took - waited - inside)
        collective.append(inside)
        total = max(total, took)
    p2p = max(0.0, total - sum(busy) - sum(collective)) if layout.pp > 1 else 0.0
    return Parts(sum(busy), sum(collective), p2p)


def _means(told: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Mean of each of PER_TOKEN over all tokens after the first; None where one of them is missing."""
    columns = [told.get(name) or () for name in PER_TOKEN]
    count = min(map(len, columns))
    return tuple(statistics.fmean(column[:count]) for column in columns) if count else None


class Stretch(NamedTuple):
    """Consecutive tokens of a text: their first and last position in it, from 1 with the prompt; seconds a token."""

    first: int
    last: int
    median: float
    p10: float
    p90: float


STRETCHES = 12
"""The most into which a text is divided."""


def over_position(seconds: Sequence[float], prompt: int) -> list[Stretch]:
    """The times of the tokens after the first in stretches of equal length; `prompt` = its number of tokens. A token at
    position p attends to the p - 1 keys and values before it."""
    cuts = np.linspace(0, len(seconds), min(STRETCHES, len(seconds)) + 1).round().astype(int)
    return [_stretch(seconds[a:b], prompt + 2 + int(a)) for a, b in pairwise(cuts)]


def _stretch(seconds: Sequence[float], first: int) -> Stretch:
    own = summarise(seconds)
    return Stretch(first, first + own.n - 1, own.median, own.p10, own.p90)


class Growth(NamedTuple):
    """Time of a token in the last quarter of a text over that in the first."""

    first: Stretch
    last: Stretch
    ratio: float
    within_noise: bool


def growth(seconds: Sequence[float], prompt: int) -> Growth | None:
    """How much longer late tokens take, as they read more keys and values; None with fewer than LEAST in a
    quarter."""
    quarter = len(seconds) // 4
    if quarter < LEAST:
        return None
    early, late = summarise(seconds[:quarter]), summarise(seconds[-quarter:])
    found = speedup(late, early)
    ends = _stretch(seconds[:quarter], prompt + 2), _stretch(seconds[-quarter:], prompt + 2 + len(seconds) - quarter)
    return Growth(*ends, found.ratio, found.within_noise)


def rate(told: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """(median seconds a token of the slowest, tokens/s summed over `replicas`); None before the second token."""
    if not told or not all(replica["seconds"] for replica in told):
        return None
    medians = [statistics.median(replica["seconds"]) for replica in told]
    speed = sum(len(replica["tokens"]) / max(token, 1e-9) for replica, token in zip(told, medians, strict=True))
    return max(medians), speed


def text_seconds(told: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the prompt to the newest token, of the `replicas` that took longest; 0 without any. By its median
    token another one may be the slowest."""
    return max((replica["prefill"] + sum(replica["seconds"]) for replica in told), default=0.0)


def whole_rate(told: Sequence[Mapping[str, Any]]) -> float | None:
    """Tokens/s of whole texts: all tokens so far over their `text_seconds`. Unlike `rate` it counts the prefill, and
    tokens that took longer than the median. None without any."""
    count = sum(len(tokens) for replica in told for tokens in replica["tokens"])
    return count / max(text_seconds(told), 1e-9) if told else None


def first_difference(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """(sample, position) of the first token in which the texts `a` and `b` differ, both from 0; None if they are equal.

    A text that ends early differs at its end.
    """
    nothing: Sequence[int] = ()
    for sample, texts in enumerate(zip_longest(a, b, fillvalue=nothing)):
        for position, (one, other) in enumerate(zip_longest(*texts)):
            if one != other:
                return sample, position
    return None


def timing(told: Sequence[Mapping[str, Any]], prompt: int) -> str:
    """Prefill of a prompt of so many tokens, and time a token, in one line."""
    all_of_it = merged(told)
    text = f"prefill of {prompt * len(all_of_it['tokens'])} tokens {seconds_text(all_of_it['prefill'])}"
    if (speed := rate(told)) is not None:
        text += f"; then {seconds_text(speed[0])} a token (median of {len(all_of_it['seconds'])}), "
        text += f"{significant(speed[1])} tokens/s ({significant(whole_rate(told) or 0.0)} overall)"
    return text


def text(tokens: Sequence[int], vocab: int) -> str:
    """Tokens as text: bytes for a vocabulary of up to 256, else the token numbers."""
    return bytes(tokens).decode(errors="replace") if vocab <= BYTES else ",".join(map(str, tokens))
