from django.urls import URLPattern, URLResolver

app_name = "runs"
urlpatterns: list[URLPattern | URLResolver] = []
