"""The pages of API tokens: create one, see its secret once, revoke it; admins revoke those of workers, too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.roles import may_submit
from dashboard.api.models import ApiToken, Scope
from dashboard.fields import Choice, Form, TypedChoice

DAYS = (7, 30, 90, 365)


def scopes_for(user: Any) -> list[tuple[str, str]]:
    """Returns (value, label) of the scopes that the user may give to a token: none that allows more than the user may
    do."""
    allowed = {Scope.READ}
    if may_submit(user):
        allowed.add(Scope.SUBMIT)
    if user.is_staff:
        allowed.add(Scope.WORKER)
    return [(scope.value, scope.label) for scope in Scope if scope in allowed]


class TokenForm(Form):
    """Name, scope and lifetime of a new token; offers only the scopes that `user` may give."""

    name = forms.CharField(
        max_length=60, label="What is it for?", error_messages={"required": "Say what it is for: that is its name."}
    )
    scope = Choice(label="What may it do?")
    days = TypedChoice(label="Valid for", coerce=int, choices=[(days, f"{days} days") for days in DAYS], initial=30)

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scope = self.fields["scope"]
        assert isinstance(scope, forms.ChoiceField)
        scope.choices = scopes_for(user)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """Lists what the user may revoke and creates a token on POST. The response to a valid POST is the only page that
    holds the secret."""
    form = TokenForm(request.POST or None, user=request.user)
    secret, made = "", None
    if request.method == "POST" and form.is_valid():
        expires_at = timezone.now() + timedelta(days=form.cleaned_data["days"])
        made, secret = ApiToken.make(
            user=request.user,
            name=form.cleaned_data["name"],
            scope=form.cleaned_data["scope"],
            expires_at=expires_at,
        )
        form = TokenForm(user=request.user)
    found = list(ApiToken.revocable(request.user))
    context = {
        "form": form,
        "secret": secret,
        "made": made,
        "host": request.build_absolute_uri("/").rstrip("/"),
        "tokens": [token for token in found if token.user_id == request.user.pk],
        "of_workers": [token for token in found if token.user_id != request.user.pk],
    }
    return render(request, "accounts/tokens.html", context, status=422 if form.errors else 200)


@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(ApiToken.revocable(request.user), pk=pk)
    token.delete()
    messages.success(request, f"The token “{token.name}” is revoked.")
    return redirect("accounts:tokens")
