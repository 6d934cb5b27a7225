"""What of a page's live parts a browser does not have yet, so that a turn sends a few rows and not the page.

A part's text is cut into pieces behind each row, list item and article, a chart's JSON around each of its traces and
within long lists of numbers: a curve that grows sends its end. An
answer lists the digests of all pieces in their order, and holds those texts alone that the browser did not name among
the digests it has. Nothing is remembered here: one that names none gets all.

It says, too, what it cost: on a laptop the processor that makes it is the one whose runs it tells of, so a page asks
the less often the more it costs (live.js).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.template.loader import render_to_string

HEADER = "X-Have"
"""The digests that a browser has, with commas between."""
ITEMS = 128
"""Numbers of a list that are one piece: a page of some dozen curves still names its pieces in one header."""
_NUMBERS = re.compile(rf"(?<=\[)[^\[\]{{}}\"]{{{2 * ITEMS},}}(?=\])")
COST = "X-Cost-Ms"
"""Milliseconds of a core that the answer took."""
_ENDS = re.compile(r"(?<=</tr>)|(?<=</li>)|(?<=</article>)")


def asked(request: HttpRequest) -> frozenset[str]:
    """The digests of its HEADER."""
    return frozenset(request.headers.get(HEADER, "").split(","))


def pieces(text: str) -> list[str]:
    """They make up the text again."""
    return [piece for piece in _ENDS.split(text) if piece]


def chart_pieces(chart: Mapping[str, Any]) -> list[str]:
    """They make up its JSON: what is around its figure, what is around the traces of that, then each trace; of these,
    lists of more than ITEMS numbers are pieces of their own."""
    figure = chart["figure"]
    around = json.dumps({key: value for key, value in chart.items() if key != "figure"})
    layout = json.dumps({key: value for key, value in figure.items() if key != "data"})
    traces = [f"{', ' if i else ''}{json.dumps(trace)}" for i, trace in enumerate(figure["data"])]
    whole = [f'{around[:-1]}, "figure": ', f'{layout[:-1]}, "data": [', *traces, "]}}"]
    return [piece for text in whole for piece in _by_lists(text)]


def _by_lists(text: str) -> list[str]:
    """JSON cut around and within its long lists. A piece begins with its comma: it stays when another follows it."""
    out, at = [], 0
    for found in _NUMBERS.finditer(text):
        numbers = found[0].split(", ")
        out.append(text[at : found.start()])
        for i in range(0, len(numbers), ITEMS):
            out.append(f"{', ' if i else ''}{', '.join(numbers[i : i + ITEMS])}")
        at = found.end()
    return [*out, text[at:]]


def changed(parts: Mapping[str, str], charts: Mapping[str, Any], have: Collection[str]) -> dict[str, Any]:
    """`parts`: id -> digests in order; `charts`: key -> the same of its JSON; `texts`: digest -> text."""
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
    """Of `parts` (id -> name of its template in `folder`) and `charts`, what the browser does not have."""
    made = {name: render_to_string(f"{folder}/{one}.html", context, request) for name, one in parts.items()}
    return JsonResponse(changed(made, {key: chart.as_dict() for key, chart in charts.items()}, asked(request)))


def priced(view: Callable[..., JsonResponse]) -> Callable[..., JsonResponse]:
    """The view, whose answer says its COST."""

    @wraps(view)
    def say(*args: Any, **kwargs: Any) -> JsonResponse:
        began = time.thread_time()
        answered = view(*args, **kwargs)
        answered.headers[COST] = f"{1e3 * (time.thread_time() - began):.0f}"
        return answered

    return say


def digest(text: str) -> str:
    """Twelve characters: of ten thousand pieces two are the same by chance once in five million pages."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
