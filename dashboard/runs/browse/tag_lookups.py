"""Conditions on the tags of runs, which are a JSON list: the tags themselves are compared, not the text of the list, in
which quotes, commas and escapes would match, too."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, CharField, F, Func, Value


def tag_is(text: str) -> Func:
    """Whether a run has exactly this tag."""
    return _SomeTag("{tag} = {text}", text)


def tag_contains(text: str) -> Func:
    """Whether a run has a tag with this text in it; letter case counts as little as in the lookup `icontains`:
    on SQLite only that of ASCII letters."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _SomeTag("UPPER({tag}) LIKE UPPER({text}) ESCAPE '\\'", f"%{escaped}%")


class _SomeTag(Func):
    """Whether the condition holds for one of the tags. `condition` = SQL with places for {tag} and {text}."""

    output_field = BooleanField()

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(F("tags"), Value(text, output_field=CharField()))
        self.condition = condition

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:
        return self._exists(compiler, "json_each({tags}) AS tag", "tag.value")

    def as_postgresql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:
        return self._exists(compiler, "jsonb_array_elements_text({tags}) AS tag(value)", "tag.value")

    def _exists(self, compiler: Any, rows: str, tag: str) -> tuple[str, tuple[Any, ...]]:
        (tags, first), (text, second) = map(compiler.compile, self.get_source_expressions())
        condition = self.condition.format(tag=tag, text=text)
        return f"EXISTS (SELECT 1 FROM {rows.format(tags=tags)} WHERE {condition})", (*first, *second)
