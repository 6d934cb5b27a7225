"""Query parameters that an address of the API does not have, and fields of a form that it does not take: a misspelt
filter must not answer as if it had none, nor a field that belongs elsewhere be left out without a word."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from django.http import HttpRequest

from dashboard.api.v1 import schema
from parallel_core.analysis.quantities import listed_text

Operation = dict[str, Any]
"""An operation of the OpenAPI document."""
_CAPTURED = re.compile(r"<(?:\w+:)?(\w+)>")
"""A part of a Django route, as `<int:run_id>`, which the document spells `{run_id}`."""


def unknown(request: HttpRequest) -> dict[str, str]:
    """Returns why each query parameter that the address of a request does not document is refused, and each field of a
    form; {} for addresses that the document leaves out."""
    operation = _operation(request)
    return {} if operation is None else _of_form(request, operation) | _of_address(request, operation)


def _of_address(request: HttpRequest, operation: Operation) -> dict[str, str]:
    known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    has = f"those here are {listed_text(known)}" if known else "this address has none"
    has += "" if request.method in ("GET", "DELETE") else ", fields go into the body"
    return {name: f"There is no such parameter; {has}." for name in request.GET if name not in known}


def _of_form(request: HttpRequest, operation: Operation) -> dict[str, str]:
    """Also names a field that is given more than once where one value is taken: all but the last would be lost."""
    form = operation.get("requestBody", {}).get("content", {}).get("multipart/form-data")
    if form is None:
        return {}
    known: dict[str, Any] = form["schema"]["properties"]
    wrong = {}
    for name in {**request.POST, **request.FILES}:
        if name not in known:
            wrong[name] = f"There is no such field; those here are {listed_text(list(known))}."
        elif known[name]["type"] != "array" and len(request.POST.getlist(name) + request.FILES.getlist(name)) > 1:
            wrong[name] = "It is given more than once; one is taken."
    return wrong


def _operation(request: HttpRequest) -> Operation | None:
    if request.resolver_match is None:
        return None
    return _documented().get((str(request.method), "/" + _CAPTURED.sub(r"{\1}", request.resolver_match.route)))


@cache
def _documented() -> dict[tuple[str, str], Operation]:
    """(method, address) -> what the document says of such requests."""
    every: dict[str, dict[str, Operation]] = schema()["paths"]
    return {(method.upper(), path): of for path, methods in every.items() for method, of in methods.items()}
