"""Runs, events and corpora in Django's admin, read-only: runs are changed by `services` and the controller."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.runs.models import Corpus, Event, Run
from parallel_core.analysis.quantities import bytes_text


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "state", "label", "owner", "created_at")
    list_filter = ("state", "owner")
    search_fields = ("name",)
    list_select_related = ("owner",)

    def view_on_site(self, obj: Run) -> str:  # type: ignore[override]
        return reverse("runs:page", args=(obj.pk,))


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("at", "run", "kind", "text", "actor")
    list_filter = ("kind",)
    list_select_related = ("run", "actor")


@admin.register(Corpus)
class CorpusAdmin(ReadOnlyAdmin):
    list_display = ("name", "how_large", "owner", "created_at", "sha256")
    list_select_related = ("owner",)
    fields = readonly_fields = ("name", "sha256", "how_large", "owner", "created_at")

    @admin.display(description="size", ordering="size")
    def how_large(self, corpus: Corpus) -> str:
        return bytes_text(corpus.size)
