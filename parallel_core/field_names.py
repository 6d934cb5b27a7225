"""The names of a spec's fields, and which one a name that is none of them was probably meant to be."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel

_LONGEST = 40
"""Characters of a name above which no field is proposed for it."""
_SIMILAR, _NEARLY = 0.6, 0.8
"""Likeness (`difflib`'s ratio, 0 to 1) from which a field of the same section, and of another one, is proposed."""


def sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Section of a spec -> its class; "" is the spec itself."""
    inner = {name: info.annotation for name, info in model.model_fields.items()}
    return {"": model} | {
        name: kind for name, kind in inner.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def likely(model: type[BaseModel], loc: tuple[Any, ...]) -> str:
    """Returns the dotted name of the field that the unknown one at `loc` was probably meant to be: one of the same
    section with a similar name, or one of another section with nearly the same; "" where there is none."""
    *path, wrong = map(str, loc)
    section, known = ".".join(path), sections(model)
    if section not in known or len(wrong) > _LONGEST:
        return ""
    own = dict.fromkeys(known[section].model_fields, section)
    others = {name: other for other, kind in known.items() if other != section for name in kind.model_fields}
    for names, least in ((own, _NEARLY), (others, _NEARLY), (own, _SIMILAR)):
        if near := difflib.get_close_matches(wrong.lower(), names, 1, least):
            return _dotted(names[near[0]], near[0])
    return ""


def _dotted(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name
