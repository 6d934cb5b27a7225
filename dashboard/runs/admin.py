"""Runs and corpora in Django's admin, to look at: what changes a run goes through `services` and the controller."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from dashboard.runs.models import Corpus, Event, Run


class LookOnly(admin.ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)


@admin.register(Run)
class RunAdmin(LookOnly):
    list_display = ("id", "name", "state", "label", "owner", "created_at")
    list_filter = ("state", "owner")
    search_fields = ("name",)
    list_select_related = ("owner",)


@admin.register(Event)
class EventAdmin(LookOnly):
    list_display = ("at", "run", "kind", "text", "actor")
    list_filter = ("kind",)
    list_select_related = ("run", "actor")


@admin.register(Corpus)
class CorpusAdmin(LookOnly):
    list_display = ("name", "size", "owner", "created_at", "sha256")
    list_select_related = ("owner",)
