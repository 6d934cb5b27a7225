"""The feasibility panel of the run form: an assessment as rows and sentences, without markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dashboard.fleet.words import WORDS, apart_text
from dashboard.runs.form.form_words import in_form_words, short_label
from dashboard.runs.layout.hosts import Hosts
from dashboard.runs.layout.picture import Picture, picture
from dashboard.runs.submission import WARNINGS, Assessment
from dashboard.runs.waiting.fleet_checks import shape_of
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import (
    bytes_beside,
    bytes_text,
    count_text,
    listed_text,
    percent_text,
    plural_text,
    seconds_text,
)
from parallel_core.layout import Layout
from parallel_core.observe.records import CATEGORIES
from parallel_core.outline import outline_of
from parallel_core.plan.peak import RankMemory
from parallel_core.rules.replicas import advice
from parallel_core.spec import RunSpec

SHOWN_STAGES = 16
SECTIONS = RunSpec.model_fields.keys() - {"inject"}
"""Sections of a spec: an error of a field that they lack, as a spec that was loaded may have, names it by its path."""


@dataclass(frozen=True)
class Part:
    """One category's part of the bar, in percent of the bar's full width."""

    category: str
    label: str
    text: str
    width: float


@dataclass(frozen=True)
class Row:
    """The ranks of one stage. `share` of the limit; '' if no limit is known."""

    ranks: str
    total: str
    parts: list[Part]
    over: bool
    share: str


@dataclass(frozen=True)
class Panel:
    """`fits` is None while there are errors, or if no device's memory is known."""

    label: str = ""
    errors: list[str] = field(default_factory=list)
    devices: str = ""
    memory: str = ""
    waits: str = ""
    doubt: str = ""
    disk: str = ""
    unsaved: str = ""
    tokens: str = ""
    fits: bool | None = None
    rows: list[Row] = field(default_factory=list)
    hidden: int = 0
    batch: str = ""
    step: str = ""
    untimed: tuple[str, str] | None = None
    """The hosts whose links would have to be measured before the step could be predicted."""
    unprofiled: bool = False
    """Whether a profile of the model is missing for the prediction."""
    record: str = ""
    limit: str = ""
    layout: Picture | None = None

    @property
    def warnings(self) -> list[tuple[str, str, str]]:
        """(name, what it means, why) of each thing that it warns of."""
        return [(name, what, said) for name, what in WARNINGS.items() if (said := getattr(self, name))]

    @classmethod
    def of(cls, found: Assessment) -> Panel:
        """The panel of an assessment."""
        if found.spec is None:
            return cls(errors=_said(found.errors))
        feasibility = found.feasibility
        full = max([found.limit, *(stage.total for stage in found.stages)])
        return cls(
            label=found.label,
            errors=_said(found.errors),
            devices=_devices(found),
            memory=feasibility.sentence if feasibility else "",
            waits=found.waits,
            doubt=found.doubt,
            disk=in_form_words(found.disk),
            unsaved=found.unsaved,
            tokens=found.tokens,
            fits=feasibility.fits if feasibility else None,
            rows=[_of_stage(found.spec, stage, full, found.limit) for stage in shown_stages(found.stages)],
            hidden=max(0, len(found.stages) - SHOWN_STAGES),
            batch=_batch(found.spec),
            step=_step(found),
            untimed=found.predicted.untimed,
            unprofiled=found.predicted.unprofiled,
            record=found.record if found.predicted.seconds else "",
            limit=limit_text(found.limit, found.stages),
            layout=picture(found.spec, 0, hosts=Hosts(found.hosts)) if found.spec.parallel.world > 1 else None,
        )


def _said(errors: Mapping[str, str]) -> list[str]:
    """Messages that name their field, because they are not shown at it. A grid is shown only at its field."""
    said = []
    for path, message in errors.items():
        first, _, grid = in_form_words(message).partition("\n")
        label = short_label(path) or (path if path.partition(".")[0] in SECTIONS else "")
        name = f"{label}: " if label.lower() not in first.lower() else ""
        said.append(f"{name}{first}{' Its field shows where.' if grid else ''}")
    return said


