"""Faults that are injected into a run, so that users, tests and teachers can see the effect of each.

    python -m parallel_core train spec.json --inject straggler:rank=1,factor=2

Each fault is a small module here, listed in `_Any`. None is on by default, and a run with faults is marked
wherever it is shown. The engine applies them in `engine.injected`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from parallel_core.faults.base import Fault
from parallel_core.faults.flipped_bit import FlippedBit
from parallel_core.faults.high_lr import HighLr
from parallel_core.faults.high_scale import HighScale
from parallel_core.faults.memory_hog import MemoryHog
from parallel_core.faults.slow_data import SlowData
from parallel_core.faults.slow_group import SlowGroup
from parallel_core.faults.slow_link import SlowLink
from parallel_core.faults.straggler import Straggler
from parallel_core.faults.tiny_kernels import TinyKernels
from parallel_core.faults.unbalanced_cut import UnbalancedCut
from parallel_core.rules import Proposal, refusal

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

_Any = (
    Straggler
    | SlowLink
    | SlowGroup
    | UnbalancedCut
    | SlowData
    | TinyKernels
    | MemoryHog
    | HighLr
    | HighScale
    | FlippedBit
)
AnyFault = Annotated[_Any, Field(discriminator="kind")]
KINDS: dict[str, type[Fault]] = {made.model_fields["kind"].default: made for made in typing.get_args(_Any)}
"""Kind -> class of the fault, in the order in which forms show them."""
_ADAPTER: TypeAdapter[Fault] = TypeAdapter(AnyFault)


def check_faults(spec: RunSpec) -> None:
    """Raises the error of the first fault that does not fit the run, or of a kind given twice."""
    kinds = [fault.kind for fault in spec.inject]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice:
        once = Proposal("leave one of them out", f"inject.{twice}", [None])
        raise refusal(
            (f"inject.{twice}",), f"a run has a fault of one kind once, and {twice} is there twice; use", once
        )
    for fault in spec.inject:
        fault.check(spec)


def broken(spec: RunSpec) -> RunSpec:
    """Returns the spec that is trained in place of `spec`, with the changes that its faults make to it."""
    for fault in spec.inject:
        spec = fault.breaks(spec)
    return spec


def changed(faults: Sequence[Fault], at: str, value: Any) -> tuple[Fault, ...]:
    """Returns the faults with `value` in the field `at` (`straggler.rank`) of the last fault of its kind, or without
    that fault if `at` is its kind alone.

    Raises pydantic's ValidationError if the value is wrong by itself.
    """
    kind, _, name = at.partition(".")
    last = max(i for i, fault in enumerate(faults) if fault.kind == kind)
    made = [type(faults[last]).model_validate({**dict(faults[last]), name: value})] if name else []
    return (*faults[:last], *made, *faults[last + 1 :])


def trained(spec: RunSpec) -> RunSpec:
    """Returns the spec without faults that has what a run of `spec` trains: its cut, its loss scale."""
    return broken(spec).model_copy(update={"inject": ()})


def sentences(faults: Iterable[Fault]) -> list[str]:
    """Describes each fault: `Straggler: rank 1 takes 2 times as long to compute`."""
    return [f"{fault.title}: {fault.sentence}" for fault in faults]


def stored(faults: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Returns the faults of a dumped spec."""
    return [_ADAPTER.validate_python(fault) for fault in faults]


def parse(text: str) -> dict[str, str]:
    """Parses `straggler:rank=1,factor=2` into a dictionary for the spec to validate; omitted fields take their
    defaults.

    Raises ValueError with a sentence where the kind or a field is unknown.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"there is no fault '{kind}'; there are {', '.join(KINDS)}.")
    out = {"kind": kind}
    for part in filter(None, rest.split(",")):
        name, given, value = part.partition("=")
        if not given or name not in KINDS[kind].fields():
            able = ", ".join(f"{field}=..." for field in KINDS[kind].fields())
            raise ValueError(f"'{part}' says nothing about a {kind}; it takes {able}.")
        out[name] = value
    return out
