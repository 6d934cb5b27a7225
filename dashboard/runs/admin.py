"""Runs, events, corpora and records that were set aside in Django's admin, read-only.

Runs are changed by `services` and the controller.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.runs.models import Corpus, DeadLetter, Event, Run
from parallel_core.analysis.quantities import bytes_text


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "state", "label", "owner", "created_at")
    list_filter = ("state", "owner")
    search_fields = ("name",)
    list_select_related = ("owner",)

    def view_on_site(self, obj: Run) -> str:
        return reverse("runs:page", args=(obj.pk,))


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("at", "run", "kind", "text", "actor")
    list_filter = ("kind",)
    list_select_related = ("run", "actor")


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """They are stored again, or discarded, on a page of the fleet (`fleet.dead_letter_views`)."""

    list_display = fields = readonly_fields = ("at", "run", "rank", "channel", "start", "end", "error", "tried_at")
    list_select_related = ("attempt__run",)

    def view_on_site(self, obj: DeadLetter) -> str:
        return f"{reverse('fleet:set_aside')}?run={obj.attempt.run_id}"

    @admin.display(ordering="attempt__run")
    def run(self, letter: DeadLetter) -> Run:
        return letter.attempt.run


@admin.register(Corpus)
class CorpusAdmin(ReadOnlyAdmin):
    list_display = ("name", "how_large", "owner", "created_at", "sha256")
    list_select_related = ("owner",)
    fields = readonly_fields = ("name", "sha256", "how_large", "owner", "created_at")

    @admin.display(description="size", ordering="size")
    def how_large(self, corpus: Corpus) -> str:
        return bytes_text(corpus.size)
