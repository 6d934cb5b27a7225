"""The version distinguishes two checkouts of the same release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from parallel_core import version as of_package
from parallel_core.version import LENGTH, SOURCES


def test_it_changes_with_a_source_of_either_side_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_package, "ROOT", tmp_path)

    def version() -> str:
        of_package.version.cache_clear()
        return of_package.version()

    seen = [version()]
    for name in SOURCES:
        (tmp_path / name).mkdir()
        file = tmp_path / name / "a.py"
        for text in ("one", "two"):
            file.write_text(text)
            seen.append(version())
        file.rename(file.with_name("b.py"))
        seen.append(version())
    assert len(set(seen)) == len(seen)
    assert all(re.fullmatch(rf".+\+[0-9a-f]{{{LENGTH}}}", found) for found in seen)
    (tmp_path / "README.md").write_text("three")
    assert version() == seen[-1]
    monkeypatch.undo()
    of_package.version.cache_clear()
    assert of_package.version() not in seen


def test_the_release_is_that_of_the_checkout_whatever_is_installed_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of this project is installed: a package of the same name is another one."""
    (tmp_path / "trainyard-9.9.dist-info").mkdir()
    (tmp_path / "trainyard-9.9.dist-info" / "METADATA").write_text("Name: trainyard\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    project = tomllib.loads((of_package.ROOT / "pyproject.toml").read_text())
    assert of_package._release() == project["tool"]["trainyard"]["version"]
    assert "project" not in project or "build-system" in project, "pip install . would begin, and fail"
