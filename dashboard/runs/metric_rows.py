"""The series that a run's page draws: what each is called, its unit, and where it is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dashboard.runs.models import Run
from dashboard.runs.page_verdict import target_of


@dataclass(frozen=True)
class Metric:
    """`title` is the quantity, `unit` the axis, both of the stored value times `scale`; `measured` stands under the
    chart; `only` names the one precision that has it."""

    name: str
    title: str
    unit: str
    measured: str = "measured"
    only: str = ""
    scale: float = 1.0


_SPANS = "measured in every traced step from the spans of all ranks, mean over them"
_PEAK, _STEP = "% of the devices' peak", "% of a step"
METRICS = (
    Metric("loss", "Loss", "loss"),
    Metric("step_time", "Seconds a step", "seconds", "measured on rank 0, end of one step to end of the next"),
    Metric("tokens_per_s", "Tokens/s", "tokens/s", "measured: tokens of the global batch over the step's wall time"),
    Metric("grad_norm", "Gradient norm", "gradient norm"),
    Metric(
        "mfu",
        "Model FLOPs utilisation, %",
        _PEAK,
        "measured: FLOPs the model needs, over the step's wall time and the devices' peak (Chowdhery et al. 2022, "
        "appendix B)",
        scale=100,
    ),
    Metric(
        "hfu",
        "Hardware FLOPs utilisation, %",
        _PEAK,
        "measured as MFU, with the FLOPs of recomputation counted too",
        scale=100,
    ),
    Metric(
        "tflops",
        "TFLOP/s a device",
        "TFLOP/s",
        "measured: FLOPs the model needs, over the step's wall time and the devices",
    ),
    Metric("bubble_share", "Bubble, %", _STEP, f"{_SPANS}: waiting before the other side had begun to send", scale=100),
    Metric(
        "exposed_share",
        "Communication not hidden, %",
        _STEP,
        f"{_SPANS}: messages under way while the rank did nothing else",
        scale=100,
    ),
    Metric("recompute_share", "Recomputation, %", _STEP, f"{_SPANS}: forward run again inside a backward", scale=100),
    Metric("loss_scale", "Loss scale", "loss scale", only="fp16"),
    Metric("skipped_steps", "Steps skipped so far", "steps", only="fp16"),
)


def metrics_of(run: Run) -> list[Metric]:
    """Those of `run`, in the order of the page, in the words of what its speed counts and its devices do."""
    train, target = run.spec.get("train", {}), target_of(run)
    found = [metric for metric in METRICS if metric.only in ("", train.get("precision"))]
    return [_on_cpu(m) if m.name == "tflops" and train.get("device") != "cuda" else _counting(m, target) for m in found]


def _on_cpu(metric: Metric) -> Metric:
    """A core does thousandths of what a GPU does."""
    return replace(metric, title=metric.title.replace("T", "G", 1), unit="GFLOP/s", scale=1e3)


def _counting(metric: Metric, target: str) -> Metric:
    """With `images` in place of tokens, where that is what the speed counts."""

    def said(text: str) -> str:
        return text.replace("tokens", target).replace("Tokens", target.capitalize())

    return replace(metric, title=said(metric.title), unit=said(metric.unit), measured=said(metric.measured))
