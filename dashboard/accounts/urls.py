"""URLs of sign-in and of a user's own account. There is no sign-up: staff create users in the admin."""

from django.urls import URLPattern, URLResolver, path

from dashboard.accounts import token_views, views

app_name = "accounts"
urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", views.SignIn.as_view(), name="login"),
    path("logout/", views.SignOut.as_view(), name="logout"),
    path("password/", views.ChangePassword.as_view(), name="password"),
    path("tokens/", token_views.tokens, name="tokens"),
    path("tokens/<int:pk>/revoke", token_views.revoke, name="token-revoke"),
]
