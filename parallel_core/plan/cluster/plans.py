"""Plans as columns, one entry a plan, so that a formula is computed for a hundred thousand plans at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.traits import TRAITS, flushes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "1f1b-stash", "1f1b-2bw")
"""Codes of schedules: their place in this tuple. The last two are asynchronous: no flush, but stale weights."""
INTERLEAVED, ZB_V, STASH, TWO_BW = map(SCHEDULES.index, ("interleaved", "zb-v", "1f1b-stash", "1f1b-2bw"))
GPIPE = SCHEDULES.index("gpipe")
SPLIT_BACKWARD = tuple(code for code, name in enumerate(SCHEDULES) if TRAITS[name].split)
ASYNCHRONOUS = tuple(code for code, name in enumerate(SCHEDULES) if not flushes(name))
RECOMPUTE = ("none", "selective", "full")
FULL = RECOMPUTE.index("full")
PRECISIONS = ("16-bit", "fp32")


class State(NamedTuple):
    """Bytes a parameter takes as weight, as gradient, and in the optimizer."""

    weights: int
    gradients: int
    optimizer: int
    sent: int
    """Bytes of a parameter's gradient in the reduction over replicas."""
    words: str
    optimizer_name: str = "Adam"
    in_fp32: int = 8
    """Bytes of a parameter in the optimizer where all is in fp32: no master weights are needed then."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


STATES: dict[int, State] = {
    8: State(2, 2, 4, 2, "all in 16 bits, both moments included"),
    10: State(2, 4, 4, 4, "as 18, without a moment", "SGD", 0),
    14: State(2, 4, 8, 4, "as 18, with one moment", "SGD with momentum", 4),
    16: State(
        2, 2, 12, 2, "16-bit weights and gradients, fp32 master weights and moments (Rajbhandari et al. 2020, 3.1)"
    ),
    18: State(2, 4, 12, 4, "as 16, with gradients summed in fp32 (Megatron-LM; Korthikanti et al. 2022, Figure 1)"),
    20: State(2, 6, 12, 2, "as 16, with a copy of the gradients in fp32 for the step (Megatron-LM of 2021, fp16)"),
}
"""Bytes a parameter -> how they are divided, and so which optimizer a plan has, in memory as in the time of the
update. With precision fp32 each of them is replaced by 4 + 4 + `in_fp32`, which is 16 of Adam.

These plans are of a model and a cluster, not of a RunSpec. Plans of a RunSpec have the bytes of its own optimizer
(`plan.peak`, `plan.alpa.costs`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to split and schedule a training step. `micro_batch` in sequences; `chunks`: model chunks a rank;
    `state`: bytes a parameter (a key of STATES); `offload`: optimizer state and step on the host; `by_columns`: a
    tensor group splits every linear layer by its outputs and gathers them, instead of column-row pairs."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    chunks: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    zero: int = 0
    sequence_parallel: bool = False
    precision: str = "16-bit"
    state: int = 18
    offload: bool = False
    by_columns: bool = False

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp

    def label(self) -> str:
        """`TP 8 x PP 16 x DP 8, 1F1B` and further options that are on."""
        axes = [f"{name} {n}" for name, n in (("TP", self.tp), ("PP", self.pp), ("DP", self.dp)) if n > 1]
        parts = [" x ".join(axes) or "one device"]
        if self.pp > 1:
            parts.append(scheduled(self.schedule, self.chunks))
        parts += [f"micro-batch {self.micro_batch}"]
        if self.zero:
            parts.append(f"ZeRO-{self.zero}")
        flags = (("SP", self.sequence_parallel), ("by columns", self.by_columns), ("offload", self.offload))
        parts += [word for word, on in flags if on]
        if self.recompute != "none":
            parts.append(f"{self.recompute} recompute")
        parts += [PRECISIONS[1]] * (self.precision == PRECISIONS[1])
        parts += [f"{self.state} bytes"] * (self.state != 18)
        return ", ".join(parts)


def scheduled(name: str, chunks: int) -> str:
    """A schedule with its chunks a rank: `interleaved 4`; without them where it has no other number of them."""
    return f"{name} {chunks}" if chunks > 1 and chunks != TRAITS[name].most else name


_FLAGS = ("sequence_parallel", "offload", "by_columns")
_CODES = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "precision": PRECISIONS}


