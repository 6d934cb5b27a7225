"""Which fields of the specs of some runs differ, in the words of the New run form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.runs.form_words import value_words
from dashboard.runs.relevance import is_read
from dashboard.runs.spec_fields import ENTRIES
from parallel_core.spec import RunSpec

OTHER_FIELDS = {"inject": "Broken on purpose", "hosts": "Ran on", "devices": "Device"}


@dataclass(frozen=True)
class Difference:
    """A field of the spec with the value in each run, in the order of the specs."""

    field: str
    values: Sequence[str]

    @property
    def counted(self) -> str:
        """Each value with the number of runs that have it: `4 in 10 runs, 8 in 9`."""
        counts = list(Counter(self.values).items())
        return "; ".join(f"{value} in {count}{' runs' * (i == 0)}" for i, (value, count) in enumerate(counts))

    @property
    def words(self) -> str:
        """The field's label in the New run form; of what is no field there, words of its own."""
        return ENTRIES[self.field].label if self.field in ENTRIES else OTHER_FIELDS[self.field]


def flat(spec: RunSpec) -> dict[str, Any]:
    """`{dotted field: value}`; without a pipeline the schedule is None, whatever the spec has, and so is a field that
    only other kinds of models have."""
    sections = spec.model_dump(mode="json", exclude={"inject"})
    plain = {f"{section}.{leaf}": value for section, values in sections.items() for leaf, value in values.items()}
    plain |= {path: None for path in plain if path.startswith("model.") and not is_read(path, plain.get)}
    if spec.parallel.pp == 1:
        plain["parallel.schedule"] = None
    return plain | {"inject": ", ".join(fault.spelt for fault in spec.inject) or None}


def differences(specs: Sequence[RunSpec]) -> tuple[list[Difference], int]:
    """Returns the fields that differ between the specs, and the number of fields that do not."""
    tables = [flat(spec) for spec in specs]
    out = [
        Difference(field, [value_text(field, table[field]) for table in tables])
        for field in (tables[0] if tables else {})
        if any(table[field] != tables[0][field] for table in tables)
    ]
    return out, len(tables[0]) - len(out) if tables else 0


def value_text(field: str, value: Any) -> str:
    """The value as the New run form shows it: the label of a choice, lists with commas, a cap in MiB; "none" for
    nothing."""
    return value_words(field, value) or "none"
