"""The series that a run's page draws: their titles, units, and how they are measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from django.db.models import Max, Min, QuerySet, Sum

from dashboard.runs import selectors
from dashboard.runs.models import ENDED, RankInfo, Run, SeriesChunk, SpanChunk
from dashboard.runs.page.verdict import target_of
from dashboard.runs.tracing.thinned import thinned
from parallel_core.analysis.diagnosis.fp16_overflow import what_is_skipped
from parallel_core.analysis.quantities import figure_text, last_samples, rate_text, seconds_text, significant
from parallel_core.observe.cuda_recorder import CudaSpanRecorder
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.records import POINT, SHARE_SERIES
from parallel_core.parallel_spec import ParallelSpec
from parallel_core.spec import RunSpec


def _four_digits(value: float) -> str:
    return significant(value, 4)


def _percent(value: float) -> str:
    return f"{significant(value)} %"


def _milliseconds(value: float) -> str:
    return seconds_text(value / 1e3)


@dataclass(frozen=True)
class Metric:
    """One series.

    `title` is the quantity, `unit` that of the axis, `text` formats a value; both apply to the stored value times
    `scale`. `measured` is the source shown under the chart; `only` = the one precision that has this series; `by_stage`
    = each stage has its own, where the pipeline is not flushed: a line for each, from its first rank. `held_out` = the
    series that is a second line: the same of held-out samples, where the run evaluates them.
    """

    name: str
    title: str
    unit: str
    measured: str = "measured"
    only: str = ""
    by_stage: bool = False
    held_out: str = ""
    scale: float = 1.0
    text: Callable[[float], str] = _four_digits

    def said(self, value: float) -> str:
        return self.text(value) if math.isfinite(value) else "not finite"

    @property
    def with_unit(self) -> str:
        return self.title if self.unit == self.title.lower() else f"{self.title}, {self.unit}"

    @property
    def is_share(self) -> bool:
        return self.unit.startswith("%")

    @property
    def from_zero(self) -> bool:
        """Whether the axis begins at 0: of a share, and of a rate, which is often the same in all steps."""
        return self.is_share or self.name == "lr"


_TRACED = "every traced step"
_SPANS = f"measured in {_TRACED} from the spans of all ranks, mean over them"
_PEAK, _STEP = "% of the devices' peak", "% of a step"
METRICS = (
    Metric("loss", "Loss", "loss", held_out="eval_loss"),
    Metric(
        "step_time",
        "Step time",
        "ms",
        "measured on rank 0, end of one step to end of the next",
        scale=1e3,
        text=_milliseconds,
    ),
    Metric("tokens_per_s", "Throughput", "tokens/s", "measured: tokens of the global batch over the step's wall time"),
    Metric("grad_norm", "Gradient norm", "gradient norm", "measured before clipping"),
    Metric("lr", "Learning rate", "learning rate", "as set for the step"),
    Metric(
        "mfu",
        "Model FLOPs utilisation (MFU)",
        _PEAK,
        "measured: FLOPs the model needs, over the step's wall time and the devices' peak (Chowdhery et al. 2022, "
        "appendix B)",
        scale=100,
        text=_percent,
    ),
    Metric(
        "hfu",
        "Hardware FLOPs utilisation (HFU)",
        _PEAK,
        "measured as MFU, with the FLOPs of recomputation counted too",
        scale=100,
        text=_percent,
    ),
    Metric(
        "tflops",
        "Model FLOP/s a device",
        "TFLOP/s",
        "measured: FLOPs the model needs, over the step's wall time and the devices",
        text=lambda value: f"{significant(value)} TFLOP/s",
    ),
    Metric(
        "bubble_share",
        "Bubble",
        _STEP,
        f"{_SPANS}: waiting in a receive before its send began, or in a collective before its last rank came; without "
        "pauses between operations",
        scale=100,
        text=_percent,
    ),
    Metric(
        "exposed_share",
        "Communication not hidden",
        _STEP,
        f"{_SPANS}: messages and collectives under way while the rank did nothing else; without those behind "
        "computation, and without the bubble",
        scale=100,
        text=_percent,
    ),
    Metric(
        "recompute_share",
        "Recomputation",
        _STEP,
        f"{_SPANS}: forward run again inside a backward; without the collectives in it",
        scale=100,
        text=_percent,
    ),
    Metric("loss_scale", "Loss scale", "loss scale", only="fp16", text=figure_text),
    Metric("skipped_steps", "Steps skipped so far", "steps", only="fp16"),
    Metric(
        "staleness",
        "Staleness by stage",
        "updates",
        "measured: updates of the stage between the forward of a micro-batch and the one by its gradient, mean over "
        "the micro-batches of the step",
        by_stage=True,
    ),
    Metric("stage_loss_scale", "Loss scale by stage", "loss scale", only="fp16", by_stage=True, text=figure_text),
    Metric("stage_skipped", "Updates skipped so far by stage", "updates", only="fp16", by_stage=True),
)
NOT_DRAWN = {
    "rank_step_time": "ranks wait for one another, so all end a step at about the time of step_time",
    "reference_time": "not of the run but of its host: studies draw what follows from it, the pace",
    "memory": "sampled between steps, when activations are free: the Memory tab has the peaks",
    "cpu_others": "one share so far, which the page says in words where it disturbed the run",
    "eval_time": "of no step, and about as long each time: said under the chart of the loss",
}
"""The other recorded series and why no chart shows them; the CSV and JSON files have them."""


def metrics_of(run: Run) -> list[Metric]:
    """The metrics of `run`, in the order of the page, with titles and units that fit it."""
    precision, flushes = run.spec.get("train", {}).get("precision"), RunSpec.stored(run.spec).parallel.flushes
    own = (metric for metric in METRICS if metric.only in ("", precision) and not (metric.by_stage and flushes))
    found = [_worded(metric, run) for metric in own]
    attempt = _metering(run)
    if attempt is None:
        return found
    said = _metered_steps(run, attempt)
    return [replace(metric, measured=metric.measured.replace(_TRACED, said)) for metric in found]


def _metering(run: Run) -> int | None:
    """The newest attempt that measured shares in every step, or in one of every few."""
    metering = RankInfo.objects.filter(attempt__run=run, rank=0, hello__waits=True)
    return metering.order_by("-attempt__number").values_list("attempt", flat=True).first()


def metered_every(run: Run) -> int:
    """Shares were measured in one of so many steps; 1 also where none were."""
    attempt = _metering(run)
    shares = SeriesChunk.objects.filter(attempt=attempt, rank=0, name=SHARE_SERIES[0])
    return _stride(attempt, shares) if attempt is not None and shares.exists() else 1


def _metered_steps(run: Run, attempt: int) -> str:
    """In which steps of this attempt shares were measured: every step, or how many and why."""
    chunks = SeriesChunk.objects.filter(attempt=attempt, rank=0)
    shares = chunks.filter(name=SHARE_SERIES[0])
    have = shares.aggregate(count=Sum("count"), last=Max("last_step"))
    steps = chunks.filter(name="step_time").aggregate(first=Min("first_step"), last=Max("last_step"))
    if not have["count"] or steps["first"] is None:
        return "every step"
    last = steps["last"] if run.state in ENDED else have["last"]  # others may be on their way
    number = last - steps["first"] + 1
    if have["count"] >= number:
        return "every step"
    dropped = thinned(run)  # then its traced steps no longer tell
    apart = dropped.every if dropped else _stride(attempt, shares)
    why = f" (one in {apart}: each has over {apart * _most_spans(run) // 2} spans)" if apart > 1 else ""
    return f"{have['count']} of {number} steps{why}"


def _stride(attempt: int, shares: QuerySet[SeriesChunk]) -> int:
    """The largest power of two e of which the newest points are those of the last of every e steps, as
    SpanRecorder.keep_step keeps them, apart from traced steps; 1 without one."""
    chunks = shares.order_by("-first_step").values_list("data", flat=True)[:2]  # the newest may have only begun
    steps = np.concatenate([np.frombuffer(bytes(data), POINT)["step"] for data in chunks])
    between = (int(steps.min()), int(steps.max()))
    traced = SpanChunk.objects.filter(attempt=attempt, rank=0, step__range=between).order_by()
    ends = 1 + np.setdiff1d(steps, list(traced.values_list("step", flat=True)))
    together = int(np.bitwise_or.reduce(ends))
    return together & -together if len(ends) > 1 else 1


def _most_spans(run: Run) -> int:
    on_cuda = run.spec.get("train", {}).get("device") == "cuda"
    return (CudaSpanRecorder if on_cuda else SpanRecorder).KEPT


def _worded(metric: Metric, run: Run) -> Metric:
    if metric.held_out:
        return _evaluated(metric, run)
    if metric.name == "tflops" and run.spec.get("train", {}).get("device") != "cuda":
        return _on_cpu(metric)
    if metric.name == "skipped_steps":
        return _skipping(metric, what_is_skipped(RunSpec.stored(run.spec))[0])
    if metric.name == "grad_norm":
        return _of_updates(metric, RunSpec.stored(run.spec).parallel)
    return _counting(metric, target_of(run)) if metric.name == "tokens_per_s" else metric


def _evaluated(metric: Metric, run: Run) -> Metric:
    """With what is evaluated, and how long it took; without a second line where nothing is."""
    held_out = RunSpec.stored(run.spec).train.held_out
    if not held_out:
        return replace(metric, held_out="")
    seconds = selectors.series(run, "eval_time").value
    took = f", in {seconds_text(float(np.median(seconds)))} each time, between steps" if len(seconds) else ""
    what = f"held out: mean over {last_samples([held_out])} of the corpus, {_untrained(run)}, without dropout"
    return replace(metric, measured=f"{metric.measured}; {what}{took}")


def _untrained(run: Run) -> str:
    """Whether the run has trained on held-out samples: a run that it went on from may have, or one that is deleted."""
    train, at = RunSpec.stored(run.spec).train, run
    while at.resume_step:
        before = at.resume_run
        known = RunSpec.stored(before.spec).train if before else None
        if before is None or known is None or (known.corpus == train.corpus and known.held_out < train.held_out):
            return f"which may have been trained on before step {at.resume_step}"
        at = before
    return "never trained on"


def _skipping(metric: Metric, what: str) -> Metric:
    """Without a flush, the series counts skipped updates of the first stage."""
    return replace(metric, title=f"{what.capitalize()} skipped so far", unit=what.split()[0])


def _of_updates(metric: Metric, split: ParallelSpec) -> Metric:
    """Where any place updates several times a step, the norm is a mean (`engine.stream`)."""
    if all(split.updates(place) == 1 for place in range(split.pp)):
        return metric
    return replace(metric, measured=f"{metric.measured}, root mean square over the updates of a step")


def _on_cpu(metric: Metric) -> Metric:
    """In GFLOP/s: a core reaches about a thousandth of a GPU."""
    return replace(metric, unit="GFLOP/s", scale=1e3, text=lambda value: f"{significant(value)} GFLOP/s")


def _counting(metric: Metric, target: str) -> Metric:
    """With e.g. `images` instead of tokens, if that is what the speed counts."""
    said = metric.measured.replace("tokens", target)
    return replace(metric, unit=f"{target}/s", measured=said, text=partial(rate_text, target=target))
