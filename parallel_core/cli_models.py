"""Commands about weights: Llama's in and out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from parallel_core.analysis.quantities import bytes_text
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError


class Wrong(Exception):
    """What the person gave cannot be used; the text says why."""


def add(commands: Any) -> None:
    """The parsers of this module's commands."""
    take = commands.add_parser("import-llama", help="make a checkpoint of Llama weights (safetensors and config.json)")
    take.add_argument("weights", type=Path, help="folder with config.json and *.safetensors")
    take.add_argument("--out", type=Path, required=True, help="folder for spec.json and the checkpoint")
    take.add_argument("--seq", type=int, default=1024, help="sequence length of the model (default: 1024)")
    take.set_defaults(run=_import)
    give = commands.add_parser("export-llama", help="write a checkpoint of a Llama as safetensors and config.json")
    give.add_argument("checkpoint", type=Path, help="a checkpoint, or a run's folder: its newest one")
    give.add_argument("--out", type=Path, required=True, help="folder to write to")
    give.set_defaults(run=_export)


def checkpoint_of(path: Path) -> tuple[Path, manifests.Manifest]:
    """The checkpoint that `path` means. Raises Wrong where it is none, or not whole."""
    try:
        found = folders.resolve(path)
        return found, manifests.read(found)
    except CheckpointError as error:
        raise Wrong(f"{path} cannot be used: {error}") from error


def _import(options: argparse.Namespace) -> int:
    from parallel_core.engine.llama import import_weights

    try:
        spec, manifest = import_weights(options.weights, options.out, options.seq)
    except CheckpointError as error:
        raise Wrong(f"{options.weights} cannot be imported: {error}") from error
    (options.out / "spec.json").write_text(spec.model_dump_json(indent=2))
    print(f"{len(manifest.tensors)} parameters, {bytes_text(manifest.bytes)}; go on from them with:")
    print(f"python -m parallel_core train {options.out}/spec.json --resume {options.out}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from parallel_core.engine.llama import export_weights

    found, _ = checkpoint_of(options.checkpoint)
    try:
        size = export_weights(found, options.out)
    except CheckpointError as error:
        raise Wrong(f"{found} cannot be exported: {error}") from error
    print(f"{bytes_text(size)} in {options.out}")
    return 0
