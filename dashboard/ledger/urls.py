"""URLs of profiles, the Partition page, plans for this fleet, layer graphs, and the record of predictions."""

from django.urls import URLPattern, URLResolver, path, re_path

from dashboard.ledger import fleet_views, graph_views, recalibration, views

app_name = "ledger"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.partition, name="partition"),
    path("fleet/", fleet_views.fleet, name="fleet"),
    path("fleet/found", fleet_views.found, name="fleet-found"),
    path("graph/", graph_views.graph, name="graph"),
    re_path(r"^graph/(?P<sha256>[0-9a-f]{64})/$", graph_views.answer, name="graph-answer"),
    re_path(r"^graph/(?P<sha256>[0-9a-f]{64})/found$", graph_views.found, name="graph-found"),
    path("alpa", views.alpa, name="alpa"),
    path("profile", views.profile, name="profile"),
    path("profile/<int:pk>/withdraw", views.withdraw, name="withdraw"),
    path("waiting", views.waiting, name="waiting"),
    path("record/", views.record, name="record"),
    path("recalibrate", recalibration.recalibrate, name="recalibrate"),
    path("recalibrated/<int:pk>/undo", recalibration.undo, name="undo"),
]
