"""URLs of the Schedules and Strategies pages."""

from django.urls import URLPattern, URLResolver, path

from dashboard.schedules import strategies, views

app_name = "schedules"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.schedules, name="page"),
    path("order-<slug:side>.<slug:kind>", views.order, name="order"),
    path("strategies/", strategies.strategies, name="strategies"),
]
