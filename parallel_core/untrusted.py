"""What comes from elsewhere, and may be anything."""

from __future__ import annotations

PARSE_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""Raised by reading JSON, and by taking from it what it should hold: a text where a list belongs, an infinite number
where a whole one does, lists that stand too deep in each other."""
