from django.apps import AppConfig


class WebhookConfig(AppConfig):
    name = "dashboard.webhook"
    label = "webhook"
    default_auto_field = "django.db.models.BigAutoField"
