"""API tokens in Django's admin: staff see who owns a token and can revoke it; its hashed secret is not shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.api.models import ApiToken


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Staff may delete a token; it is refused from then on."""

    list_display = ("name", "user", "made_by", "scope", "start", "expires_at")
    list_filter = ("scope",)
    list_select_related = ("user",)
    exclude = ("hashed",)

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return self.has_view_permission(request)
