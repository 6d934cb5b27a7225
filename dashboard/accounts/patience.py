"""Sign-in forms that answer a guesser slowly: after MOST failures a name is not tried again from that address."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.core.exceptions import ValidationError

MOST = 10
PAUSE_S = 300
"""From the first failure on. By address as well as by name, so that a stranger elsewhere cannot lock a member out;
behind a proxy all share its address, and the name alone counts."""


class Patient(AuthenticationForm):
    """Failures are counted in the memory of each web process: guessing is slowed down, not logged for ever."""

    def clean(self) -> dict[str, Any]:
        key = self._key()
        if cache.get(key, 0) >= MOST:
            minutes = PAUSE_S // 60
            raise ValidationError(f"{MOST} failed sign-ins for this name: try again in {minutes} minutes.", "throttled")
        try:
            cleaned = super().clean()
        except ValidationError:
            cache.add(key, 0, PAUSE_S)
            with contextlib.suppress(ValueError):  # it was forgotten in this very moment
                cache.incr(key)
            raise
        cache.delete(key)
        return cleaned

    def _key(self) -> str:
        address = self.request.META.get("REMOTE_ADDR", "") if self.request else ""
        name = self.cleaned_data.get("username") or ""
        return "sign-in:" + hashlib.sha256(f"{address} {name.casefold()}".encode()).hexdigest()


class PatientAdmin(Patient, AdminAuthenticationForm):
    """The same before the admin's own sign-in."""
