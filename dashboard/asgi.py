"""ASGI entry point: gunicorn dashboard.asgi:application -k uvicorn_worker.UvicornWorker."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
application = get_asgi_application()
