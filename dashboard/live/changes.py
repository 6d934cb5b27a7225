"""What of a page's live parts a browser does not have yet, so that a turn sends a few rows and not the page.

A part's text is cut into pieces behind each row and list item. An answer lists the digests of every part's pieces in
their order, and holds those texts alone that the browser did not name among the digests it has. Nothing is remembered
here: one that names none gets all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from django.http import HttpRequest

HEADER = "X-Have"
"""The digests that a browser has, with commas between."""
_ENDS = re.compile(r"(?<=</tr>)|(?<=</li>)")


def asked(request: HttpRequest) -> frozenset[str]:
    """The digests of its HEADER."""
    return frozenset(request.headers.get(HEADER, "").split(","))


def pieces(text: str) -> list[str]:
    """They make up the text again."""
    return [piece for piece in _ENDS.split(text) if piece]


def changed(parts: Mapping[str, str], charts: Mapping[str, Any], have: Collection[str]) -> dict[str, Any]:
    """`parts`: id -> digests in order; `charts`: key -> digest; `texts`: digest -> text, a chart's is its JSON."""
    listed = {name: [(digest(piece), piece) for piece in pieces(text)] for name, text in parts.items()}
    drawn = {key: json.dumps(chart) for key, chart in charts.items()}
    texts = dict(one for own in listed.values() for one in own) | {digest(text): text for text in drawn.values()}
    return {
        "parts": {name: [key for key, _ in own] for name, own in listed.items()},
        "charts": {key: digest(text) for key, text in drawn.items()},
        "texts": {key: text for key, text in texts.items() if key not in have},
    }


def digest(text: str) -> str:
    """Twelve characters: of ten thousand pieces two are the same by chance once in five million pages."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
