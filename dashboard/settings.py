"""Django settings. What differs between deployments comes from the environment; defaults are for `./run`."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from dashboard.static_version import static_version
from dashboard.yard.home import Home
from workers.settings import socket_url

BASE_DIR = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("TRAINYARD_HOME", BASE_DIR / ".trainyard")).resolve()
"""The folder with all data of an embedded yard."""
DEFAULT_SECRET = "insecure-for-development-only"


def flag(name: str, default: bool) -> bool:
    return os.environ.get(name, "1" if default else "0").lower() in {"1", "true", "yes", "on"}


def whole(name: str, default: int) -> int:
    """A whole number of at least 0."""
    given = os.environ.get(name, "").strip() or str(default)
    if not given.isdecimal():
        raise ImproperlyConfigured(f"{name} is a whole number, 0 or more, not {given!r}.")
    return int(given)


def listed(name: str, default: str = "") -> list[str]:
    """The values between commas, without surrounding spaces."""
    return [value for part in os.environ.get(name, default).split(",") if (value := part.strip())]


def database(url: str) -> Any:
    """The database that a URL names. The message about one that names none never has its password."""
    try:
        return dj_database_url.parse(url, conn_max_age=0)
    except ValueError:
        raise ImproperlyConfigured(
            "DATABASE_URL must be such as postgres://user:password@host:5432/name, with a port by its number."
        ) from None


DEBUG = flag("DEBUG", False)
SECRET_KEY = os.environ.get("SECRET_KEY", DEFAULT_SECRET)
if SECRET_KEY.strip() in ("", DEFAULT_SECRET) and not DEBUG and not flag("TRAINYARD_TESTING", False):
    raise ImproperlyConfigured(
        "SECRET_KEY is not set. Set it to a long random string (./run does this itself), or DEBUG=1 to develop."
    )
ALLOWED_HOSTS = listed("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
if wrong := [host for host in ALLOWED_HOSTS if "/" in host]:
    raise ImproperlyConfigured(f"ALLOWED_HOSTS takes names alone, such as yard.example.org, not {wrong[0]!r}.")
CSRF_TRUSTED_ORIGINS = listed("CSRF_TRUSTED_ORIGINS")
if wrong := [origin for origin in CSRF_TRUSTED_ORIGINS if not re.fullmatch(r"https?://[^/\s]+", origin)]:
    raise ImproperlyConfigured(
        f"CSRF_TRUSTED_ORIGINS takes origins such as https://yard.example.org, not {wrong[0]!r}: every form would "
        "be refused."
    )

INSTALLED_APPS = [
    "django.contrib.admin.apps.SimpleAdminConfig",  # dashboard.urls imports what is registered: for the web alone
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "dashboard.accounts",
    "dashboard.fleet",
    "dashboard.analyst",
    "dashboard.traces",
    "dashboard.studies",
    "dashboard.runs",
    "dashboard.ledger",
    "dashboard.plans",
    "dashboard.api",
    "dashboard.live",
    "dashboard.control",
    "dashboard.webhook",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "dashboard.health.HealthMiddleware",
    "dashboard.static_middleware.StaticMiddleware",
    "dashboard.accounts.middleware.CompressedPagesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.accounts.middleware.SignedInMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.accounts.middleware.ContentSecurityPolicyMiddleware",
    "dashboard.accounts.middleware.WrongMethodMiddleware",
]
ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.accounts.roles.in_templates",
            ],
        },
    }
]

FORM_RENDERER = "dashboard.form_renderer.Renderer"

# Debian's SQLite overwrites all that is deleted with zeros otherwise: as many bytes are written once more.
SQLITE_INIT = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000; PRAGMA secure_delete=OFF;"
SILENT_SERVER: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds, unlike the others
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 "
    "-c tcp_user_timeout=20000",
}
"""PostgreSQL's client (libpq, section 32.1.2) gives up a server that is not there any more. By itself it waits for a
connection for ever, and a quarter of an hour on one over which packets are lost. `options` are the server's own
(section 19.3.2): by itself it keeps the session of a client whose host died for two hours, and with it the lock by
which one controller works. Options in DATABASE_URL count before these."""
# The file is named without a URL, in which some characters of a path would mean something else.
DATABASES: dict[str, Any] = {
    "default": database(url)
    if (url := os.environ.get("DATABASE_URL"))
    else {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Home(HOME).database)}
}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # Measured: WAL with IMMEDIATE transactions does 1 826 commits/s and never answers "database is locked".
    DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "init_command": SQLITE_INIT, "timeout": 20}
else:
    DATABASES["default"]["OPTIONS"] = {**SILENT_SERVER, **DATABASES["default"].get("OPTIONS", {})}

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "OPTIONS": {"MAX_ENTRIES": 5000},
    },
    "large": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "large",
        "OPTIONS": {"MAX_ENTRIES": 300},
    },
}
"""Answers of pages that took long to make, of each process. Some hundred runs need more than Django's own 300 entries;
`large` holds those that may take a megabyte each, among them the losses of a run each."""

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "accounts:login"
CSRF_FAILURE_VIEW = "dashboard.errors.csrf_failure"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "accounts:login"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
FORMAT_MODULE_PATH = ["dashboard.formats"]

STATIC_URL = f"/static/{static_version()}/"
WHITENOISE_IMMUTABLE_FILE_TEST = "(?!)" if DEBUG else "^"
"""Pattern of the URLs that browsers may cache for good: all, as they change with the content. None in development."""
WHITENOISE_ALLOW_ALL_ORIGINS = False
STATIC_ROOT = HOME / "static"
STATICFILES_DIRS = [BASE_DIR / "dashboard" / "static"]
MEDIA_ROOT = HOME / "files"
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024 * 1024
"""Limit for a form's fields without its files: the same as `body_limit.MAX_BODY`, so that there is only one limit."""
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("REDIS_URL") or socket_url(HOME / "redis.sock")
"""Broker and event streams; a Unix socket is written unix:///path, with the path quoted as in any URL."""
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://")

STARTER_STUDY = flag("TRAINYARD_STARTER", True)
"""Whether a yard that has never had a run or a study queues the starter study."""

THIN_AFTER_DAYS = whole("TRAINYARD_THIN_AFTER_DAYS", 0)
"""Days after the end of a run when the spans of its older traced steps are dropped; 0: never."""

X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = flag("HTTPS", False)
if flag("HTTPS", False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

LOG_LEVEL = (os.environ.get("LOG_LEVEL") or "INFO").upper()
if LOG_LEVEL not in logging.getLevelNamesMapping():
    raise ImproperlyConfigured(f"LOG_LEVEL is DEBUG, INFO, WARNING, ERROR or CRITICAL, not {LOG_LEVEL!r}.")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
}
