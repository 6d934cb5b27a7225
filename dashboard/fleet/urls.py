"""URLs of the fleet."""

from django.urls import URLPattern, URLResolver, path

from dashboard.fleet import dead_letter_views, views

app_name = "fleet"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.fleet, name="list"),
    path("part", views.part, name="part"),
    path("set-aside/", dead_letter_views.listed, name="set_aside"),
    path("set-aside/store", dead_letter_views.store, name="store_again"),
    path("set-aside/discard", dead_letter_views.discard, name="discard"),
    path("<int:pk>/drain", views.drain, name="drain"),
    path("<int:pk>/enable", views.enable, name="enable"),
    path("<int:pk>/remove", views.remove, name="remove"),
]
