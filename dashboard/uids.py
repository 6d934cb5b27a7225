"""Random ids that tell rows of one number in several databases apart."""

from __future__ import annotations

import secrets


def new_uid() -> str:
    """16 random hexadecimal digits."""
    return secrets.token_hex(8)
