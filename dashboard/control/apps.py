from django.apps import AppConfig


class ControlConfig(AppConfig):
    name = "dashboard.control"
    label = "control"
    default_auto_field = "django.db.models.BigAutoField"
