"""A read-only base class for Django's admin: the rows are changed by the services that own them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest


def is_staff(request: HttpRequest) -> bool:
    """Whether active staff asks."""
    return bool(request.user.is_active and request.user.is_staff)


class ReadOnlyAdmin(admin.ModelAdmin):
    """Active staff may view rows; nobody may add, change or delete one here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return is_staff(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_staff(request)
