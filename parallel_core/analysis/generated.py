"""Generated text from the records of its ranks: the records joined, their cost, and the text itself."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypedDict

from parallel_core.analysis.quantities import seconds_text, significant
from parallel_core.layout import Layout


class Generated(TypedDict):
    """Generation on one rank: `tokens` of each sample of its replica without the prompt, seconds of the prefill and of
    each token after the first, bytes of its KV cache."""

    tokens: list[list[int]]
    prefill: float
    seconds: list[float]
    kv_bytes: int


def joined(before: Mapping[str, Any] | None, header: Mapping[str, Any]) -> Generated:
    """`before` with one more `generated` record added. A record that was added already changes nothing."""
    first = int(header["first"])
    known = before or {"tokens": [[] for _ in header["tokens"]], "seconds": []}
    return {
        "tokens": [[*a[:first], *b] for a, b in zip(known["tokens"], header["tokens"], strict=True)],
        "prefill": float(header["prefill"]),
        "seconds": [*known["seconds"][: max(first - 1, 0)], *header["seconds"]],
        "kv_bytes": int(header["kv_bytes"]),
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
        "kv_bytes": max(replica["kv_bytes"] for replica in told),
    }


def rate(told: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """(median seconds a token of the slowest, tokens/s summed over `replicas`); None before the second token."""
    if not told or not all(replica["seconds"] for replica in told):
        return None
    medians = [statistics.median(replica["seconds"]) for replica in told]
    speed = sum(len(replica["tokens"]) / max(token, 1e-9) for replica, token in zip(told, medians, strict=True))
    return max(medians), speed


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
        text += f"{significant(speed[1])} tokens/s"
    return text


def text(tokens: Sequence[int], vocab: int) -> str:
    """Tokens as text: bytes for a vocabulary of up to 256, else the token numbers."""
    return bytes(tokens).decode(errors="replace") if vocab <= 256 else ",".join(map(str, tokens))
