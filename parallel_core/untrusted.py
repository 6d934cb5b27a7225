"""Exceptions raised while parsing untrusted JSON."""

from __future__ import annotations

PARSE_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""Raised by parsing JSON, and by accessing fields of the wrong type: a string in place of a list, infinity in place of
an integer, lists that are nested too deeply."""
