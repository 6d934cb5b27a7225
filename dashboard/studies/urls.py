"""URLs of studies and comparisons; the front page redirects to the studies."""

from django.urls import URLPattern, URLResolver, path

from dashboard.studies import add_views, compare_views, edit_views, list_views, removal_views, views
from dashboard.studies.new import form_views
from dashboard.studies.report import report_views

app_name = "studies"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("studies/", list_views.list_page, name="list"),
    path("studies/changes.json", list_views.list_changes, name="list_changes"),
    path("studies/new/", form_views.new, name="new"),
    path("studies/break/<slug:key>", form_views.reproduce, name="break"),
    path("studies/<int:pk>/", views.page, name="page"),
    path("studies/<int:pk>/changes.json", views.changes, name="changes"),
    path("studies/<int:pk>/findings/", views.of_rules, name="findings"),
    path("studies/<int:pk>/questions/", views.questions, name="questions"),
    path("studies/<int:pk>/gantt.json", views.gantt, name="gantt"),
    path("studies/<int:pk>/table.csv", views.table_csv, name="csv"),
    path("studies/<int:pk>/add/", add_views.add_run, name="add"),
    path("studies/<int:pk>/again/", views.run_again, name="again"),
    path("studies/<int:pk>/edit/", edit_views.edit, name="edit"),
    path("studies/<int:pk>/delete/", removal_views.delete, name="delete"),
    path("studies/<int:pk>/report/", report_views.report, name="report"),
    path("studies/<int:pk>/baseline/", views.save_baseline, name="baseline"),
    path("compare/", compare_views.compare_page, name="compare"),
    path("compare/changes.json", compare_views.compare_changes, name="compare_changes"),
    path("compare/gantt.json", compare_views.compare_gantt, name="compare_gantt"),
]
