"""What follows from a schedule's name alone: placement of its stages, their number, the form of its backward.

This module imports nothing of ours: spec, layout, planner and dashboard use it without making a schedule.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ScheduleName = Literal[
    "naive",
    "gpipe",
    "1f1b",
    "interleaved",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
    "1f1b-naive",
    "1f1b-stash",
    "1f1b-vertical",
    "1f1b-2bw",
    "custom",
]
Sync = Literal["flush", "none", "stash", "2bw"]
"""Which weights a micro-batch meets. `flush`: the pipeline runs empty before an update. The others never flush: `none`:
backward uses the weights current by then; `stash`: those that its forward used; `2bw`: one update a step, from
gradients that are one update old."""
Shape = Literal["line", "loop", "v"]
"""Placement of stages on the places of a pipeline. `line`: one each; `loop`: round and round; `v`: there and back."""


class Traits(NamedTuple):
    """`chunks`: default number of model chunks (virtual stages) a rank; `least` and `most`: its bounds (None: any)."""

    label: str
    """Name in charts, after Narayanan et al.'s `PP`."""
    shape: Shape = "line"
    chunks: int = 1
    least: int = 1
    most: int | None = 1
    split: bool = False
    """The backward is two operations: B (gradient of the input) and W (gradient of the weights)."""
    pairs: bool = False
    """Has PAIR operations, and needs at least as many micro-batches as there are stages."""
    sync: Sync = "flush"
    vertical: bool = False
    """A micro-batch uses the same weight version on all stages."""
    round_robin: bool = False
    """Stages may have different numbers of replicas (`schedule.round_robin`)."""
    keeps_all: bool = False
    """Keeps the activations of every micro-batch of a step; the others are full after a few a stage."""
    ideal_idle: bool = False
    """Its idle share with equal stages is (p - 1)/(v m) (Narayanan et al. 2021b, section 2.2); else it is simulated."""
    tried_in_whatif: bool = False
    """*What if* tries it unasked, in its list of single changes."""


CUSTOM: ScheduleName = "custom"
"""The schedule whose program is part of the spec."""

TRAITS: dict[str, Traits] = {
    "naive": Traits("Naive layer-wise"),
    "gpipe": Traits("PP-GPipe", keeps_all=True, ideal_idle=True, tried_in_whatif=True),
    "1f1b": Traits("PP-1F1B", round_robin=True, ideal_idle=True, tried_in_whatif=True),
    "interleaved": Traits("PP-Interleaved", "loop", 2, 2, None, ideal_idle=True, tried_in_whatif=True),
    "looped-bfs": Traits("PP-Looped BFS", "loop", 2, 2, None, keeps_all=True, ideal_idle=True),
    "zb-h1": Traits("PP-ZB-H1", split=True, tried_in_whatif=True),
    "zb-h2": Traits("PP-ZB-H2", split=True),
    "zb-v": Traits("PP-ZB-V", "v", 2, 2, 2, split=True, tried_in_whatif=True),
    "v-half": Traits("PP-V-Half", "v", 2, 2, 2, split=True),
    "v-min": Traits("PP-V-Min", "v", 2, 2, 2, split=True),
    "dualpipe-v": Traits("PP-DualPipe-V", "v", 2, 2, 2, split=True, pairs=True),
    "1f1b-naive": Traits("PP-1F1B async, no stash", sync="none", round_robin=True),
    "1f1b-stash": Traits("PP-1F1B async, stashed", sync="stash", round_robin=True),
    "1f1b-vertical": Traits("PP-1F1B async, vertical sync", sync="stash", vertical=True, round_robin=True),
    "1f1b-2bw": Traits("PP-2BW", sync="2bw", round_robin=True),
    CUSTOM: Traits("PP-Custom", most=None),
}
"""Traits of every schedule by name, simplest first."""


def round_robins() -> list[str]:
    """Schedules whose stages may have different numbers of replicas."""
    return [name for name, traits in TRAITS.items() if traits.round_robin]


def takes_early_gradients() -> list[str]:
    """Schedules whose gradients may leave a stage early (`schedule.passes.early_gradients`): their backward is one
    operation, and the weights do not change within a step."""
    return [name for name, traits in TRAITS.items() if traits.sync == "flush" and not traits.split and name != CUSTOM]


def flushes(name: str) -> bool:
    """Whether the pipeline runs empty in every step; else it stays full from step to step (asynchronous)."""
    return TRAITS[name].sync == "flush"


def place(shape: Shape, stage: int, pp: int) -> int:
    """The place 0 .. pp - 1 of stage `stage`; a V turns at either end, so that stages pp - 1 and pp are neighbours."""
    turn, step = divmod(stage, pp)
    return pp - 1 - step if shape == "v" and turn % 2 else step


def allowed_chunks(name: str) -> str:
    """Numbers of chunks that a rank may hold, in words: `1`, `2`, `2 or more`."""
    traits = TRAITS[name]
    return str(traits.least) if traits.most == traits.least else f"{traits.least} or more"
