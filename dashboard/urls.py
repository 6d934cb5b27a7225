"""All URLs; each app has its own file."""

from django.contrib import admin
from django.urls import include, path

from dashboard.accounts.views import admin_sign_in

admin.autodiscover()
urlpatterns = [
    path("admin/login/", admin_sign_in),
    path("admin/", admin.site.urls),
    path("accounts/", include("dashboard.accounts.urls")),
    path("live/", include("dashboard.live.urls")),
    path("api/", include("dashboard.api.urls")),
    path("runs/", include("dashboard.runs.urls")),
    path("planner/", include("dashboard.plans.urls")),
    path("partition/", include("dashboard.ledger.urls")),
    path("fleet/", include("dashboard.fleet.urls")),
    path("searches/", include("dashboard.analyst.urls")),
    path("traces/", include("dashboard.traces.urls")),
    path("schedules/", include("dashboard.schedules.urls")),
    path("", include("dashboard.studies.urls")),
]
handler400 = "dashboard.errors.bad_request"
handler403 = "dashboard.errors.not_allowed"
handler404 = "dashboard.errors.not_found"
handler500 = "dashboard.errors.server_error"
