"""Names of models that tell apart those with the same kind and size."""

from __future__ import annotations

from collections.abc import Iterable

from dashboard.runs.form.form_words import short_label, value_words
from dashboard.runs.form.spec_fields import paths_of
from parallel_core.outline import outline_of
from parallel_core.spec import ModelSpec

DETAIL = paths_of("architecture")
EVERY = (*paths_of("model"), *DETAIL)


def titled(model: ModelSpec) -> str:
    """`GPT 4 x 128 (Positions = RoPE)`: kind and size, and where its architecture is not the usual one."""
    return with_details(outline_of(model).title, differences(model, ModelSpec(kind=model.kind), DETAIL))


def with_details(title: str, details: str) -> str:
    return f"{title} ({details})" if details else title


def differences(model: ModelSpec, other: ModelSpec, paths: Iterable[str] = EVERY) -> str:
    """The fields in which `model` differs from `other`, as its form names them: `Positions = RoPE, Bias = no`."""
    own, known = model.model_dump(), other.model_dump()
    leaves = {path: path.split(".")[1] for path in paths}
    return ", ".join(
        f"{short_label(path)} = {value_words(path, own[leaf]).split(': ')[0] or 'empty'}"
        for path, leaf in leaves.items()
        if own[leaf] != known[leaf]
    )
