"""Tokens in Django's admin: staff see whose they are and revoke them; secrets are nowhere to be seen."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.api.models import ApiToken


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """A token that is deleted is refused from then on."""

    list_display = ("name", "user", "scope", "start", "expires_at")
    list_filter = ("scope",)
    list_select_related = ("user",)
    exclude = ("hashed",)

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return self.has_view_permission(request)
