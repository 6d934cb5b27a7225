"""Names of uploaded files, as pages show them."""

from __future__ import annotations

from pathlib import PurePath


def shown_name(name: str | None, most: int) -> str:
    """The last part of the path without characters that cannot be printed, at most `most` long; may be ''."""
    return "".join(c for c in PurePath(name or "").name if c.isprintable())[:most]
