"""A page as its sentences were written."""

from __future__ import annotations

import re


def plain(page: str) -> str:
    """Without the marks that keep a word whole at the end of a line."""
    return re.sub(r'<span class="whole">(.*?)</span>', r"\1", page)
