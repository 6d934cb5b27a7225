"""Address of the Schedules page."""

from django.urls import URLPattern, URLResolver, path, re_path

from dashboard.schedules import strategies, views

app_name = "schedules"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.schedules, name="page"),
    re_path(r"^order-(?P<side>[ab])\.(?P<kind>csv|json)$", views.order, name="order"),
    path("strategies/", strategies.strategies, name="strategies"),
]
