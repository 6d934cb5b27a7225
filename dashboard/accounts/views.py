"""Sign in, sign out, change the password: Django's own views with our templates."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth import views as auth
from django.contrib.auth.forms import PasswordChangeForm
from django.http import HttpResponse
from django.urls import reverse_lazy

from dashboard.accounts.throttling import ThrottledSignIn


class SignIn(auth.LoginView):
    """The only page that strangers see. Someone already signed in goes on to where they wanted to be."""

    template_name = "accounts/login.html"
    authentication_form = ThrottledSignIn
    redirect_authenticated_user = True


class SignOut(auth.LogoutView):
    """POST only, as Django has it: a link in a foreign page cannot sign anyone out."""


class ChangePassword(auth.PasswordChangeView):
    template_name = "accounts/password.html"
    success_url = reverse_lazy("accounts:password")

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        response = super().form_valid(form)
        messages.success(self.request, "Your password is changed. Other devices were signed out.")
        return response
