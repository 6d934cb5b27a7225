"""Llama weights that workers offer for a run to begin from: the choices of the form, and whether they suit a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import FleetSnapshot, devices_of
from dashboard.runs.form.entry import html_name
from dashboard.runs.form.spec_fields import ENTRIES, text_of
from dashboard.runs.run_files import Files
from parallel_core.analysis.quantities import bytes_text, count_text, listed_text
from parallel_core.checkpoint import llama_weights
from parallel_core.model_spec import BYTES
from parallel_core.spec import FILE_CORPORA, RunSpec

FIELD = "train.weights"
NONE = "Random initial values"
OTHERS = "These are others than those of this name on {}; rename the folder."
MOST_NAMED = 5
"""Token files that a sentence names."""
HOW = "A folder of Llama weights lies in a worker's data folder, with config.json and model.safetensors (or its index)."


def offered(fleet: FleetSnapshot) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Name -> (what `llama_weights.described` tells of them, the reporting workers that have them)."""
    have = Files.of(fleet).weights
    out: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for worker in fleet.reporting:
        for entry in worker.weights:
            if "why" not in entry and worker.name in have.get(entry["name"], ()):
                out.setdefault(entry["name"], (entry, []))[1].append(worker.name)
    return dict(sorted(out.items()))


def choices(fleet: FleetSnapshot, chosen: str = "") -> list[tuple[str, str]]:
    """(value, label) of random values and of all weights; `chosen` stays one of them although no worker has it."""
    found = [(name, f"{name} ({_text(entry)}; on {listed_text(on)})") for name, (entry, on) in offered(fleet).items()]
    lost = [(chosen, f"{chosen} (on no worker that reports)")] if chosen and chosen not in dict(found) else []
    return [("", NONE), *found, *lost]


def _text(entry: Mapping[str, Any]) -> str:
    """`8 030 261 248 parameters in BF16, 15.0 GiB: 32 layers of 4096, 32 heads, 8 of keys and values, vocabulary
    128256`."""
    model = entry["model"]
    sizes = f"{count_text(entry['parameters'])} parameters in {entry['dtype']}, {bytes_text(entry['bytes'])}"
    heads = f"{model['heads']} heads, {model['kv_heads'] or model['heads']} of keys and values"
    return f"{sizes}: {model['layers']} layers of {model['hidden']}, {heads}, vocabulary {model['vocab']}"


def unusable(fleet: FleetSnapshot) -> list[str]:
    """Why other folders are not offered, a text for each."""
    have, every = Files.of(fleet).weights, ((one.name, entry) for one in fleet.reporting for entry in one.weights)
    said = []
    for worker, entry in every:
        on = have.get(entry["name"], ())
        if "why" in entry or worker not in on:
            said.append(f"{entry['name']} on {worker}: {entry.get('why') or OTHERS.format(listed_text(on))}")
    return said


def spec_of(name: str, fleet: FleetSnapshot) -> dict[str, Any] | None:
    """A spec that begins from the weights, with their model, a token file that fits of such a worker if text is not
    read as bytes, and GPUs (in bf16 for weights that are) if it has some; else the defaults. None if no worker that
    reports has them."""
    found = offered(fleet).get(name)
    if found is None:
        return None
    model = found[0]["model"]
    gpus = any("cuda" in devices_of(worker) for worker in fleet.among(found[1]))
    train = {"device": "cuda", **({"precision": "bf16"} if found[0]["dtype"] == "BF16" else {})} if gpus else {}
    files = _token_files(model, fleet.among(found[1]))
    corpus = {"corpus": f"tokens:{files[0]}"} if files else {}
    return {"model": model, "train": {"weights": name, **train, **corpus}}


def _token_files(model: Mapping[str, Any], workers: Iterable[Worker]) -> list[str]:
    """Names of token files there whose tokens the model knows, those with most of its vocabulary first; [] of a model
    that reads text as bytes."""
    if model["vocab"] <= BYTES:
        return []
    found = {file["name"]: file["vocab"] for worker in workers for file in worker.token_files}
    fitting = [name for name, vocab in found.items() if vocab <= model["vocab"]]
    return sorted(fitting, key=lambda name: (-found[name], name))


def token_doubt(spec: RunSpec, fleet: FleetSnapshot) -> str:
    """That a run from weights with tokens of their own would read text as bytes, and which token files it could read
    instead on the workers it may have; '' otherwise."""
    train, found = spec.train, offered(fleet).get(spec.train.weights)
    if found is None or spec.model.vocab <= BYTES or train.corpus.partition(":")[0] in FILE_CORPORA:
        return ""
    on = fleet.among(found[1])
    files, where = _token_files(found[0]["model"], on), listed_text([worker.name for worker in on])
    have = f"{where} {'have' if len(on) > 1 else 'has'}"
    said = f"{have} no token file that fits; pack-tokens makes one."
    if files:
        said = f"Choose as corpus a token file: {have} {listed_text(files[:MOST_NAMED])}."
    knows = f"{count_text(spec.model.vocab)} tokens of their own tokenizer"
    return f"The weights {train.weights} know {knows}, and this text is read as bytes. {said}"


def fill(fleet: FleetSnapshot) -> dict[str, dict[str, str | bool]]:
    """Name -> fields of the New run form with their model: a switch as true or false, all else as text; and the corpus
    if it has to be a token file and there is one. The length of the sequences is not among them, as no weight depends
    on it."""
    out = {}
    for name, (entry, on) in offered(fleet).items():
        out[name] = _form_fields(entry["model"])
        if files := _token_files(entry["model"], fleet.among(on)):
            out[name][html_name("train.corpus")] = f"tokens:{files[0]}"
    return out


def _form_fields(model: Mapping[str, Any]) -> dict[str, str | bool]:
    known = {f"model.{leaf}": value for leaf, value in model.items() if leaf != "seq"}
    return {html_name(path): text_of(path, value) for path, value in known.items() if path in ENTRIES}


def weights_errors(spec: RunSpec, fleet: FleetSnapshot) -> dict[str, str]:
    """Error by field if no reporting worker of the whole fleet can begin from the weights, or the model differs from
    theirs. {} while no worker reports."""
    name, fleet = spec.train.weights, fleet.whole
    if not name or not fleet.reporting:
        return {}
    found = offered(fleet)
    if name not in found:
        return {FIELD: _missing(name, fleet, list(found))}
    readers = Files.of(fleet).readers(spec.model_dump(mode="json"), resumes=True)  # of its token file alone
    if readers and not set(readers).intersection(found[name][1]):
        return {FIELD: f"No worker that reports has both the weights {name} and the token file {spec.train.corpus}."}
    try:
        wrong = llama_weights.differences(found[name][0]["model"], spec.model)
    except ValidationError:  # of a worker of another version
        return {FIELD: f"The worker describes the weights {name} in words of another version; update it."}
    return {f"model.{leaf}": llama_weights.difference(name, leaf, *values) for leaf, values in wrong.items()}


def _missing(name: str, fleet: FleetSnapshot, others: list[str]) -> str:
    every = [(worker.name, entry) for worker in fleet.reporting for entry in worker.weights if entry["name"] == name]
    if why := next((f"on {worker}: {entry['why']}" for worker, entry in every if "why" in entry), ""):
        return f"The weights {name} cannot be used {why}"
    return f"No worker that reports has the weights {name}; {f'they have {listed_text(others)}.' if others else HOW}"
