"""What a page says, without markup that would get in the way of comparing sentences."""

from __future__ import annotations

import html
import re


def plain(page: str) -> str:
    """The page without the spans that keep a word from being broken across lines."""
    return re.sub(r'<span class="whole">(.*?)</span>', r"\1", page)


def unmarked(page: str) -> str:
    """The page without any of its tags."""
    return re.sub(r"<[^>]+>", "", page)


def error_at(page: str, field: str) -> str:
    """What the page says is wrong with a field of its form."""
    return html.unescape(page.split(f'id="error-{field}"')[1].split(">", 1)[1].split("</p>")[0])
