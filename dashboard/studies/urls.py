from django.urls import URLPattern, URLResolver

app_name = "studies"
urlpatterns: list[URLPattern | URLResolver] = []
