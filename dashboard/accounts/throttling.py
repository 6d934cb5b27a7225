"""Sign-in forms that answer a guesser slowly: after MOST failures a name is not tried again from that address."""

from __future__ import annotations

import hashlib
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from dashboard.accounts.models import Failures

MOST = 10
PAUSE_S = 300
"""From the first failure on. By address as well as by name, so that a stranger elsewhere cannot lock a member out;
behind a proxy all share its address, and the name alone counts."""


class ThrottledSignIn(AuthenticationForm):
    """Failures are counted in the database, for all web processes together, and forgotten behind the pause."""

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
        Failures.objects.filter(key=key).delete()
        return cleaned

    def _key(self) -> str:
        address = self.request.META.get("REMOTE_ADDR", "") if self.request else ""
        name = self.cleaned_data.get("username") or ""
        return hashlib.sha256(f"{address} {name.casefold()}".encode()).hexdigest()


class ThrottledAdminSignIn(ThrottledSignIn, AdminAuthenticationForm):
    """The same before the admin's own sign-in, in its words."""

    error_messages = AdminAuthenticationForm.error_messages
