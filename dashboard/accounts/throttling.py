"""The sign-in form, which slows down guessing: after MOST failures, a name is refused from that address for a while;
after MOST_FROM_ADDRESS, every name is."""

from __future__ import annotations

import hashlib
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from dashboard.accounts.models import Failures

MOST = 10
MOST_FROM_ADDRESS = 100
"""Each password that is checked takes a large part of a second of a core, whatever the name: this bounds what a
stranger can take of the host. A whole office may share the address."""
PAUSE_S = 300
"""Seconds from the first failure until the count is forgotten. Failures count by address as well as by name, so that a
stranger elsewhere cannot lock a member out. Behind a proxy that does not pass on its visitors' addresses, or is not
trusted to (FORWARDED_ALLOW_IPS), a stranger can.
"""


class ThrottledSignIn(AuthenticationForm):
    """Counts failures in the database, for all web processes together, and forgets them after the pause. An attempt
    counts before its password is checked, so that many at the same time are no more than many in turn."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "Name or password is wrong; capitals count in both.",
    }

    def clean(self) -> dict[str, Any]:
        name = self.cleaned_data.get("username")
        if not name or not self.cleaned_data.get("password"):
            return super().clean()  # nothing is checked: neither a failure nor a success
        address = self.request.META.get("REMOTE_ADDR", "") if self.request else ""
        anybody, somebody = _key(address), _key(f"{address} {name.casefold()}")
        if Failures.add(anybody, PAUSE_S) > MOST_FROM_ADDRESS:
            raise _refusal(f"{MOST_FROM_ADDRESS} failed sign-ins from your address")
        if Failures.add(somebody, PAUSE_S) > MOST:
            Failures.take_back(anybody)  # no password is checked
            raise _refusal(f"{MOST} failed sign-ins for this name")
        cleaned = super().clean()
        Failures.take_back(anybody)
        Failures.objects.filter(key=somebody).delete()
        return cleaned


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _refusal(why: str) -> ValidationError:
    return ValidationError(f"{why}: try again in {PAUSE_S // 60} minutes.", "throttled")
