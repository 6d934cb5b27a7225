"""URLs of imported traces."""

from django.urls import path

from dashboard.traces import views

app_name = "traces"
urlpatterns = [
    path("", views.traces, name="list"),
    path("new/", views.new, name="new"),
    path("<int:pk>/", views.one, name="page"),
    path("<int:pk>/gantt.json", views.gantt, name="gantt"),
    path("<int:pk>/operators/", views.operators, name="operators"),
    path("<int:pk>/planned/", views.planned, name="planned"),
    path("<int:pk>/whatif/", views.changed, name="whatif"),
    path("<int:pk>/step-<int:step>.<slug:form>", views.saved, name="file"),
    path("<int:pk>/delete/", views.delete, name="delete"),
]
