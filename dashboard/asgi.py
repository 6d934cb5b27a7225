"""ASGI entry point: gunicorn -c python:dashboard.gunicorn dashboard.asgi:application."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
pages = get_asgi_application()

# Who may upload is asked of the models, which are there once Django is set up.
from dashboard.api.uploaders import may_upload  # noqa: E402
from dashboard.body_limit import BodyLimit  # noqa: E402

application = BodyLimit(pages, may_upload)
