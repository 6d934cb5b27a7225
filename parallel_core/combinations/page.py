"""The page docs/combinations.md: a table for each subject, with its features as columns."""

from __future__ import annotations

from parallel_core.analysis.quantities import plural_text
from parallel_core.combinations.features import FEATURES, SUBJECTS
from parallel_core.combinations.pairs import Combination, proof, running, verdict

Reasons = dict[str, list[str]]
"""Reason of a refusal -> the pairs that it refuses."""
_TEST = "tests/parallel_core/test_combinations.py::test_runs[a + b]"
_HEAD = """# Which features go together

Written by `python -m parallel_core.combinations docs/combinations.md` from the rules of `RunSpec`: edit those.

Every pair of {features} features of a run, of what is done with its checkpoints, and of requests for text. {pairs} \
pairs run. The test of each is `./run test --full '{test}'`:

* It holds the losses against those of one device. Those of schedules that do not flush, and of clipping by stage, it \
holds against a replay of the same updates in one process. The replay is in fp64: of the pairs of another precision \
with a schedule that does not flush, the test checks only that they run, that every loss is finite and that the ranks \
agree ({only_run} pairs: {only_run_names}).
* *Resumed*: losses and the last checkpoint have the bits of the run that was not interrupted. *Resumed on another \
layout*: one device trains a step, the run goes on from its checkpoint, and one device from that of the run. What each \
of them loaded is compared bit by bit.
* *Weights from* and *to safetensors*: the run starts from a Llama's weights; what it exports is imported again with \
the same bits.
* *Several hosts*: two groups of ranks that share no memory. *Text*: the tokens are those of one device, which \
computes them the other way (from the whole text, or with the cache). In bf16 and fp16 \
roundoff decides some of them, so only their number is checked.
* Of a *memory cap* that is not reached, *fingerprints*, *torch.profiler* and *checkpoints*, the records or files are \
checked, too. *Flipped bit*: every rank ends with the error that replicas differ.

The tables: **✓** runs, **·** two choices of one field, **r** refused, for the reason of that number at the end. A \
table has a row for each feature of its subject and of those before it, except those that run with all of its \
columns."""


def page() -> str:
    """Returns the page as Markdown."""
    found, reasons = running(), Reasons()
    only_run = [name for name, pair in found.items() if proof(pair) == "only run"]
    head = _HEAD.format(
        features=len(FEATURES),
        pairs=len(found),
        test=_TEST,
        only_run=len(only_run),
        only_run_names="; ".join(only_run),
    )
    tables = [_section(subject, reasons) for subject in SUBJECTS]
    said = [f"* **r{i}** {why} ({'; '.join(pairs)})" for i, (why, pairs) in enumerate(reasons.items(), 1)]
    return "\n\n".join([head, *tables, "## Refused, and why", "\n".join(said)]) + "\n"


def _section(subject: str, reasons: Reasons) -> str:
    """Returns the table of a subject; reasons of refusals are added to `reasons`."""
    columns = list(SUBJECTS[subject])
    names = list(FEATURES)
    first = names.index(columns[0])
    rows, left_out = [], 0
    for name in names[: first + len(columns) - 1]:
        cells = [_cell(name, column, reasons) for column in columns]
        if name not in columns and set(cells) == {"✓"}:
            left_out += 1
        else:
            rows.append(f"| {name} | {' | '.join(cells)} |")
    head = f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    every = f"\n{plural_text(left_out, 'feature')} of the tables above without a row here: ✓ in every column."
    return "\n".join([f"## {subject}", "", head, *rows, *([every] if left_out else [])])


def _cell(row: str, column: str, reasons: Reasons) -> str:
    """Returns the mark of a pair; '' in the half of a table that repeats the other, and for a feature with itself."""
    names = list(FEATURES)
    if names.index(row) >= names.index(column):
        return ""
    found = verdict(row, column)
    if found is None:
        return "·"
    if isinstance(found, Combination):
        return "✓"
    pairs = reasons.setdefault(found, [])
    pairs.append(f"{row} + {column}")
    return f"r{list(reasons).index(found) + 1}"
