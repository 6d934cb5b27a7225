"""Addresses of the actions on searches."""

from django.urls import URLPattern, URLResolver, path

from dashboard.analyst import views

app_name = "analyst"
urlpatterns: list[URLPattern | URLResolver] = [
    path("<int:pk>/again", views.again, name="again"),
    path("<int:pk>/stop", views.stop, name="stop"),
]
