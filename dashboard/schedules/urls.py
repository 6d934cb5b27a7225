"""Address of the Schedules page."""

from django.urls import URLPattern, URLResolver, path

from dashboard.schedules import views

app_name = "schedules"
urlpatterns: list[URLPattern | URLResolver] = [path("", views.schedules, name="page")]
