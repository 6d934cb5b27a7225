"""The command that makes an image file of NumPy's arrays."""

from __future__ import annotations

import argparse
from pathlib import Path

from parallel_core.analysis.quantities import plural_text
from parallel_core.cli.common import CommandError, Subparsers, add_command
from parallel_core.data import image_import
from parallel_core.data.corpus import CorpusError
from parallel_core.spec import CORPUS_PATTERN


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    pack = add_command(
        commands,
        "pack-images",
        "make an image file of NumPy's arrays, to train on as images:NAME",
        "pets.npz --name pets --out data",
    )
    pack.add_argument("source", type=Path, help=".npz with the arrays images and labels, or .npy of images")
    pack.add_argument("--labels", type=Path, help=".npy of the labels, where the source has none")
    pack.add_argument("--channels", choices=("first", "last"), help="order of images of four dimensions, if unclear")
    pack.add_argument("--name", required=True, help="what a spec calls it, after 'images:'")
    pack.add_argument("--out", type=Path, required=True, help="data folder: --corpora of train, or a worker's corpora")
    pack.set_defaults(run=_pack)


def _pack(options: argparse.Namespace) -> int:
    if not CORPUS_PATTERN.fullmatch(f"images:{options.name}"):
        raise CommandError(f"--name is of letters, digits, '.', '_' and '-', at most 64; got {options.name!r}")
    if not options.source.exists():  # before what its suffix would mean
        raise CommandError(f"{options.source}: no such file")
    if (options.labels is None) != (options.source.suffix == ".npz"):
        raise CommandError("an .npz has its labels in itself, and a .npy needs --labels, another .npy")
    try:
        made = image_import.pack_arrays(options.source, options.labels, options.channels, options.name, options.out)
    except CorpusError as error:
        raise CommandError(str(error)) from error
    size = f"{made.channels} x {made.height} x {made.width}"
    print(f"{plural_text(made.images, 'image')} of {size} in {made.classes} classes; train on them with", end=" ")
    print(f"corpus=images:{options.name}, image={made.height} or more, channels={made.channels}, ", end="")
    print(f"classes={made.classes} or more")
    return 0
