"""Checkpoints damaged on purpose."""

from __future__ import annotations

from pathlib import Path


def change_byte(file: Path, at: int) -> None:
    """As a bad disk would: the size stays."""
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte[0] ^ 1]))
