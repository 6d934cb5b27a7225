"""URLs of runs. The views of a run's own page are in `page.views`."""

from django.urls import URLPattern, URLResolver, path

from dashboard.runs import cancelling_views, link_views, removal_views, views
from dashboard.runs.browse import list_views
from dashboard.runs.generation import generate_views
from dashboard.runs.page import log_views, report_views
from dashboard.runs.page import views as page_views
from dashboard.runs.texts import text_views
from dashboard.runs.tracing import profile_views, trace_views
from dashboard.runs.waiting import queue_views

app_name = "runs"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", list_views.runs, name="list"),
    path("compare", list_views.compare, name="compare"),
    path("cancel", cancelling_views.cancel, name="cancel-many"),
    path("export.csv", list_views.export_csv, name="export-csv"),
    path("export.json", list_views.export_json, name="export-json"),
    path("delete", removal_views.delete, name="delete"),
    path("free-space", removal_views.free_space, name="free-space"),
    path("links", link_views.measure, name="links"),
    path("texts/", text_views.texts, name="texts"),
    path("texts/<int:pk>/delete", text_views.delete, name="delete-text"),
    path("new/", views.new, name="new"),
    path("new/check", views.check, name="check"),
    path("new/spec", views.load, name="load"),
    path("<int:pk>/", page_views.page, name="page"),
    path("<int:pk>/part/<slug:name>", page_views.fragment, name="fragment"),
    path("<int:pk>/data/<slug:name>.json", page_views.data, name="data"),
    path("<int:pk>/log/<int:rank>.txt", log_views.whole, name="log"),
    path("<int:pk>/trace/<int:step>/<slug:form>", trace_views.trace, name="trace"),
    path("<int:pk>/profile/<int:step>", profile_views.open_in_traces, name="open-profile"),
    path("<int:pk>/profile/<int:step>/<int:rank>.json.gz", profile_views.download, name="profile"),
    path("<int:pk>/snapshot/<int:step>/<int:rank>.<str:form>", profile_views.snapshot, name="snapshot"),
    path("<int:pk>/report/", report_views.report, name="report"),
    path("<int:pk>/clone", views.clone, name="clone"),
    path("<int:pk>/resume", views.resume, name="resume"),
    path("<int:pk>/generate", generate_views.generate, name="generate"),
    path("<int:pk>/generate/check", generate_views.check, name="generate-check"),
    path("weights/<str:weights>/generate", generate_views.generate, name="generate-from-weights"),
    path("weights/<str:weights>/generate/check", generate_views.check, name="generate-from-weights-check"),
    path("<int:pk>/trace-next", views.trace_next, name="trace-next"),
    path("<int:pk>/cancel", views.cancel, name="cancel"),
    path("<int:pk>/queue", queue_views.change, name="queue"),
    path("<int:pk>/first", queue_views.first, name="first"),
    path("<int:pk>/edit", views.edit, name="edit"),
]
