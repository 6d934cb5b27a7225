"""Query parameters that an address of the API does not have: a misspelt filter must not answer as if it had none, nor a
field that belongs into the body be left out without a word."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from django.http import HttpRequest

from dashboard.api.v1 import schema
from parallel_core.analysis.quantities import listed_text

_CAPTURED = re.compile(r"<(?:\w+:)?(\w+)>")
"""A part of a Django route, as `<int:run_id>`, which the document spells `{run_id}`."""


def unknown(request: HttpRequest) -> dict[str, str]:
    """Returns why each query parameter that the address of a request does not document is refused; {} for addresses
    that the document leaves out."""
    if not request.GET or request.resolver_match is None:
        return {}
    known = _documented().get((str(request.method), "/" + _CAPTURED.sub(r"{\1}", request.resolver_match.route)))
    if known is None:
        return {}
    has = f"those here are {listed_text(known)}" if known else "this address has none"
    has += "" if request.method in ("GET", "DELETE") else ", fields go into the body"
    return {name: f"There is no such parameter; {has}." for name in request.GET if name not in known}


@cache
def _documented() -> dict[tuple[str, str], list[str]]:
    """(method, address) -> names of the query parameters of such requests."""
    every: dict[str, dict[str, dict[str, Any]]] = schema()["paths"]
    return {
        (method.upper(), path): [one["name"] for one in of.get("parameters", ()) if one["in"] == "query"]
        for path, methods in every.items()
        for method, of in methods.items()
    }
