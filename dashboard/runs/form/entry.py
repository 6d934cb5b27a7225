"""A leaf of the spec as a form shows it, and the groups of leaves."""

from __future__ import annotations

from dataclasses import dataclass


def html_name(path: str) -> str:
    """The name of the form field for a dotted path."""
    return path.replace(".", "__")


@dataclass(frozen=True)
class Entry:
    """A leaf of the spec as a form shows it."""

    path: str
    label: str
    hint: str = ""

    @property
    def name(self) -> str:
        return html_name(self.path)


@dataclass(frozen=True)
class Group:
    """A fieldset of the form."""

    key: str
    title: str
    entries: tuple[Entry, ...]
    folded: bool = False
    """Shown closed, because it is seldom changed."""
    note: str = ""
    """A sentence above its fields."""
