"""Sign in, also to Django's admin, sign out, change the password: Django's own views with our templates."""

from __future__ import annotations

from django.contrib import admin, messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import PasswordChangeForm
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse, reverse_lazy
from django.views.decorators.cache import never_cache

from dashboard.accounts.throttling import ThrottledSignIn
from dashboard.fields import Form


class SignIn(auth.LoginView):
    """The only page open to visitors who are not signed in. Users already signed in are redirected to where they wanted
    to go."""

    template_name = "accounts/login.html"
    authentication_form = ThrottledSignIn
    redirect_authenticated_user = True


@never_cache
@login_not_required
def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """Where Django's admin sends whoever may not see it: leads strangers to the one sign-in that there is, and from
    there back. Raises PermissionDenied for those who are signed in and no admins: the admin would send them here again.
    """
    if admin.site.has_permission(request):
        return redirect("admin:index")
    if request.user.is_authenticated:
        raise PermissionDenied("Only admins may open the administration.")
    return auth.redirect_to_login(request.GET.get(REDIRECT_FIELD_NAME) or reverse("admin:index"))


class SignOut(auth.LogoutView):
    """Accepts POST only, as Django's view does: a link on a foreign page cannot sign anyone out."""


class PasswordForm(Form, PasswordChangeForm):
    """Django's own, which tells its errors as our forms do."""


class ChangePassword(auth.PasswordChangeView):
    form_class = PasswordForm
    template_name = "accounts/password.html"
    success_url = reverse_lazy("accounts:password")

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        response = super().form_valid(form)
        messages.success(self.request, "Your password is changed. Other devices were signed out.")
        return response
