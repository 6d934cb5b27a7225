"""The one file of the plotly wheel that pages need; its neighbours (templates, data sets) are not copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

PREFIX = "plotly"


def bundle() -> Path:
    """plotly.min.js of the installed wheel."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Finds plotly/plotly.min.js and nothing else."""

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        file = bundle()
        found = [str(file)] if path == f"{PREFIX}/{file.name}" else []
        return found if find_all or not found else found[0]

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, FileSystemStorage]]:
        file = bundle()
        storage = FileSystemStorage(location=file.parent)
        storage.prefix = PREFIX  # type: ignore[attr-defined]  # what collectstatic puts in front of the name
        yield file.name, storage
