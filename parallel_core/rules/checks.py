"""All rules between fields of a spec, in the order in which they are checked; the first one broken is reported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from parallel_core.analysis.quantities import listed_text
from parallel_core.faults import changed, check_faults
from parallel_core.outline import Outline, outline_of
from parallel_core.outline.recompute import RECOMPUTE_CHECKS
from parallel_core.rules import Change, Proposal, Refusal, refusal
from parallel_core.rules.communicators import check_communicators
from parallel_core.rules.pipeline import SPLIT_CHECKS, check_stages
from parallel_core.rules.replicas import check_batch, check_replicas
from parallel_core.rules.stream import check_stream
from parallel_core.rules.tensor import check_sequence, check_split, check_tensor
from parallel_core.rules.trace import check_profile
from parallel_core.rules.train import (
    check_corpus,
    check_dropout,
    check_evaluations,
    check_momentum,
    check_rate,
    check_steps,
    check_weights,
)
from parallel_core.rules.widths import check_widths
from parallel_core.rules.zero import check_zero

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec, RunSpec


def _of_split(check: Callable[[ParallelSpec], None], spec: RunSpec) -> None:
    check(spec.parallel)


def _of_outline(check: Callable[[RunSpec, Outline], None], spec: RunSpec) -> None:
    check(spec, outline_of(spec.model))


CHECKS: tuple[Callable[[RunSpec], None], ...] = (
    check_corpus,
    check_weights,
    check_dropout,
    check_tensor,
    *(partial(_of_split, check) for check in SPLIT_CHECKS),
    lambda spec: check_stages(spec.parallel, len(spec.model.units())),
    check_replicas,
    check_widths,
    check_communicators,
    *(partial(_of_outline, check) for check in RECOMPUTE_CHECKS),
    check_batch,
    check_split,
    check_sequence,
    check_zero,
    check_stream,
    check_steps,
    check_rate,
    check_momentum,
    check_evaluations,
    check_faults,
    check_profile,
)
"""The checks; each raises the error of the first of its rules that is broken."""


def check_all(spec: RunSpec) -> None:
    """Raises the error of the first rule that `spec` breaks, with the suggested changes that break no further rule.

    A changed field that is still part of another broken rule would be refused again, so such a change is suggested only
    where every other one has that defect, too. Where only the injected faults exclude every change, they are to be left
    out with it.
    """
    try:
        for check in CHECKS:
            check(spec)
    except Refusal as found:
        left = broken(spec) - {found.fields}
        tests = (partial(_ends, spec, left), partial(_fits, spec, left))
        told = found.among(*tests)
        if told is found and not found.fields[0].startswith("inject."):
            without = refusal(
                found.fields, found.problem, *(_unfaulted(spec, left, proposal) for proposal in found.proposals)
            )
            mended = without.among(*tests)
            told = found if mended is without else mended
        raise told from None


def _unfaulted(spec: RunSpec, left: set[tuple[str, ...]], proposal: Proposal) -> Proposal:
    """Returns `proposal` without the faults that would be refused after it, in addition to the rules in `left`."""
    changes = [{proposal.field: value, **dict(proposal.also)} for value in proposal.values[:1]]
    after = {rule for change in changes for rule in _after(spec, change) or () if rule not in left}
    kinds = sorted({field.split(".")[1] for rule in after for field in rule if field.startswith("inject.")})
    if not kinds:
        return proposal
    words = f"{proposal.words} {'and' if proposal.also else 'with'} {listed_text(kinds)} left out"
    return proposal._replace(words=words, also=[*proposal.also, *((f"inject.{kind}", None) for kind in kinds)])


def broken(spec: RunSpec) -> set[tuple[str, ...]]:
    """Returns the fields of the rules that `spec` breaks; of each of CHECKS only the first."""
    found: set[tuple[str, ...]] = set()
    for check in CHECKS:
        try:
            check(spec)
        except PydanticCustomError as error:
            found.add(tuple((error.context or {})["fields"]))
        except (ArithmeticError, LookupError, ValueError):
            continue  # the check was given values that another rule, which is broken, excludes
    return found


def _after(spec: RunSpec, change: Change) -> set[tuple[str, ...]] | None:
    """Returns the fields of the rules that `spec` breaks after `change`; None where a value is wrong by itself."""
    rooms: dict[str, Any] = {}
    try:
        for field, value in change.items():
            room, leaf = field.split(".", 1)
            old = rooms.get(room, getattr(spec, room))
            rooms[room] = changed(old, leaf, value) if room == "inject" else _set(old, leaf, value)
    except ValidationError:
        return None
    return broken(spec.model_copy(update=rooms))


def _set(room: BaseModel, leaf: str, value: Any) -> BaseModel:
    return type(room).model_validate({**dict(room), leaf: value})


def _fits(spec: RunSpec, left: set[tuple[str, ...]], change: Change) -> bool:
    """Whether the spec after `change` breaks no rule other than those in `left`."""
    after = _after(spec, change)
    return after is not None and after <= left


def _ends(spec: RunSpec, left: set[tuple[str, ...]], change: Change) -> bool:
    """Whether `change` fits, and no rule that is still broken is about a field that it sets."""
    after = _after(spec, change)
    return after is not None and after <= left and not any(field in rule for rule in after for field in change)
