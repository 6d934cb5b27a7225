"""Finds the Chromium that the browser tests use, and installs it where possible."""

from __future__ import annotations

import os
import shutil
import subprocess

SHELL = "chromium-headless-shell"
"""Chromium without a desktop user interface: opening a page takes an eighth of the processor time."""
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome")


def found() -> str | None:
    """Path of the first browser in NAMES that is installed; None without any."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def bring() -> None:
    """Installs Chromium with apt if there is none and we are root: the headless shell, or the full package on
    distributions without the shell. Without any Chromium the browser tests are skipped with a message.
    """
    if found() or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    _apt("update")
    if _apt("install", "-y", "--no-install-recommends", SHELL):
        _apt("install", "-y", "--no-install-recommends", "chromium")


def _apt(*arguments: str) -> int:
    """Runs apt-get and returns its exit status."""
    print(f"== apt-get {' '.join(arguments)}", flush=True)
    return subprocess.run(["apt-get", "-q", *arguments], check=False).returncode
