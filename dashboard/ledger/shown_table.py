"""The table of a profile, for the pages that answer from it."""

from __future__ import annotations

from typing import Any

from django.http import Http404

from dashboard.ledger.models import Profile


def shown_table(profile: Profile) -> dict[str, Any]:
    """The table, which lists leave in the database until it is needed. Raises Http404 if the profile was deleted in
    between, as with its worker."""
    try:
        return profile.table
    except Profile.DoesNotExist as error:
        raise Http404(f"profile {profile.pk} was deleted") from error
