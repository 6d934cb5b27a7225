"""The page docs/combinations.md: a table for each subject, with its features as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parallel_core.combinations.features import BASE, FEATURES, KINDS, SUBJECTS, Leaves
from parallel_core.combinations.pairs import Combination, ends, proof, repeats_tokens, running, verdict
from parallel_core.combinations.reasons import Reasons, pairs_text, short

_TEST = "tests/parallel_core/test_combinations.py::test_runs[a + b]"
_HEAD = """# Which features go together

Written by `python -m parallel_core.combinations docs/combinations.md` from the rules of `RunSpec`: edit those.

Every pair of {features} features of a run, of what is done with its checkpoints, and of requests for text. What each \
feature is, in fields of a spec, is [said below](#the-features).

The tables: **✓** runs, **·** two choices of one field, **r** refused, for the [reason](#refused-and-why) of that \
number. A table has a row for each feature of its subject and of those before it, except those that run with all of \
its columns.

{pairs} pairs run. The test of each is `./run test --full '{test}'`:

* It holds the losses against those of one device. Those of schedules that do not flush, and of clipping by stage, it \
holds against a replay of the same updates in one process. Exceptions are [listed below](#pairs-that-are-checked-less).
* Its ranks agree on every loss; in a run with checkpoints, weights, hosts, observation or faults, on a hash of all \
parameters after the last step.
* *Resumed*: losses and the last checkpoint have the bits of the run that was not interrupted. *Resumed on another \
layout*: one device trains a step, the run goes on from its checkpoint, and one device from that of the run. What each \
of them loaded is compared bit by bit.
* *Deterministic*: the same run a second time has the same bits.
* *Weights from* and *to safetensors*: the run starts from a Llama's weights; what it exports is imported again with \
the same bits.
* *Several hosts*: two groups of ranks that share no memory. *Text*: the tokens are those of one device, which \
computes them the other way (from the whole text, or with the cache).
* *Memory cap*: the run stays below it, and ends as out of memory with a lower one. Of *fingerprints*, \
*torch.profiler* and *checkpoints*, the records or files are checked, too.
* *Faults*: what each delays is late by no less than it says, on its ranks alone; each rank holds the layers of the \
moved cut; steps are skipped for a high loss scale; every rank ends with the error that replicas differ after a \
flipped bit."""
_LESS: Mapping[str, Callable[[Combination], bool]] = {
    "No losses to compare with, as the replay is in fp64: only that every loss is finite, and that the ranks agree": (
        lambda pair: proof(pair) == "only run"
    ),
    "Losses up to the first update: the replay is in fp64, and not of a run that goes on from a checkpoint": (
        lambda pair: proof(pair) == "first step"
    ),
    "No losses, but all tensors that one layout loads from the other's checkpoint": lambda pair: proof(pair) == "state",
    "No last checkpoint, no deterministic end, and no memory to be below a cap, as the flipped bit ends the run": (
        lambda pair: (
            not ends(pair.spec)
            and (pair.resume == "same" or pair.spec.train.deterministic or pair.spec.trace.memory_cap is not None)
        )
    ),
    "The number of tokens, as roundoff decides some of them": (
        lambda pair: pair.text is not None and pair.spec.train.precision in ("bf16", "fp16")
    ),
    "Text that repeats the last token, as a tied matrix maps each token to itself": lambda pair: repeats_tokens(pair),
}
"""What the test of some pairs checks less than that of others -> which."""
_LONGEST = 24


def page() -> str:
    """Returns the page as Markdown."""
    found, reasons = running(), Reasons()
    head = _HEAD.format(features=len(FEATURES), pairs=len(found), test=_TEST)
    tables = [_section(subject, reasons) for subject in SUBJECTS]
    refused = ["## Refused, and why", "\n".join(["`{a | b}`: one of these.", "", *reasons.lines()])]
    return "\n\n".join([head, *tables, *refused, _less(found), _legend()]) + "\n"


def _section(subject: str, reasons: Reasons) -> str:
    """Returns the table of a subject; reasons of refusals are added to `reasons`."""
    columns = list(SUBJECTS[subject])
    names = list(FEATURES)
    first = names.index(columns[0])
    rows, left_out = [], []
    for name in names[: first + len(columns) - 1]:
        cells = [_cell(name, column, reasons) for column in columns]
        if name not in columns and set(cells) == {"✓"}:
            left_out.append(name)
        else:
            rows.append(f"| {name} | {' | '.join(cells)} |")
    head = f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    every = f"\nWithout a row here, as ✓ in every column: {', '.join(left_out)}."
    return "\n".join([f"## {subject}", "", head, *rows, *([every] if left_out else [])])


def _cell(row: str, column: str, reasons: Reasons) -> str:
    """Returns the mark of a pair; '' in the half of a table that repeats the other, and for a feature with itself."""
    names = list(FEATURES)
    if names.index(row) >= names.index(column):
        return ""
    found = verdict(row, column)
    if found is None:
        return "·"
    return "✓" if isinstance(found, Combination) else f"r{reasons.number(found, (row, column))}"


def _less(found: Mapping[str, Combination]) -> str:
    """Returns the section of the pairs whose test checks less than that of others."""
    said = ["## Pairs that are checked less", ""]
    for what, is_less in _LESS.items():
        pairs = [tuple(name.split(" + ")) for name, pair in found.items() if is_less(pair)]
        said.append(f"* {what}: {pairs_text((first, second) for first, second in pairs)}.")
    return "\n".join(said)


def _legend() -> str:
    """Returns the section of what each feature sets."""
    sizes = [f"kind {kind}: {_set(leaves)}" for kind, leaves in KINDS.items()]
    lines = [
        "## The features",
        "",
        "A feature is what it sets in a spec, including what it needs for that. `use.` and `text.` are no fields of a "
        "spec: with `use.`, a run has so many ranks or hosts, is resumed on the same or another layout, starts from "
        "safetensors weights or is exported as such; `text.` is a request for text from its last checkpoint.",
        "",
        f"Where no feature says otherwise, a run has {_set(BASE)}, and these sizes: {'; '.join(sizes)}.",
        "",
    ]
    for subject, features in SUBJECTS.items():
        lines += [f"**{subject}**", "", *(f"* {name}: {_set(leaves)}" for name, leaves in features.items()), ""]
    return "\n".join(lines).rstrip()


def _set(leaves: Leaves) -> str:
    """Returns fields with their values, as code."""
    flat: dict[str, Any] = {}
    for leaf, value in leaves.items():
        flat |= {f"{leaf}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {leaf: value}
    return ", ".join(f"`{leaf}={_value(value)}`" for leaf, value in flat.items())


def _value(value: Any) -> str:
    """Returns a value as in JSON, a long one cut."""
    words = {True: "true", False: "false", None: "null"}
    if isinstance(value, bool) or value is None:
        return words[value]
    text = f"{value:g}" if isinstance(value, float) else short(str(value)).replace("\n", " ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
