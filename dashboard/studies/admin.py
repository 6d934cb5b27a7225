"""Studies in Django's admin, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.studies.models import Study


@admin.register(Study)
class StudyAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "kind", "owner", "created_at")
    list_filter = ("kind", "owner")
    search_fields = ("name",)
    list_select_related = ("owner",)

    def view_on_site(self, obj: Study) -> str:
        return reverse("studies:page", args=(obj.pk,))
