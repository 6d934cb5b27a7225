"""The checkpoints of a run that workers have: the table of its Events tab, with commands to use them where they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dashboard.fleet.models import Worker
from dashboard.runs import resuming
from dashboard.runs.damaged import Damage, damaged
from dashboard.runs.models import Checkpoint, Run
from parallel_core.checkpoint.folder import path_of
from parallel_core.llama_models import no_llama
from parallel_core.model_spec import BYTES, ModelSpec
from parallel_core.spec import RunSpec
from workers.contract import checkpoint_folder

OF_WORKER = "${TRAINYARD_HOME:-.trainyard}/workers/%s/checkpoints"
SHARED = "${TRAINYARD_CHECKPOINTS}"
"""Where a worker keeps checkpoints (workers.settings), as a shell on its host spells it: only there these are known."""
PROMPT = "import "
USUAL_NEW = 64
"""Tokens that `generate` makes unless it is told another number."""


@dataclass(frozen=True)
class Line:
    """A checkpoint as a row of the table; `lowest`: its held-out loss is the lowest of several."""

    row: Checkpoint
    folder: str
    damage: Damage | None
    lowest: bool


@dataclass(frozen=True)
class Place:
    """The folder of the run on a worker, and commands for its checkpoint of `step`, to be given there."""

    worker: str
    folder: str
    step: int
    commands: list[str]


def context(run: Run) -> dict[str, Any]:
    """Every copy that a worker has, the newest first, and a place for each worker."""
    rows = list(run.checkpoints.order_by("-step", "worker"))
    bad, best = damaged(run), resuming.best(run)
    lowest = best.step if best else None
    lines = [Line(row, path_of(Path(), row.step).name, bad.get(row.step), row.step == lowest) for row in rows]
    return {"checkpoints": lines, "places": _places(run, lines)}


def _places(run: Run, lines: Iterable[Line]) -> list[Place]:
    """The newest checkpoint of each worker that is not known to be damaged stands in its commands."""
    steps: dict[str, list[Line]] = {}
    for line in lines:
        steps.setdefault(line.row.worker, []).append(line)
    shared = set(Worker.objects.filter(name__in=steps, shared_checkpoints=True).values_list("name", flat=True))
    out = []
    for worker, own in sorted(steps.items()):
        every = SHARED if worker in shared else OF_WORKER % worker
        folder = f"{every}/{checkpoint_folder(run.pk, run.uid)}"
        line = next((one for one in own if one.damage is None), own[0])
        out.append(Place(worker, folder, line.row.step, _commands(run, f"{folder}/{line.folder}")))
    return out


def _commands(run: Run, path: str) -> list[str]:
    """What the command line can do with the checkpoint: text of a GPT, weights of a Llama."""
    try:
        model: ModelSpec = RunSpec.stored(run.spec).model
    except ValidationError:  # of another version
        return []
    generate = [f'python -m parallel_core generate "{path}" {asked}'] if (asked := _asked(model)) else []
    export = [] if no_llama(model) else [f'python -m parallel_core export-llama "{path}" --out exported']
    return generate + export


def _asked(model: ModelSpec) -> str:
    """A prompt, and how many tokens to generate where the sequence has no room for the usual number; '' if the model
    generates nothing."""
    if model.kind != "gpt" or model.seq < 2:
        return ""
    prompt = PROMPT if model.seq > len(PROMPT) else PROMPT[0]
    tokens, option = (len(prompt), f'--prompt "{prompt}"') if model.vocab <= BYTES else (1, "--ids 1")
    room = model.seq - tokens
    return option if room >= USUAL_NEW else f"{option} --new {room}"
