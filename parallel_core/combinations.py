"""Which features of a run can be combined: every pair, validated by RunSpec.

`python -m parallel_core.combinations docs/combinations.md` writes the page; a test checks that it is up to date, and
`tests/parallel_core/test_combinations.py` runs the pairs that it marks as running.
"""

from __future__ import annotations

import sys
import typing
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from parallel_core.rules import field_errors
from parallel_core.schedule.custom import EXAMPLE
from parallel_core.schedule.traits import CUSTOM, ScheduleName, flushes
from parallel_core.spec import RunSpec

Leaves = dict[str, Any]
"""Dotted field of the spec -> value."""

BASE: Leaves = {
    "model.kind": "gpt",
    "train.global_batch": 16,
    "train.steps": 5,
    "train.warmup_steps": 1,
    "train.precision": "fp64",
    "train.lr": 1e-3,
}
GPT: Leaves = {"model.layers": 4, "model.hidden": 32, "model.heads": 4, "model.seq": 16, "model.vocab": 64}
KINDS: dict[str, Leaves] = {
    "gpt": GPT,
    "mlp": {"model.layers": 4, "model.hidden": 32},
    "vgg16": {"model.width": 2},
    "resnet50": {"model.width": 2},
    "gnmt": {"model.layers": 4, "model.hidden": 16, "model.seq": 8, "model.vocab": 64},
}
"""Kind of model -> small sizes of it."""


def _schedule(name: ScheduleName) -> Leaves:
    leaves: Leaves = {"parallel.pp": 2, "parallel.micro_batches": 4, "parallel.schedule": name}
    return leaves if flushes(name) else {**leaves, "train.clip": "stage"}


FEATURES: dict[str, Leaves] = {
    "data parallel": {"parallel.dp": 2},
    "ZeRO-1": {"parallel.dp": 2, "parallel.zero": 1},
    "ZeRO-2": {"parallel.dp": 2, "parallel.zero": 2},
    "ZeRO-3": {"parallel.dp": 2, "parallel.zero": 3},
    "fully_shard": {"parallel.dp": 2, "parallel.zero": 3, "parallel.zero_backend": "fully_shard"},
    "tensor parallel": {"parallel.tp": 2},
    "tensor split by columns": {"parallel.tp": 2, "parallel.tensor_split": "columns"},
    "sequence parallel": {"parallel.tp": 2, "parallel.sequence": True},
    **{f"pipeline {name}": _schedule(name) for name in typing.get_args(ScheduleName) if name != CUSTOM},
    "own schedule": {**_schedule(CUSTOM), "parallel.program": EXAMPLE},
    "early gradients": {"parallel.pp": 2, "parallel.micro_batches": 4, "parallel.early_gradients": True},
    "replicas 2-1": {"parallel.pp": 2, "parallel.replicas": [2, 1], "parallel.micro_batches": 4},
    "tensor ranks 1-2": {"parallel.pp": 2, "parallel.widths": [1, 2], "parallel.micro_batches": 4},
    "full recomputation": {"parallel.recompute": "full"},
    "selective recomputation": {"parallel.recompute": "selective"},
    "recomputation of some layers": {"parallel.recompute": "full", "parallel.recompute_layers": [0]},
    "fp32": {"train.precision": "fp32"},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "deterministic": {"train.deterministic": True},
    "clipping by stage": {"train.clip": "stage"},
    "tied embeddings": {"model.tied": True},
    "dropout": {"model.dropout": 0.1},
    "shared key heads": {"model.kv_heads": 2},
    "RoPE": {"model.positions": "rope"},
    "SwiGLU": {"model.activation": "swiglu"},
    "RMSNorm": {"model.norm": "rmsnorm"},
    "plain attention": {"model.attention": "plain"},
    **{f"model {kind}": {"model.kind": kind} for kind in KINDS if kind != "gpt"},
}
"""Feature -> the fields that it consists of, including those that it requires."""