@dataclass(frozen=True)
class Plans:
    """The fields of Plan as arrays of equal length; words as codes, most numbers as floats against overflow."""

    dp: Floats
    tp: Floats
    pp: Floats
    chunks: Floats
    micro_batch: Floats
    schedule: Ints
    recompute: Ints
    zero: Ints
    sequence_parallel: Bools
    precision: Ints
    state: Ints
    offload: Bools
    by_columns: Bools

    def __len__(self) -> int:
        return len(self.dp)

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> Plans:
        """The plans in their order: each field [n]."""
        columns = {f.name: [_code(f.name, getattr(plan, f.name)) for plan in plans] for f in fields(Plan)}
        return cls.columns(**columns)

    @classmethod
    def columns(cls, **given: Any) -> Plans:
        """Plans from one array a field (or one value for all plans); codes instead of words."""
        kinds: dict[str, Any] = {f.name: _kind(f.name) for f in fields(cls)}
        made = np.broadcast_arrays(*(np.asarray(given[name], kind) for name, kind in kinds.items()))
        return cls(*(np.atleast_1d(column) for column in made))

    def take(self, where: Bools | Ints) -> Plans:
        """The plans at these indices, or where the mask is true."""
        return Plans(*(getattr(self, f.name)[where] for f in fields(self)))

    def joined(self, others: Plans) -> Plans:
        """These plans, then `others`."""
        return Plans(*(np.concatenate([getattr(self, f.name), getattr(others, f.name)]) for f in fields(self)))

    def row(self, i: int) -> Plan:
        """Plan `i`, codes as words again."""
        values = {f.name: getattr(self, f.name)[i] for f in fields(self)}
        return Plan(**{name: _plain(name, value) for name, value in values.items()})

    @property
    def devices(self) -> Floats:
        return self.dp * self.tp * self.pp

    def chosen(self, name: str, values: Mapping[str, Floats]) -> Floats:
        """Of each plan that one of `values` that belongs to its word in the field `name`. Raises KeyError where a word
        that a plan may have is not among them."""
        found: Floats = np.choose(getattr(self, name), [values[word] for word in _CODES[name]])
        return found

    def bytes_each(self, part: str) -> Floats:
        """Bytes a parameter for one field of State: `weights`, `gradients`, `optimizer` or `sent`."""
        table, wide = np.zeros((2, max(STATES) + 1))
        for key, state in STATES.items():
            table[key], wide[key] = getattr(state, part), state.in_fp32 if part == "optimizer" else 4
        return np.where(self.precision == PRECISIONS.index("fp32"), wide[self.state], table[self.state])

    @property
    def split_backward(self) -> Bools:
        """Whether the weight gradient is a separate operation, deferred into the bubbles."""
        return np.isin(self.schedule, SPLIT_BACKWARD)

    @property
    def asynchronous(self) -> Bools:
        """Whether the pipeline never flushes."""
        return np.isin(self.schedule, ASYNCHRONOUS)

    @property
    def element(self) -> Floats:
        """Bytes of one element of an activation."""
        return np.where(self.precision == PRECISIONS.index("fp32"), 4.0, 2.0)


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other values of these fields."""
    return replace(plan, **changes)


def _kind(name: str) -> Any:
    if name in _FLAGS:
        return np.bool_
    return np.int64 if name in (*_CODES, "zero", "state") else np.float64


def _code(name: str, value: Any) -> Any:
    return _CODES[name].index(value) if name in _CODES else value


def _plain(name: str, value: Any) -> Any:
    if name in _CODES:
        return _CODES[name][int(value)]
    return bool(value) if name in _FLAGS else int(value)
