"""The version of all static files as one word in their URLs, so that browsers may cache them for good."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "static"
PACKAGES = ("django", "django-htmx")
"""Packages whose static files are served as well."""
LENGTH = 10


def static_version(folder: Path = FOLDER) -> str:
    """A hash that changes with any byte or name below `folder`, and with the version of a package in PACKAGES.

    It is one prefix for the whole tree, not a hash in each name, because modules import each other by relative URLs.
    """
    digest = hashlib.sha256(" ".join(version(name) for name in PACKAGES).encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:LENGTH]
