"""The webhook in Django's admin: its URL, the last result, and a button that sends a test."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from dashboard.accounts.admin_mixins import is_staff
from dashboard.webhook.models import Delivery, Webhook
from dashboard.webhook.notices import of_test
from dashboard.webhook.posting import post

TEST = "_test"


@admin.register(Webhook)
class WebhookAdmin(admin.ModelAdmin):
    """There is one; active staff set it."""

    fields = ("url", "last_result")
    readonly_fields = ("last_result",)
    change_form_template = "admin/webhook/webhook/change_form.html"

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_staff(request)

    def has_view_permission(self, request: HttpRequest, obj: Webhook | None = None) -> bool:
        return self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Webhook | None = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_module_permission(request) and not Webhook.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Webhook | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Opens the only row, or the form for it."""
        if not self.has_view_permission(request):
            return super().changelist_view(request, extra_context)
        only = Webhook.objects.order_by("pk").first()
        if only is None:
            return HttpResponseRedirect(reverse("admin:webhook_webhook_add"))
        return HttpResponseRedirect(reverse("admin:webhook_webhook_change", args=[only.pk]))

    @admin.display(description="last result")
    def last_result(self, webhook: Webhook) -> str:
        if webhook.pk is None or webhook.result_at is None:
            return "nothing was sent yet"
        # a study's note waits for what may be queued next, and is mostly void then
        waiting = Delivery.objects.filter(Q(study=None) | Q(tries__gt=0)).count()
        more = f" Waiting to be sent: {waiting}." if waiting else ""
        return f"{webhook.result_at:%Y-%m-%d %H:%M:%S} UTC. {webhook.result}{more}"

    def save_model(self, request: HttpRequest, obj: Webhook, form: Any, change: bool) -> None:
        """Also keeps the address at which this yard was reached. A new URL has no result yet."""
        obj.origin = request.build_absolute_uri("/").rstrip("/")
        if "url" in form.changed_data:
            obj.result, obj.result_at = "", None
        super().save_model(request, obj, form, change)
        if not obj.url:
            Delivery.objects.all().delete()

    def response_add(self, request: HttpRequest, obj: Webhook, post_url_continue: str | None = None) -> HttpResponse:
        return self._tested(request, obj) or super().response_add(request, obj, post_url_continue)

    def response_change(self, request: HttpRequest, obj: Webhook) -> HttpResponse:
        return self._tested(request, obj) or super().response_change(request, obj)

    def _tested(self, request: HttpRequest, obj: Webhook) -> HttpResponse | None:
        """After *Send a test*, which saves first: posts once and shows the result; None after another button."""
        if TEST not in request.POST:
            return None
        if not obj.url:
            self.message_user(request, "Set a URL first.", messages.WARNING)
        else:
            posted = post(obj.url, of_test(obj.origin))
            obj.note(f"Test: {posted.result}")
            self.message_user(request, posted.result, messages.SUCCESS if posted.taken else messages.ERROR)
        return HttpResponseRedirect(reverse("admin:webhook_webhook_change", args=[obj.pk]))
