"""Studies in Django's admin, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.studies.models import Study, StudyEvent


@admin.register(Study)
class StudyAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "kind", "owner", "created_at")
    list_filter = ("kind", "owner")
    search_fields = ("name",)
    list_select_related = ("owner",)

    def view_on_site(self, obj: Study) -> str:
        return reverse("studies:page", args=(obj.pk,))


@admin.register(StudyEvent)
class StudyEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "study", "kind", "text", "actor")
    list_filter = ("kind",)
    list_select_related = ("study", "actor")
