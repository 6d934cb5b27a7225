"""URLs of the planner's pages."""

from django.urls import URLPattern, URLResolver, path

from dashboard.plans import accuracy_views, crossover, judge_views, layout, serving, views

app_name = "plans"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.planner, name="page"),
    path("timeline.json", views.timeline, name="timeline"),
    path("questions", views.questions, name="questions"),
    path("layout", layout.layout, name="layout"),
    path("plans.json", views.export, {"kind": "json"}, name="json"),
    path("crossover/", crossover.page, name="crossover"),
    path("inference/", serving.page, name="serving"),
    path("judge/", judge_views.judge, name="judge"),
    path("judge/common", judge_views.common, name="common"),
    path("scenarios/", judge_views.gallery, name="scenarios"),
    path("accuracy/", accuracy_views.page, name="accuracy"),
    path("accuracy/bubbles/<str:model>", accuracy_views.bubbles, name="bubbles"),
    path("plans.csv", views.export, {"kind": "csv"}, name="csv"),
]
