"""What a person writes about a run or a study: its name, tags and notes, and what of that is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallel_core import limits
from parallel_core.analysis.quantities import count_text, listed_text

MAX_TAGS = 20
MAX_TAG = 40
MAX_NOTES = 4000
"""Characters of the notes on a run or a study."""
NO_NULL = "Null characters cannot be stored."


def clean_tags(tags: Sequence[str]) -> list[str]:
    """The tags without surrounding spaces, empty ones and duplicates, in the order given. A comma parts two tags here,
    too, as it does where they are written in one field."""
    return list(dict.fromkeys(tag.strip() for tag in ",".join(tags).split(",") if tag.strip()))


def name_errors(name: str) -> dict[str, str]:
    """What is wrong with the name of a run or a study, at `name`; {} if nothing is."""
    if "\x00" in name:
        return {"name": NO_NULL}
    if len(name) > limits.MAX_NAME:
        return {"name": f"A name has at most {limits.MAX_NAME} characters; this one has {len(name)}."}
    return {}


def clean_notes(notes: str) -> str:
    """The notes of a run or a study without surrounding space, with line ends as on Unix."""
    return notes.replace("\r\n", "\n").strip()


def notes_errors(notes: str) -> dict[str, str]:
    """What is wrong with clean notes, at `notes`; {} if nothing is."""
    if "\x00" in notes:
        return {"notes": NO_NULL}
    if len(notes) > MAX_NOTES:
        return {"notes": f"Notes have at most {count_text(MAX_NOTES)} characters; these have {count_text(len(notes))}."}
    return {}


def words_errors(name: str, tags: list[str]) -> dict[str, str]:
    """What is wrong with the name and the clean tags of a run, at each field; {} if nothing is."""
    errors = name_errors(name)
    if any("\x00" in tag for tag in tags):
        errors["tags"] = NO_NULL
    if len(tags) > MAX_TAGS:
        errors["tags"] = f"At most {MAX_TAGS} tags; got {len(tags)}."
    elif any(len(tag) > MAX_TAG for tag in tags):
        errors["tags"] = f"A tag has at most {MAX_TAG} characters."
    return errors


def changes_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What somebody did who changed these of a run's name, clean tags and notes, and what the first two were: `renamed
    it to “b”, instead of “a”; changed its notes`; '' if all are the same."""
    changed = [field for field, value in after.items() if value != before[field]]
    return "; ".join(_CHANGES[field](before[field], after[field]) for field in changed)


_CHANGES: Mapping[str, Callable[[Any, Any], str]] = {
    "name": lambda before, after: f"renamed it to “{after}”, instead of “{before}”",
    "tags": lambda before, after: f"changed its tags to {_tags(after)}, instead of {_tags(before)}",
    "notes": lambda before, after: "changed its notes",
}


def _tags(tags: Sequence[str]) -> str:
    return listed_text([f"“{tag}”" for tag in tags]) or "none"
