from django.urls import URLPattern, URLResolver, path

from dashboard.live import views

app_name = "live"
urlpatterns: list[URLPattern | URLResolver] = [path("stream", views.stream, name="stream")]
