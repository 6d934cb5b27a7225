"""Sign-in forms that slow down guessing: after MOST failures, a name is refused from that address for a while."""

from __future__ import annotations

import hashlib
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from dashboard.accounts.models import Failures

MOST = 10
PAUSE_S = 300
"""Seconds from the first failure until the count is forgotten. Failures count by address as well as by name, so that a
stranger elsewhere cannot lock a member out; behind a proxy all requests come from its address, so only the name counts.
"""


class ThrottledSignIn(AuthenticationForm):
    """Counts failures in the database, for all web processes together, and forgets them after the pause."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "Name or password is wrong; capitals count in both.",
    }

    def clean(self) -> dict[str, Any]:
        key = self._key()
        if Failures.known(key, PAUSE_S) >= MOST:
            minutes = PAUSE_S // 60
            raise ValidationError(f"{MOST} failed sign-ins for this name: try again in {minutes} minutes.", "throttled")
        try:
            cleaned = super().clean()
        except ValidationError:
            Failures.add(key, PAUSE_S)
            raise
        if self.get_user() is not None:  # an empty password is not checked at all, so it is no success either
            Failures.objects.filter(key=key).delete()
        return cleaned

    def _key(self) -> str:
        address = self.request.META.get("REMOTE_ADDR", "") if self.request else ""
        name = self.cleaned_data.get("username") or ""
        return hashlib.sha256(f"{address} {name.casefold()}".encode()).hexdigest()


class ThrottledAdminSignIn(ThrottledSignIn, AdminAuthenticationForm):
    """The same for the sign-in page of Django's admin, with the admin's error messages."""

    error_messages = AdminAuthenticationForm.error_messages
