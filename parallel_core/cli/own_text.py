"""A text of the user's own as the corpus of a run: `train --text FILE`, or a folder of texts named by their sha256; and
the weights in that folder from which a run begins."""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.cli.common import CommandError
from parallel_core.data.corpus import blob_path
from parallel_core.spec import RunSpec

BLOB = "blob:"
"""What the name of a corpus begins with that is a text, named by its sha256."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds `--text` and `--corpora` to a command."""
    either = command.add_mutually_exclusive_group()
    either.add_argument("--text", type=Path, metavar="FILE", help="train on this file's bytes, not the spec's corpus")
    either.add_argument(
        "--corpora", type=Path, help="folder of texts, named by their sha256, and of files of tokens and images"
    )


def name_of(text: Path) -> str:
    """Returns what a spec calls the text as a corpus. Raises CommandError where it is empty or no file, such as a pipe,
    which the ranks could not read again; OSError where it cannot be read."""
    if not text.stat().st_size and text.is_file():
        raise CommandError(f"--text: {text} is empty")
    if not text.is_file():
        raise CommandError(f"--text: {text} is not a file; every rank has to read it")
    with text.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{BLOB}{found}"


@contextmanager
def folder_of(spec: RunSpec, text: Path | None, corpora: Path | None) -> Iterator[Path | None]:
    """The data folder of a run: one in which `text` has its name, while the run needs it, or else `corpora`. Raises
    CommandError as `require_sound` does."""
    if text is None:
        require_sound(spec, corpora)
        yield corpora
        return
    with tempfile.TemporaryDirectory(prefix="trainyard-text-") as made:
        (Path(made) / spec.train.corpus.removeprefix(BLOB)).symlink_to(text.resolve())
        yield Path(made)


def require_sound(spec: RunSpec, corpora: Path | None) -> None:
    """Raises CommandError where the spec's text is not in the folder `corpora`, or not the one that its name says."""
    if not spec.train.corpus.startswith(BLOB):
        return
    path = blob_path(spec.train.corpus, corpora)
    if path is None or not path.is_file():
        where = f"{corpora} has no such file" if corpora else "--corpora names the folder that has it"
        raise CommandError(f"train.corpus: {spec.train.corpus} is a text of yours; {where}, or give it as --text FILE")
    if (found := name_of(path)) != spec.train.corpus:
        raise CommandError(f"{path} was changed: its sha256 is now {found.removeprefix(BLOB)}")


def require_weights(spec: RunSpec, corpora: Path | None, text: Path | None) -> None:
    """Raises CommandError where a run of the spec cannot begin from the weights that it names, in the folder
    `corpora`."""
    name = spec.train.weights
    if not name:
        return
    if text is not None:
        kept = f"keep the text there under its sha256, as train.corpus={spec.train.corpus}"
        raise CommandError(f"--text: train.weights={name} is read from the folder of --corpora; {kept}")
    if corpora is None:
        raise CommandError(
            f"train.weights: {name} is a folder of Llama weights; --corpora names the folder that has it"
        )
    try:
        llama_weights.require_match(llama_weights.path_of(name, corpora), spec.model)
    except CheckpointError as error:
        raise CommandError(f"train.weights: {error}") from error
