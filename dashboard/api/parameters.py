"""Query parameters that an address of the API does not have: a misspelt filter must not answer as if it had none."""

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
    """Returns why each query parameter of a GET request that its address does not document is refused; {} for other
    requests, and for addresses that the document leaves out."""
    if request.method != "GET" or not request.GET or request.resolver_match is None:
        return {}
    known = _documented().get("/" + _CAPTURED.sub(r"{\1}", request.resolver_match.route))
    if known is None:
        return {}
    has = f"those here are {listed_text(known)}" if known else "this address has none"
    return {name: f"There is no such parameter; {has}." for name in request.GET if name not in known}


@cache
def _documented() -> dict[str, list[str]]:
    """Address -> names of the query parameters of its GET requests."""
    gets: dict[str, dict[str, Any]] = {path: of["get"] for path, of in schema()["paths"].items() if "get" in of}
    return {
        path: [one["name"] for one in of.get("parameters", ()) if one["in"] == "query"] for path, of in gets.items()
    }
