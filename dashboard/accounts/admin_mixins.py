"""Base classes for Django's admin. Most rows are read-only there: the services that own them change them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import SuspiciousOperation
from django.db.models import BinaryField
from django.http import HttpRequest, HttpResponse

from dashboard.numbers import number


def is_staff(request: HttpRequest) -> bool:
    """Whether active staff asks."""
    return bool(request.user.is_active and request.user.is_staff)


class KnownRowsMixin:
    """Answers what names no row, or compares bytes with text, as a bad request; Django's admin fails at it."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if any(number(key) is None for key in request.POST.getlist("_selected_action")):
            raise SuspiciousOperation("a marked row has no number")
        shown: HttpResponse = super().changelist_view(request, extra_context)  # type: ignore[misc]
        return shown

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        fields = self.model._meta.get_fields()  # type: ignore[attr-defined]
        packed = {field.name for field in fields if isinstance(field, BinaryField)}
        return lookup.partition("__")[0] not in packed and super().lookup_allowed(lookup, value, request)  # type: ignore[misc]


class ReadOnlyAdmin(KnownRowsMixin, admin.ModelAdmin):
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
