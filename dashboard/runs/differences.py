"""Which fields of the specs of some runs differ, in the words of the New run form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.runs.form.form_words import value_words
from dashboard.runs.form.relevance import is_read
from dashboard.runs.form.spec_fields import ENTRIES
from dashboard.runs.texts import corpus_names
from parallel_core.analysis.quantities import plural_text
from parallel_core.faults import parse, sentences, stored
from parallel_core.spec import RunSpec

_BETWEEN = ", "
"""Stands between faults, in none of which it is."""
OTHER_FIELDS = {"inject": "Broken on purpose", "hosts": "Ran on", "devices": "Device"}


@dataclass(frozen=True)
class Difference:
    """A field of the spec with the value in each run, in the order of the specs."""

    field: str
    values: Sequence[str]

    @property
    def counted(self) -> str:
        """Each value with the number of runs that have it: `4 in 10 runs, 8 in 9`."""
        (first, count), *others = Counter(self.values).items()
        return "; ".join([f"{first} in {plural_text(count, 'run')}", *(f"{value} in {n}" for value, n in others)])

    @property
    def words(self) -> str:
        """The field's label in the New run form; of what is no field there, words of its own."""
        return ENTRIES[self.field].label if self.field in ENTRIES else OTHER_FIELDS[self.field]


def flat(spec: RunSpec) -> dict[str, Any]:
    """`{dotted field: value}`; without a pipeline the schedule is None, whatever the spec has."""
    sections = spec.model_dump(mode="json", exclude={"inject"})
    plain = {f"{section}.{leaf}": value for section, values in sections.items() for leaf, value in values.items()}
    if spec.parallel.pp == 1:
        plain["parallel.schedule"] = None
    return plain | {"inject": _BETWEEN.join(fault.spelt for fault in spec.inject) or None}


def differences(specs: Sequence[RunSpec]) -> tuple[list[Difference], int]:
    """Returns the fields that differ between the specs, and the number of fields that do not. A field that only some
    of the models have is neither: their kinds differ."""
    tables = [flat(spec) for spec in specs]
    apart = _of_some(tables)
    fields = [field for field in tables[0] if field not in apart] if tables else []
    out = [
        Difference(field, value_texts(field, [table[field] for table in tables]))
        for field in fields
        if any(table[field] != tables[0][field] for table in tables)
    ]
    return out, len(fields) - len(out)


def _of_some(tables: Sequence[dict[str, Any]]) -> set[str]:
    """The fields that only some of the models with these values have, as they are of several kinds."""
    lacked = Counter(path for table in tables for path in table if _is_lacked(path, table))
    return {path for path, count in lacked.items() if count < len(tables)}


def _is_lacked(path: str, table: dict[str, Any]) -> bool:
    return path.startswith("model.") and not is_read(path, table.get)


def value_texts(field: str, values: Sequence[Any]) -> list[str]:
    """Each value as the New run form shows it: the label of a choice, lists with commas, a cap in MiB, the file of an
    uploaded text; what is broken in sentences; "none" for nothing."""
    if field == "inject":
        return [_broken(value) for value in values]
    if field == corpus_names.LEAF:
        names = corpus_names.names_of(values)
        return [names[value] for value in values]
    return [value_words(field, value) or "none" for value in values]


def _broken(value: str | None) -> str:
    """The faults of `flat` in words."""
    return "; ".join(sentences(stored(map(parse, value.split(_BETWEEN))))) if value else "none"
