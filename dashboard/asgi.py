"""ASGI entry point: gunicorn -c python:dashboard.gunicorn dashboard.asgi:application."""

import os

from django.core.asgi import get_asgi_application

from dashboard.body_limit import BodyLimit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
application = BodyLimit(get_asgi_application())
