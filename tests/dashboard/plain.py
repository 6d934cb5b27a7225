"""Removes markup that would get in the way of comparing sentences."""

from __future__ import annotations

import re


def plain(page: str) -> str:
    """The page without the spans that keep a word from being broken across lines."""
    return re.sub(r'<span class="whole">(.*?)</span>', r"\1", page)