def together(first: str, second: str) -> Leaves | None:
    """Returns the fields of a small run with both features; None where they are two values of one field."""
    a, b = FEATURES[first], FEATURES[second]
    if any(b.get(leaf, value) != value for leaf, value in a.items()):
        return None
    leaves = {**BASE, **a, **b}
    return {**leaves, **{leaf: value for leaf, value in KINDS[leaves["model.kind"]].items() if leaf not in leaves}}


def spec_of(leaves: Leaves) -> dict[str, Any]:
    """Nests dotted fields into a dictionary for RunSpec."""
    spec: dict[str, Any] = {}
    for leaf, value in leaves.items():
        section, name = leaf.split(".", 1)
        spec.setdefault(section, {})[name] = value
    return spec


def verdict(first: str, second: str) -> RunSpec | str | None:
    """Returns the run with both features, or why it is invalid; None where they are two values of one field."""
    leaves = together(first, second)
    if leaves is None:
        return None
    try:
        return RunSpec.model_validate(spec_of(leaves))
    except ValidationError as error:
        return " ".join(field_errors(error).values())


def running() -> dict[str, RunSpec]:
    """Returns `a + b` -> run, for every valid pair."""
    found = {f"{a} + {b}": verdict(a, b) for a, b in combinations(FEATURES, 2)}
    return {name: spec for name, spec in found.items() if isinstance(spec, RunSpec)}


Proof = Literal["one device", "replay", "only run"]
"""What the losses of a pair are held against by its test."""


def proof(spec: RunSpec) -> Proof:
    """Returns what the test of a pair compares its losses with.

    A run that is updated or clipped stage by stage computes something else than one device. A replay of such updates
    exists in fp64; at other precisions, the losses of the first step of a run that flushes are still those of one
    device.
    """
    by_stage = spec.train.clip == "stage" and spec.train.clip_norm is not None
    if spec.train.precision == "fp64" and (by_stage or not spec.parallel.flushes):
        return "replay"
    return "one device" if spec.parallel.flushes else "only run"


def page() -> str:
    """Returns the page as Markdown."""
    names = list(FEATURES)
    reasons: dict[str, list[str]] = {}
    rows = []
    for i, name in enumerate(names):
        cells = [_cell(names[j], name, reasons) for j in range(i)]
        rows.append(f"| {i + 1} | {name} | {' | '.join(cells + [''] * (len(names) - i))} |")
    head = f"| | | {' | '.join(str(i + 1) for i in range(len(names)))} |\n|---|---|{'---|' * len(names)}"
    found = running()
    only_run = [name for name, spec in found.items() if proof(spec) == "only run"]
    said = [f"* **r{i}** {why} ({'; '.join(pairs)})" for i, (why, pairs) in enumerate(reasons.items(), 1)]
    return (
        "# Which features go together\n\n"
        "Written by `python -m parallel_core.combinations docs/combinations.md` from the rules of `RunSpec`: edit "
        f"those.\n\nEvery pair of {len(names)} features. **✓** runs: {len(found)} pairs, and the test of each is "
        "`./run test --full 'tests/parallel_core/test_combinations.py::test_runs[a + b]'`, which holds its losses "
        "against those of one device. Those of schedules that do not flush, and of clipping by stage, it holds "
        "against a replay of the same updates in one process. The replay is in fp64: of the pairs of another precision "
        "with a schedule that does not flush, the test checks only that they run, that every loss is finite and that "
        f"the ranks agree ({len(only_run)} pairs: {'; '.join(only_run)}). **·** two choices of one field. **r** "
        "refused, for the reason of that number below.\n\n"
        + "\n".join([head, *rows, "", "## Refused, and why", "", *said, ""])
    )


def _cell(first: str, second: str, reasons: dict[str, list[str]]) -> str:
    """Returns the mark of a pair; the reason of a refusal is added to `reasons`."""
    found = verdict(first, second)
    if found is None:
        return "·"
    if isinstance(found, RunSpec):
        return "✓"
    reasons.setdefault(found, []).append(f"{first} + {second}")
    return f"r{list(reasons).index(found) + 1}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
