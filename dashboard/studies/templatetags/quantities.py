"""Template filters for numbers, written as in all sentences, and `_column` ones for tables, where zeros at the end keep
the digits of a column below each other; None (not measured) becomes ''."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from html import escape

from django.template import Library
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from dashboard.runs.form.form_words import in_form_words
from parallel_core.analysis import quantities

register = Library()


def _filter(spelling: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "" if value is None or value == "" else spelling(value)


register.filter("seconds", _filter(quantities.seconds_text))
register.filter("ratio", _filter(quantities.ratio_text))
register.filter("percent", _filter(quantities.percent_text))
register.filter("bytes", _filter(quantities.bytes_text))
register.filter("difference", _filter(quantities.difference_text))
register.filter("seconds_column", _filter(lambda value: quantities.seconds_text(value, zeros=True)))
register.filter("bytes_column", _filter(lambda value: quantities.bytes_text(value, zeros=True)))
register.filter("loss", _filter(quantities.loss_text))
register.filter("percent1", _filter(lambda value: f"{value * 100:.1f} %"))
register.filter("figure", _filter(quantities.figure_text))
register.filter("form_words", in_form_words)
register.filter("count", _filter(lambda value: quantities.count_text(round(value))))


_UNIT = r"(?:%|[mµn]?s|min|h|d|B|[KMGT]iB(?:/s)?|[MGTP]?FLOP/s|[kMGT])(?!\w)"
_DEGREE = r"(?:[DTP]P|micro-batch|interleaved) \d"
_WORD = re.compile(rf"[^ \n]*(?:\d {_UNIT}|{_DEGREE})[^ \n]*|[^ \n]+")
_RIGHT_TO_LEFT = r"[^ \n]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc][^ \n]*"
_NAME = re.compile(rf"(?<![^ \n])({_RIGHT_TO_LEFT}(?: (?:\d+ )*{_RIGHT_TO_LEFT})*)")
"""Words in Arabic or Hebrew, with the numbers between two of them."""
_LONGEST = 24
"""The longest word, in characters, that always fits into a line on a phone; a longer one may be broken."""


@register.filter
def table_rows(rows: Sequence[Sequence[str]]) -> SafeString:
    """Rows of a table whose first column is their heading: a study may have thousands, in each of its charts, and tags
    of a template would take most of the time of its page."""
    made = []
    for heading, *values in rows:
        cells = "".join(f'<td class="num">{escape(str(value))}</td>' for value in values)
        made.append(f'<tr><th scope="row">{escape(str(heading))}</th>{cells}</tr>')
    return mark_safe("".join(made))


@register.filter
@lru_cache(maxsize=4096)  # a page has forty, of which its next update has nearly all again
def whole_words(text: str) -> SafeString:
    """Prevents line breaks at a hyphen, as in `ZeRO-3` or `2-1`, before the unit of `22.1 %` or `48 ms`, and before the
    degree of `TP 2`; and a number behind a name in Arabic or Hebrew from being shown as a part of it, before it.

    Uses markup instead of special hyphens and spaces, so that copied text is unchanged.
    """
    if text.isascii():
        return _joined(_WORD.findall(text))
    parts = ((_WORD.findall(part), place % 2) for place, part in enumerate(_NAME.split(text)))  # names have odd places
    said = (format_html("<bdi>{}</bdi>", _joined(words)) if name else _joined(words) for words, name in parts if words)
    return format_html_join(" ", "{}", ((part,) for part in said))


def _joined(words: Iterable[str]) -> SafeString:
    whole = (
        format_html('<span class="whole">{}</span>', word)
        if len(word) <= _LONGEST and ("-" in word or " " in word)
        else word
        for word in words
    )
    return format_html_join(" ", "{}", ((word,) for word in whole))
