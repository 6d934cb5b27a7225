from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "dashboard.live"
    label = "live"
    default_auto_field = "django.db.models.BigAutoField"
