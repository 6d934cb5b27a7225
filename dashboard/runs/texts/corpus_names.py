"""What corpora are called on pages: an uploaded text by its file, of which a spec has the sha256 alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dashboard.runs.models import Corpus

LEAF = "train.corpus"
BLOB = "blob:"
DIGITS = 8
"""Of a sha256 these are shown: other texts may have the same name."""


def names_of(values: Iterable[str]) -> Mapping[str, str]:
    """Value -> its name: `tale.txt (sha256 1a2b3c4d)` for a text that was uploaded, every other as it is."""
    every = set(values)
    digests = {value: value.removeprefix(BLOB) for value in every if value.startswith(BLOB)}
    known = Corpus.objects.filter(sha256__in=digests.values()).values_list("sha256", "name") if digests else ()
    files = dict(known)
    return {value: value for value in every} | {
        value: f"{files.get(digest, 'a deleted text')} (sha256 {digest[:DIGITS]})" for value, digest in digests.items()
    }
