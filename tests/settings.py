"""Django settings of the test run: a temporary data folder, everything else as deployed."""

import os

from tests import scratch

os.environ.setdefault("TRAINYARD_TESTING", "1")
if "TRAINYARD_HOME" not in os.environ:
    os.environ["TRAINYARD_HOME"] = str(scratch.fresh_folder("home"))
os.environ["ALLOWED_HOSTS"] = "localhost,127.0.0.1,testserver"

from dashboard.settings import *  # noqa: F403
from dashboard.settings import STATIC_ROOT

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # as `prepare` leaves it; WhiteNoise warns if the folder is missing
