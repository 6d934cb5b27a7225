"""The run that has both features of a pair, or why there is none; and what its test holds its losses against."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations
from math import prod
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from parallel_core.analysis.quantities import sentence_text
from parallel_core.checkpoint.match import mismatches
from parallel_core.combinations.features import BASE, FEATURES, KINDS, Leaves
from parallel_core.faults import trained
from parallel_core.faults.slow_link import neighbours
from parallel_core.generation_request import inference, read_request
from parallel_core.launch import GenerationRequest
from parallel_core.outline import outline_of
from parallel_core.rules import field_errors
from parallel_core.spec import RunSpec

Resume = Literal["", "same", "another"]
REQUEST = {"prompt": [1, 2, 3], "new": 12, "samples": 2, "temperature": 0.3}
"""Every request for text asks for this, and for what its features add."""
_SECTIONS = ("model", "parallel", "train", "trace")
_SPLITS = {"parallel.dp", "parallel.tp", "parallel.pp"}


class Text(NamedTuple):
    """A request for text from the last checkpoint of a run, and the spec of the ranks that generate it."""

    spec: RunSpec
    request: GenerationRequest


class Combination(NamedTuple):
    """A small run with two features, and what is done with it besides training (see `features`)."""

    spec: RunSpec
    hosts: int = 1
    resume: Resume = ""
    imported: bool = False
    exported: bool = False
    text: Text | None = None


def together(first: str, second: str) -> Leaves | None:
    """Returns the leaves of a small run with both features; None where they are two values of one field."""
    a, b = FEATURES[first], FEATURES[second]
    if any(b.get(leaf, value) != value for leaf, value in a.items()):
        return None
    leaves = {**BASE, **a, **b}
    if "use.ranks" in leaves and not _SPLITS & leaves.keys():
        leaves["parallel.dp"] = leaves["use.ranks"]
    return {**leaves, **{leaf: value for leaf, value in KINDS[leaves["model.kind"]].items() if leaf not in leaves}}


def spec_of(leaves: Leaves) -> dict[str, Any]:
    """Nests the leaves that are fields of a RunSpec into a dictionary for it."""
    spec: dict[str, Any] = {}
    for leaf, value in leaves.items():
        section, name = leaf.split(".", 1)
        if section in _SECTIONS:
            spec.setdefault(section, {})[name] = value
    faults = {leaf.split(".")[1]: fields for leaf, fields in leaves.items() if leaf.startswith("inject.")}
    if faults:
        spec["inject"] = [{"kind": kind, **_aimed(kind, fields, spec)} for kind, fields in faults.items()]
    return spec


def _aimed(kind: str, fields: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields of a fault; a slow link leads to a neighbour of rank 0, whose number the layout decides."""
    if kind != "slow_link":
        return fields
    try:
        near = neighbours(RunSpec.model_validate(spec), 0)
    except ValidationError:
        return fields
    return {**fields, "peer": near[0]} if near else fields


@cache
def verdict(first: str, second: str) -> Combination | str | None:
    """Returns the run with both features, or why it is invalid; None where they are two values of one field."""
    leaves = together(first, second)
    if leaves is None:
        return None
    try:
        spec = RunSpec.model_validate(spec_of(leaves))
    except ValidationError as error:
        return " ".join(field_errors(error).values())
    resume: Resume = leaves.get("use.resume", "")
    if resume == "another" and (wrong := _mismatch(spec)):
        return wrong
    text = _text(leaves, spec)
    if isinstance(text, str):
        return text
    used = (leaves.get("use.hosts", 1), resume, "use.imported" in leaves, "use.exported" in leaves)
    return Combination(spec, *used, text)


def _mismatch(spec: RunSpec) -> str:
    """Why a run of `spec` cannot resume from a checkpoint of one device, or one device from its; '' where both can."""
    alone = one_device(spec)
    ways = ((alone, spec), (spec, alone))
    return " ".join(why for a, b in ways for why in mismatches(a.model_dump(mode="json"), b, 1).values())


def _text(leaves: Leaves, spec: RunSpec) -> Text | str | None:
    """The request of the leaves `text.*` for a checkpoint of `spec`, or why it is refused; None without any."""
    asked = {leaf.partition(".")[2]: value for leaf, value in leaves.items() if leaf.startswith("text.")}
    if not asked:
        return None
    tp, pp, dp = (asked.pop(axis, 1) for axis in ("tp", "pp", "dp"))
    try:
        found = inference(spec.model_dump(mode="json"), tp, pp, dp)
    except ValidationError as error:
        return " ".join(field_errors(error).values())
    except ValueError as error:
        return f"{sentence_text(str(error))}."
    request, wrong = read_request({**REQUEST, **asked}, found)
    return Text(found, request) if request is not None else " ".join(wrong.values())


def running() -> dict[str, Combination]:
    """Returns `a + b` -> run, for every valid pair."""
    found = {f"{a} + {b}": verdict(a, b) for a, b in combinations(FEATURES, 2)}
    return {name: one for name, one in found.items() if isinstance(one, Combination)}


def ends(spec: RunSpec) -> bool:
    """Whether a run of `spec` comes to its end: with a flipped bit, it is ended by the comparison of replicas."""
    return not any(fault.kind == "flipped_bit" for fault in spec.inject)


def repeats_tokens(pair: Combination) -> bool:
    """Whether the text of a pair is one token again and again: a tied matrix, hardly trained, maps each to itself."""
    return pair.text is not None and pair.spec.model.tied and not pair.text.request["temperature"]


def unfaulted(spec: RunSpec) -> RunSpec:
    """Returns a run without faults that computes the numbers of `spec`: faults change the cut, the loss scale, the
    learning rate, or only times.

    Not those of a flipped bit, with which no run ends.
    """
    lr = spec.train.lr * prod(fault.lr_factor(0) for fault in spec.inject)
    plain = trained(spec)
    return plain.model_copy(update={"train": plain.train.model_copy(update={"lr": lr})})


def one_device(spec: RunSpec) -> RunSpec:
    """Returns the same run on one device: the same layers, samples and micro-batches, without faults.

    Micro-batches of one size overflow in the same steps in fp16; those of replicas are one where statistics of a batch
    norm are taken over all replicas.
    """
    plain = unfaulted(spec).model_dump(mode="json")
    each = spec.parallel.micro_batches if outline_of(spec.model).batch_norm else spec.parallel.per_step
    batches = each if spec.parallel.flushes else 1
    train = plain["train"] | {"clip": "global", "deterministic": False, "checkpoint_every": 0, "keep": 2}
    return RunSpec.model_validate({"model": plain["model"], "train": train, "parallel": {"micro_batches": batches}})


Proof = Literal["one device", "first step", "replay", "state", "only run"]
"""What the losses of a pair are held against by its test. "one device": those of the same run there; "first step": the
same, up to the first update of the pair; "replay": those of the same updates in one process; "state": none, but all
tensors of a checkpoint are compared; "only run": none."""


def proof(pair: Combination) -> Proof:
    """Returns what the test of a pair compares its losses with.

    A run that is updated or clipped stage by stage computes something else than one device. A replay of such updates
    exists in fp64, from the first step on; at other precisions, the losses before the first update of a run that
    flushes are still those of one device.
    """
    spec = pair.spec
    by_stage = spec.train.clip == "stage" and spec.train.clip_norm is not None
    if pair.resume != "another" and spec.train.precision == "fp64" and (by_stage or not spec.parallel.flushes):
        return "replay"
    if spec.parallel.flushes:
        return "first step" if by_stage else "one device"
    return "state" if pair.resume == "another" else "only run"
