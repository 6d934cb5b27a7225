"""Who may send a large body, told by its headers alone: a server takes the body in before any view sees the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.http import parse_cookie

from dashboard.accounts.roles import may_submit
from dashboard.accounts.sessions import user_of
from dashboard.api.models import ApiToken, Scope


async def may_upload(scope: Mapping[str, Any]) -> bool:
    """Whether an ASGI request comes from somebody who may submit, by the token or the session that it names."""
    return await sync_to_async(_may_upload, thread_sensitive=False)(scope)


def _may_upload(scope: Mapping[str, Any]) -> bool:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    try:
        if scope["path"].startswith("/api/") and b"authorization" in headers:
            # As in dashboard.api.auth: a token that is no good does not fall through to the cookie.
            token = ApiToken.find(headers[b"authorization"].partition(" ")[2])
            return token is not None and token.scope == Scope.SUBMIT and may_submit(token.user)
        user = user_of(parse_cookie(headers.get(b"cookie", "")).get(settings.SESSION_COOKIE_NAME, ""))
        return user is not None and may_submit(user)
    finally:
        connections.close_all()  # no request has begun: nothing else would close this thread's
