"""Numbers in templates, spelt as in every sentence; None (not measured) becomes nothing."""

from __future__ import annotations

from collections.abc import Callable

from django.template import Library
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from parallel_core.analysis import quantities

register = Library()


def _filter(spelling: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "" if value is None or value == "" else spelling(value)


register.filter("seconds", _filter(quantities.seconds_text))
register.filter("ratio", _filter(quantities.ratio_text))
register.filter("percent", _filter(quantities.percent_text))
register.filter("bytes", _filter(quantities.bytes_text))
register.filter("difference", _filter(quantities.difference_text))
register.filter("number", _filter(lambda value: quantities.significant(value, 5)))
register.filter("percent1", _filter(lambda value: f"{value * 100:.1f} %"))
register.filter("count", _filter(lambda value: quantities.count_text(round(value))))


@register.filter
def whole_words(text: str) -> SafeString:
    """No line ends at a hyphen, as in `ZeRO-3` or `2-1`. The hyphens stay what they are, for whoever copies them."""
    words = (format_html('<span class="whole">{}</span>', word) if "-" in word else word for word in text.split(" "))
    return format_html_join(" ", "{}", ((word,) for word in words))
