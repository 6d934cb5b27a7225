"""Who is signed in by a session, asked outside of a request."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest


def user_of(key: str) -> Any | None:
    """The active user of the session with this key; None where it is over, or was never there."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(request)
    return user if user.is_authenticated and user.is_active else None
