from django.apps import AppConfig


class AnalystConfig(AppConfig):
    name = "dashboard.analyst"
    label = "analyst"
    default_auto_field = "django.db.models.BigAutoField"
