"""Which Chromium the tests drive, and where it comes from."""

from __future__ import annotations

import os
import shutil
import subprocess

SHELL = "chromium-headless-shell"
"""Chromium without what a window on a desktop needs: a page opens in an eighth of the processor time."""
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome")


def found() -> str | None:
    """The path of the best there is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def bring() -> None:
    """Takes it from apt where we are root and may: its shell, which not every distribution has, or else the whole.
    Without any, browser tests are skipped, and say so."""
    if shutil.which(SHELL) or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    _apt("update")
    if _apt("install", "-y", "--no-install-recommends", SHELL) and not found():
        _apt("install", "-y", "--no-install-recommends", "chromium")


def _apt(*arguments: str) -> int:
    """Its exit status."""
    print(f"== apt-get {' '.join(arguments)}", flush=True)
    return subprocess.run(["apt-get", "-q", *arguments], check=False).returncode
