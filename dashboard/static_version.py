"""The version of all static files as one word. It stands in their addresses: a browser may keep them for good."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "static"
PACKAGES = ("django", "django-htmx")
"""Wheels that bring static files of their own."""
LENGTH = 10


def static_version(folder: Path = FOLDER) -> str:
    """Changes with any byte or name below `folder`, and with the version of a wheel that brings files.

    It is one prefix for the whole tree, not a hash in each name: modules import each other by relative addresses.
    """
    digest = hashlib.sha256(" ".join(version(name) for name in PACKAGES).encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:LENGTH]
