"""Ages as text in one unit ('3 min'), which static/js/ages.js keeps counting on an open page, and times of day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.utils import timezone
from django.utils.dateformat import format as date_text
from django.utils.html import format_html
from django.utils.safestring import SafeString

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """'3 min', '2 d'; '0 s' below a second."""
    size, unit = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{max(0, int(seconds // size))} {unit}"


def short(seconds: float) -> str:
    """'3 min'; 'now' below a second."""
    return span(seconds) if seconds >= 1 else "now"


def ago(seconds: float) -> str:
    """'3 min ago'; 'just now' below a second."""
    return f"{span(seconds)} ago" if seconds >= 1 else "just now"


WORDS: dict[str, Callable[[float], str]] = {"span": span, "short": short, "ago": ago}


def clock(at: datetime, today: datetime, how: str = "%H:%M:%S") -> str:
    """The time of day as `how` says, `14:20:05`, with the day before it unless that is the day of `today`."""
    time = at.strftime(how)
    return time if at.date() == today.date() else f"{date_text(at, 'j M')} {time}"


def since(value: datetime, words: str) -> SafeString:
    """Returns a <time> element with the age of `value`, which ages.js keeps up to date; `words` is a key of WORDS."""
    text = WORDS[words]((timezone.now() - value).total_seconds())
    return format_html('<time datetime="{}" data-age="{}">{}</time>', value.isoformat(), words, text)
