"""Faults that are injected for real, so that a person, a test or a teacher can see what each of them looks like.

    python -m parallel_core train spec.json --inject straggler:rank=1,factor=2

A fault is one small file here, named in `AnyFault`. None is ever on by default, and a run that has one says so wherever
it is shown. What the engine does about them is `engine.injected`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
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
from parallel_core.rules import rule_error

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
"""Kind -> its class, in the order forms show them."""
_ADAPTER: TypeAdapter[Fault] = TypeAdapter(AnyFault)


def check_faults(spec: RunSpec) -> None:
    """Raises the error of the first fault that does not fit the run."""
    kinds = [fault.kind for fault in spec.inject]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice:
        raise rule_error((f"inject.{twice}",), f"a run has a fault of one kind once; {twice} stands there twice.")
    for fault in spec.inject:
        fault.check(spec)


def broken(spec: RunSpec) -> RunSpec:
    """What is trained in place of `spec`: its faults have changed what a spec can say."""
    for fault in spec.inject:
        spec = fault.breaks(spec)
    return spec


def sentences(faults: Iterable[Fault]) -> list[str]:
    """`Straggler: rank 1 takes 2 times as long to compute`, one a fault."""
    return [f"{fault.title}: {fault.sentence}" for fault in faults]


def spelt(faults: Iterable[Mapping[str, Any]]) -> list[str]:
    """Faults of a dumped spec as the command line takes them."""
    return [_ADAPTER.validate_python(fault).spelt for fault in faults]


def parse(text: str) -> dict[str, str]:
    """`straggler:rank=1,factor=2` as the dictionary that a spec judges; a fault alone takes its usual values.

    Raises ValueError with a sentence where it is not spelt so.
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
