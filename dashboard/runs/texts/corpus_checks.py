"""Whether the text that a run reads exists, and suits its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import services
from dashboard.runs.run_files import Files, file_word
from parallel_core.analysis.quantities import plural_text
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import open_dataset
from parallel_core.data.held_out import most_sequences
from parallel_core.data.image_file import unsuitable
from parallel_core.outline import FILE_CORPORA, outline_of
from parallel_core.outline.images import ImageOutline
from parallel_core.spec import RunSpec

MOST_NAMED = 6
MANY = 1 << 20
"""Fewer tokens than these are not looked for in the standard library, all of which would have to be read."""
NONE = "they have none; make one with pack-{}"


def corpus_errors(spec: RunSpec) -> dict[str, str]:
    """Error by field if the corpus does not exist, or is too short for one sample."""
    kind, _, sha256 = spec.train.corpus.partition(":")
    if kind in FILE_CORPORA:
        return _file_errors(spec, kind, sha256)
    if kind != "blob":
        return _held_out_errors(spec)
    size = services.uploaded_size(sha256)
    if size is None:
        return {"train.corpus": services.NO_SUCH_CORPUS}
    if size <= spec.model.seq:
        return {
            "train.corpus": f"The corpus has {size} bytes: too short for one sample of {spec.model.seq} + 1 tokens."
        }
    return _sequences_errors(spec, size)


def _held_out_errors(spec: RunSpec) -> dict[str, str]:
    """Error by field if a built-in corpus would have no samples left to train."""
    held_out = spec.train.held_out
    if not held_out or (spec.train.corpus == "stdlib" and held_out * spec.model.seq < MANY):
        return {}
    try:
        open_dataset(spec).hold_out(held_out)
    except CorpusError as error:
        return {"train.eval_samples": f"{str(error)[:1].upper()}{str(error)[1:]}"}
    return {}


def _sequences_errors(spec: RunSpec, tokens: int) -> dict[str, str]:
    """Error by field if a text of so many tokens has too few to hold out what the run evaluates."""
    most = most_sequences(tokens, spec.model.seq)
    if spec.train.held_out <= most:
        return {}
    field, use = ("eval_samples", f"at most {most}") if most else ("eval_every", "0")
    held = f"{plural_text(spec.train.held_out, 'sequence')} of {plural_text(spec.model.seq, 'token')}"
    return {f"train.{field}": f"The corpus has {tokens} tokens, too few to hold out {held}; use {use}."}


def _file_errors(spec: RunSpec, kind: str, name: str) -> dict[str, str]:
    """Error by field if no reporting worker has the file, or it does not suit the run.

    {} while no worker reports, and for a name that no worker lists if one has more files than it lists.
    """
    fleet, plain = FleetSnapshot.now(), spec.model_dump(mode="json")
    workers, readers = fleet.reporting, Files.of(fleet).readers(plain)
    have = [file for worker in workers if worker.name in readers for file in worker.data_files[kind]]
    found = next((file for file in have if file["name"] == name), None)
    if not workers or (found is None and any(worker.leaves_out(kind) for worker in workers)):
        return {}
    if found is None:
        names = sorted({file["name"] for worker in workers for file in worker.data_files[kind]})
        part = f" ({MOST_NAMED} of {len(names)})" if len(names) > MOST_NAMED else ""
        others = f"they have {', '.join(names[:MOST_NAMED])}{part}" if names else NONE.format(kind)
        return {"train.corpus": f"No worker that reports has the {file_word(plain)} {name}; {others}."}
    return _SUITS[kind](spec, found)


def _image_file_errors(spec: RunSpec, found: dict[str, Any]) -> dict[str, str]:
    """Error by field if the images do not suit the model, or too few are left to train."""
    side = cast(ImageOutline, outline_of(spec.model)).side  # no other kind takes them
    if wrong := unsuitable(found, side, spec.model.channels, spec.model.classes):
        return {field: f"Image file {found['name']} {said}" for field, said in wrong.items()}
    if spec.train.held_out >= found["images"]:
        use = f"use at most {found['images'] - 1}" if found["images"] > 1 else "use train.eval_every=0"
        return {"train.eval_samples": f"Image file {found['name']} has {plural_text(found['images'], 'image')}; {use}."}
    return {}


def _token_file_errors(spec: RunSpec, found: dict[str, Any]) -> dict[str, str]:
    """Error by field if the file's vocabulary is larger than the model's, or it is too short."""
    name = found["name"]
    if found["vocab"] > spec.model.vocab and spec.train.weights:
        return {
            "train.corpus": f"Token file {name} has tokens up to {found['vocab'] - 1}, and the weights "
            f"{spec.train.weights} know {spec.model.vocab}; choose one that was made with their tokenizer."
        }
    if found["vocab"] > spec.model.vocab:
        return {
            "model.vocab": f"Token file {name} has tokens up to {found['vocab'] - 1}; use {found['vocab']} or more."
        }
    if found["tokens"] <= spec.model.seq:
        return {"model.seq": f"Token file {name} has {found['tokens']} tokens; use at most {found['tokens'] - 1}."}
    return _sequences_errors(spec, found["tokens"])


_SUITS: dict[str, Callable[[RunSpec, dict[str, Any]], dict[str, str]]] = {
    "tokens": _token_file_errors,
    "images": _image_file_errors,
}
"""Error by field if a file of this kind, by its entry in a worker's list, does not suit a run."""
