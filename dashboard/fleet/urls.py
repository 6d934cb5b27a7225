"""URLs of the fleet."""

from django.urls import URLPattern, URLResolver, path

from dashboard.fleet import views

app_name = "fleet"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.fleet, name="list"),
    path("part", views.part, name="part"),
    path("<int:pk>/drain", views.drain, name="drain"),
    path("<int:pk>/enable", views.enable, name="enable"),
    path("<int:pk>/remove", views.remove, name="remove"),
]
