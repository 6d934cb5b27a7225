"""How long text generation takes, estimated from the best that is known of the host.

- Earlier runs that generated from the same model there: their times, for other splits divided by the expected speedup,
  for more texts multiplied.
- Else the model's cost table of that host, else its calibration: the forward pass of a whole sequence. A token of up to
  so many texts is less work than that, but is bound by memory and launches more than by FLOPs (Pope et al. 2022,
  section 2.2), so its time is only known to be at most that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.ledger.models import Profile, ProfileState
from dashboard.ledger.selectors import profile_key
from dashboard.runs.generation.generating import ONE, Split
from dashboard.runs.models import Attempt, Run, State
from dashboard.studies.new.estimate import EFFICIENCY, METERED_STEPS, START_S, step_seconds
from dashboard.studies.new.variants import Variant
from parallel_core.analysis.disturbance import is_quiet
from parallel_core.analysis.quantities import listed_text, plural_text, seconds_text
from parallel_core.generation_request import texts_of
from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec

SEARCHED = 100
"""The most earlier runs among which those of the same model are sought, newest first."""
NAMED = 2
"""The most of them that are named as the source of a time."""
FORWARD = 1 / 3
"""Share of a training step that is its forward pass: the backward has twice its FLOPs (Kaplan et al. 2020, section
2.1)."""


@dataclass(frozen=True)
class Times:
    """Seconds of prefill and of each later token of one split. `bound`: they are at most that."""

    prefill: float
    token: float
    bound: bool = False

    def __str__(self) -> str:
        most = "at most " if self.bound else ""
        return f"prefill {most}{seconds_text(self.prefill)}, a token {most}{seconds_text(self.token)}"


@dataclass(frozen=True)
class Known:
    """Measured times of `split`, with `texts` on its first replica after `prompt` tokens. `source` says what they are
    from. `bound`: they are at most that, on one device."""

    split: Split
    texts: float
    prompt: float
    prefill: float
    token: float
    source: str
    bound: bool = False

    def of(self, variant: Variant) -> Times | None:
        """The times of another split or request. Never less than known for fewer texts, so rather too long. None where
        a bound says nothing: of tensor ranks, as it has no collectives."""
        split, task = split_of(variant.spec), _task(variant)
        if self.bound and split.tp > 1:
            return None
        texts, prompt = len(texts_of(task["samples"], split.dp, 0)), len(task["prompt"])
        width = _gain(self.split) / _gain(split)
        more = max(1.0, texts / self.texts)
        longer = max(1.0, texts * prompt / (self.texts * self.prompt))
        return Times(self.prefill * width * longer, self.token * width * more, self.bound)


def split_of(spec: RunSpec) -> Split:
    """The split of a run that generates text."""
    return Split(spec.parallel.tp, spec.parallel.pp, spec.parallel.dp)


def _task(variant: Variant) -> Mapping[str, Any]:
    assert variant.task is not None, "every variant of this kind generates"
    return variant.task


def _gain(split: Split) -> float:
    """Expected speedup of one text: tensor ranks share each layer, stages work one at a time."""
    return split.tp * EFFICIENCY["tp"] if split.tp > 1 else 1.0


@dataclass(frozen=True)
class Evidence:
    """What is known of a model on some hosts, the best first: earlier runs, then one bound."""

    known: Sequence[Known]

    @property
    def bound(self) -> bool:
        """Whether all that is known are upper bounds."""
        return bool(self.known) and all(one.bound for one in self.known)

    def times(self, variant: Variant) -> Times | None:
        """The times of a variant, from the run most like it; None if nothing is known of it."""
        found = self._nearest(split_of(variant.spec))
        return found.of(variant) if found else None

    def seconds(self, variant: Variant) -> float | None:
        """Seconds of the whole run, with its start and the metered prefill and token; None if not known."""
        times = self.times(variant)
        if times is None:
            return None
        return START_S + METERED_STEPS * times.prefill + _task(variant)["new"] * times.token

    def source(self, variants: Iterable[Variant]) -> str:
        """What the times of these variants are from, as a sentence; '' if nothing is known."""
        used = [found for one in variants if (found := self._nearest(split_of(one.spec)))]
        said = list(dict.fromkeys(found.source for found in used))
        more = [f"{len(said) - NAMED} more"] if len(said) > NAMED else []
        return f"Times are {listed_text([*said[:NAMED], *more])}." if said else ""

    def _nearest(self, split: Split) -> Known | None:
        return min(self.known, key=lambda one: (one.bound, one.split != split, one.split != ONE), default=None)


def evidence(source: Run, one: RunSpec, workers: Sequence[str], calibration: Mapping[str, Any] | None) -> Evidence:
    """What is known of `one`, the model of the run `source` on a single device, on these workers."""
    known = _earlier(one, workers)
    if known:
        return Evidence(known)
    bound = _by_table(source, one, workers) or (_by_calibration(one, calibration) if calibration else None)
    return Evidence([bound] if bound else [])


def _earlier(one: RunSpec, workers: Sequence[str]) -> list[Known]:
    """The newest undisturbed run of each split that generated from the same model there."""
    done = Run.objects.filter(state=State.SUCCEEDED, summary__generation__isnull=False).exclude(task={})
    found: dict[Split, Known] = {}
    for run in done.order_by("-pk")[:SEARCHED]:
        spec, made = RunSpec.stored(run.spec), run.summary["generation"]
        split = split_of(spec)
        if split in found or not made or not made["token"] or not run.task.get("cached", True) or not _like(spec, one):
            continue
        if is_quiet(run.summary) and _ran_on(run) <= set(workers):
            texts = len(texts_of(run.task["samples"], split.dp, 0))
            said = f"those of run {run.pk} ({split.label}, {plural_text(texts, 'text')} at a time)"
            prompt = len(run.task["prompt"])
            found[split] = Known(split, texts, prompt, made["prefill"], made["token"]["median"], said)
    return list(found.values())


def _like(spec: RunSpec, one: RunSpec) -> bool:
    same = (spec.train.precision, spec.train.device) == (one.train.precision, one.train.device)
    return same and spec.model == one.model


def _ran_on(run: Run) -> set[str]:
    newest = Attempt.objects.filter(run=run).order_by("-number").values_list("devices", flat=True).first() or []
    return {node["worker"] for node in newest}


def _by_table(source: Run, one: RunSpec, workers: Sequence[str]) -> Known | None:
    """The forward pass of a sequence in the newest cost table of these hosts; None if there is none."""
    usual = {**source.spec, "train": {**source.spec["train"], "deterministic": False}}  # as generation's kernels are
    key = profile_key(RunSpec.stored(usual))
    done = Profile.objects.filter(key=key, state=ProfileState.DONE, worker__name__in=workers).select_related("worker")
    newest = done.order_by("-done_at").first()
    rows = CostTable.model_validate(newest.table).of(1, "none", 1) if newest else []
    if newest is None or not rows:
        return None
    said = f"at most a forward pass of {one.model.seq} tokens in the profile of {newest.worker.name}"
    return _bound(one, rows[0].whole["forward"] / rows[0].samples, said)


def _by_calibration(one: RunSpec, calibration: Mapping[str, Any]) -> Known:
    pass_s = FORWARD * step_seconds(one, calibration) / one.train.global_batch
    return _bound(one, pass_s, f"at most a forward pass of {one.model.seq} tokens by the calibration there")


def _bound(one: RunSpec, forward: float, said: str) -> Known:
    """A pass over as many tokens as a sequence has takes at most `forward` seconds, whether of one text or of more."""
    seq = one.model.seq
    return Known(ONE, texts=seq, prompt=1, prefill=forward, token=forward, source=said, bound=True)