def _devices(found: Assessment) -> str:
    assert found.spec and found.capacity
    world, word = found.spec.parallel.world, WORDS[found.capacity.kind]
    asked = f"{world} {word}{'s' if world > 1 else ''} asked for"
    if found.spec.parallel.widths is not None:
        asked = f"{asked}, {shape_of(found.spec.parallel)[1]} by stage (replicas × tensor ranks)"
    if not found.capacity.total:
        return f"{asked}; no worker reports any now."
    largest, apart = found.capacity.largest, found.capacity.apart
    spread = f"; its ranks would be on {listed_text(list(dict.fromkeys(found.hosts)))}" if found.hosts else ""
    total = f"{found.capacity.total} for one run" if apart else str(found.capacity.total)
    readers = found.capacity.readers
    have = f"those that have its files ({listed_text(readers)}) have" if readers else found.capacity.on.have
    shared = found.capacity.shared if world > 1 else ""
    return f"{asked}; {have} {total}, at most {largest} on one host{spread}{shared}.{apart_text(apart)}"


def _batch(spec: RunSpec) -> str:
    split, size = spec.parallel, spec.micro_batch_size
    parts = f"{plural_text(split.micro_batches, 'micro-batch')} × {size}"
    target = outline_of(spec.model).target
    targets = f"{count_text(spec.tokens_per_step)} {target}" if spec.tokens_per_step > 1 else f"1 {target[:-1]}"
    step = f"{plural_text(spec.train.global_batch, 'sample')} a step"
    if split.replicas is not None:
        return f"{step} = {parts}, to the replicas in turn; {targets}." + (
            f" {uneven}" if (uneven := advice(split.replicas, split.micro_batches)) else ""
        )
    return f"{step} = {plural_text(split.dp, 'replica')} × {parts}; {targets}."


def _step(found: Assessment) -> str:
    predicted = found.predicted
    if predicted.seconds is None or predicted.profile is None:
        return f"not predicted: {predicted.why_not}" if predicted.why_not else ""
    worker = predicted.profile.worker.name
    likely = f" ({predicted.likely.text(worker)})" if predicted.likely else ""
    text = f"{seconds_text(predicted.seconds)} predicted{likely}; simulated from the profile of {worker}"
    names = listed_text(sorted(set(found.hosts)))
    return f"{text} and what was timed between {names}" if found.hosts else text


def _of_stage(spec: RunSpec, stage: RankMemory, full: int, limit: int) -> Row:
    """`row_of`; if a fault holds memory on one of several ranks, names that rank."""
    row, copies = row_of(spec, stage, full, limit), spec.parallel.copies[stage.stage]
    several = copies * spec.parallel.tensor_ranks[stage.stage] > 1
    held = any(fault.held_bytes(stage.rank) for fault in spec.inject)
    return replace(row, ranks=f"{row.ranks}, most on {stage.rank}") if held and several else row


def shown_stages(stages: Sequence[RankMemory]) -> list[RankMemory]:
    """The first SHOWN_STAGES, of which the last gives way to the one that needs most, which the sentence names."""
    first, worst = list(stages[:SHOWN_STAGES]), max(stages, key=lambda stage: stage.total, default=None)
    return first if worst is None or worst in first else [*first[:-1], worst]


def row_of(spec: RunSpec, stage: RankMemory, full: int, limit: int, names: Mapping[str, str] = CATEGORY_NAMES) -> Row:
    """The ranks of a stage; bars are parts of `full` bytes, `names` are the labels of categories."""
    split = spec.parallel
    first, count = Layout.of(spec).rank(stage.stage), split.copies[stage.stage] * split.tensor_ranks[stage.stage]
    parts = [
        Part(name, names[name], bytes_text(value), round(100 * value / full, 2))
        for name in CATEGORIES
        if (value := stage.as_dict()[name])
    ]
    ranks = f"Rank {first}" if count == 1 else f"Ranks {first}–{first + count - 1}"
    share = percent_text(stage.total / limit) if limit else ""
    return Row(ranks, bytes_beside(stage.total, limit), parts, bool(limit) and stage.total > limit, share)


def limit_text(limit: int, stages: Sequence[RankMemory]) -> str:
    """What a rank may fill, told apart from what the fullest one needs; '' if it is not known (0)."""
    return bytes_beside(limit, max((stage.total for stage in stages), default=0), 3) if limit else ""
