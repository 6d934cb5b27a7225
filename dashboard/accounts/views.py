"""Sign in, sign out, change the password: Django's own views with our templates."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth import views as auth
from django.contrib.auth.forms import PasswordChangeForm
from django.http import HttpResponse
from django.urls import reverse_lazy

from dashboard.accounts.throttling import ThrottledSignIn
from dashboard.fields import Form


class SignIn(auth.LoginView):
    """The only page open to visitors who are not signed in. Users already signed in are redirected to where they wanted
    to go."""

    template_name = "accounts/login.html"
    authentication_form = ThrottledSignIn
    redirect_authenticated_user = True


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
