"""Posts JSON to the webhook. Only http and https; no redirect is followed, and of an answer only its status is used."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dashboard.webhook.models import check_url

TIMEOUT_S = 5.0
"""Seconds for which the receiver may be silent, while it connects and while it answers."""


class Posted(NamedTuple):
    """`taken`: whether the receiver answered with a status of 2xx. `result`: a sentence."""

    taken: bool
    result: str


def post(url: str, body: dict[str, Any]) -> Posted:
    """Posts `body` once. Raises ValidationError for a URL that is not allowed; any failure to post is a result."""
    check_url(url)
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json", "User-Agent": "Trainyard", "Connection": "close"}
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", target, json.dumps(body).encode(), headers)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Posted(False, f"Not delivered: {why}.")
    if 300 <= status < 400:
        return Posted(False, f"Not taken: the receiver answered {status}, and redirects are not followed.")
    return Posted(200 <= status < 300, f"{'Delivered' if 200 <= status < 300 else 'Not taken'}: it answered {status}.")
