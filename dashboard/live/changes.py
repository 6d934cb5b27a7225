"""Finds what a browser does not have yet of a page's live parts, so that an update sends a few rows, not the page.

A part's text is cut into pieces after each row, list item and article. A chart's JSON is cut around each of its traces
and within long lists of numbers, so a growing curve sends only its end. An answer lists the digests of all pieces in
order, and the texts of those pieces whose digests the browser did not send. The server keeps no state: a browser that
sends no digests gets all texts.

An answer also states its cost in CPU time. On a laptop the same processor makes the answers and executes the runs, so
the more an answer costs, the less often a page asks (refetch.js).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.template.loader import render_to_string

HEADER = "X-Have"
"""Request header: the digests that a browser has, separated by commas."""
ITEMS = 128
"""Numbers of a list in one piece; enough for a page of some dozen curves to name all pieces in one header."""
_NUMBERS = re.compile(rf"(?<=\[)[^\[\]{{}}\"]{{{2 * ITEMS},}}(?=\])")
COST = "X-Cost-Ms"
"""Response header: CPU milliseconds that the answer took."""
_ENDS = re.compile(r"(?<=</tr>)|(?<=</li>)|(?<=</article>)")


def asked(request: HttpRequest) -> frozenset[str]:
    """The digests in the request's HEADER."""
    return frozenset(request.headers.get(HEADER, "").split(","))


def pieces(text: str) -> list[str]:
    """The text cut after rows, list items and articles; joined, the pieces are the text again."""
    return [piece for piece in _ENDS.split(text) if piece]


def chart_pieces(chart: Mapping[str, Any]) -> list[str]:
    """The chart's JSON in pieces: what surrounds its figure, what surrounds the traces in it, then each trace.

    Long lists of numbers are cut into pieces of ITEMS numbers. Joined, the pieces are the JSON again.
    """
    figure = chart["figure"]
    around = json.dumps({key: value for key, value in chart.items() if key != "figure"})
    layout = json.dumps({key: value for key, value in figure.items() if key != "data"})
    traces = [f"{', ' if i else ''}{json.dumps(trace)}" for i, trace in enumerate(figure["data"])]
    whole = [f'{around[:-1]}, "figure": ', f'{layout[:-1]}, "data": [', *traces, "]}}"]
    return [piece for text in whole for piece in _by_lists(text)]


def _by_lists(text: str) -> list[str]:
    """JSON cut around and within its long lists. The comma begins the next piece: a piece stays as it is when the list
    grows."""
    out, at = [], 0
    for found in _NUMBERS.finditer(text):
        numbers = found[0].split(", ")
        out.append(text[at : found.start()])
        for i in range(0, len(numbers), ITEMS):
            out.append(f"{', ' if i else ''}{', '.join(numbers[i : i + ITEMS])}")
        at = found.end()
    return [*out, text[at:]]


def changed(parts: Mapping[str, str], charts: Mapping[str, Any], have: Collection[str]) -> dict[str, Any]:
    """Returns `parts`: id -> digests in order; `charts`: key -> digests of its JSON; `texts`: digest -> text, without
    those in `have`."""
    cut = {name: pieces(text) for name, text in parts.items()}, {key: chart_pieces(own) for key, own in charts.items()}
    listed = [{name: [(digest(piece), piece) for piece in own] for name, own in one.items()} for one in cut]
    texts = dict(found for one in listed for own in one.values() for found in own)
    of_parts, of_charts = ({name: [key for key, _ in own] for name, own in one.items()} for one in listed)
    return {
        "parts": of_parts,
        "charts": of_charts,
        "texts": {key: text for key, text in texts.items() if key not in have},
    }


def answer(
    request: HttpRequest, folder: str, parts: Mapping[str, str], context: dict[str, Any], charts: Mapping[str, Any]
) -> JsonResponse:
    """Returns what the browser lacks of `parts` (id -> name of its template in `folder`) and `charts`."""
    made = {name: render_to_string(f"{folder}/{one}.html", context, request) for name, one in parts.items()}
    return JsonResponse(changed(made, {key: chart.as_dict() for key, chart in charts.items()}, asked(request)))


def priced(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Wraps a view so that its answer has the COST header."""

    @wraps(view)
    def say(*args: Any, **kwargs: Any) -> HttpResponseBase:
        began = time.thread_time()
        answered = view(*args, **kwargs)
        answered.headers[COST] = f"{1e3 * (time.thread_time() - began):.0f}"
        return answered

    return say


def digest(text: str) -> str:
    """Twelve hexadecimal digits of SHA-256: among 10 000 pieces, two collide once in about five million pages."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
