"""Generated text as its ranks told it: the frames put together, what it cost, and the text itself."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from parallel_core.analysis.quantities import bytes_text, seconds_text, significant


class Generated(TypedDict):
    """Of one rank: `tokens` of each sample without the prompt, seconds of the prefill and of each token behind the
    first, bytes of its caches of keys and values."""

    tokens: list[list[int]]
    prefill: float
    seconds: list[float]
    kv_bytes: int


def joined(before: Mapping[str, Any] | None, header: Mapping[str, Any]) -> Generated:
    """What was known with one more `generated` record. One that came already changes nothing."""
    first = int(header["first"])
    known = before or {"tokens": [[] for _ in header["tokens"]], "seconds": []}
    return {
        "tokens": [[*a[:first], *b] for a, b in zip(known["tokens"], header["tokens"], strict=True)],
        "prefill": float(header["prefill"]),
        "seconds": [*known["seconds"][: max(first - 1, 0)], *header["seconds"]],
        "kv_bytes": int(header["kv_bytes"]),
    }


def together(headers: Iterable[Mapping[str, Any]]) -> Generated | None:
    """Of all `generated` records of a rank, in order; None where there are none."""
    found: Generated | None = None
    for header in headers:
        found = joined(found, header)
    return found


def rate(found: Mapping[str, Any]) -> tuple[float, float] | None:
    """(median seconds a token, tokens/s of all samples); None before the second token."""
    if not found["seconds"]:
        return None
    token = statistics.median(found["seconds"])
    return token, len(found["tokens"]) / max(token, 1e-9)


def timing(ranks: Sequence[Mapping[str, Any]], prompt: int) -> str:
    """Prefill of a prompt of so many tokens, time a token, and bytes of keys and values, in one line."""
    first = ranks[0]
    text = f"prefill of {prompt * len(first['tokens'])} tokens {seconds_text(first['prefill'])}"
    if (speed := rate(first)) is not None:
        text += f"; then {seconds_text(speed[0])} a token (median of {len(first['seconds'])}), "
        text += f"{significant(speed[1])} tokens/s"
    return f"{text}; keys and values {bytes_text(max(rank['kv_bytes'] for rank in ranks))} a rank"


def text(tokens: Sequence[int], vocab: int) -> str:
    """Bytes as text; of a larger vocabulary, whose words nobody knows here, the numbers."""
    return bytes(tokens).decode(errors="replace") if vocab <= 256 else ",".join(map(str, tokens))
