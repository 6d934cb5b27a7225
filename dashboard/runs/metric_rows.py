"""The series that a run's page draws: quantity, unit, and where each is measured."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.runs.models import Run
from dashboard.runs.page_verdict import target_of


@dataclass(frozen=True)
class Metric:
    """`unit` is the axis; `measured` stands under the chart; `only` names the one precision that has it."""

    name: str
    unit: str
    measured: str = "measured"
    only: str = ""


_SPANS = "measured in every traced step from the spans of all ranks, mean over them"
METRICS = (
    Metric("loss", "loss"),
    Metric("step_time", "seconds a step", "measured on rank 0, end of one step to end of the next"),
    Metric("tokens_per_s", "tokens/s", "measured: tokens of the global batch over the step's wall time"),
    Metric("grad_norm", "gradient norm"),
    Metric(
        "mfu",
        "model FLOPs utilisation",
        "measured: FLOPs the model needs, over the step's wall time and the devices' peak (Chowdhery et al. 2022, "
        "appendix B)",
    ),
    Metric("hfu", "hardware FLOPs utilisation", "measured as MFU, with the FLOPs of recomputation counted too"),
    Metric("tflops", "TFLOP/s a device", "measured: FLOPs the model needs, over the step's wall time and the devices"),
    Metric("bubble_share", "bubble, share of a step", f"{_SPANS}: waiting before the other side had begun to send"),
    Metric(
        "exposed_share",
        "communication not hidden, share of a step",
        f"{_SPANS}: messages under way while the rank did nothing else",
    ),
    Metric("recompute_share", "recomputation, share of a step", f"{_SPANS}: forward run again inside a backward"),
    Metric("loss_scale", "loss scale", only="fp16"),
    Metric("skipped_steps", "steps skipped so far", only="fp16"),
)


def metrics_of(run: Run) -> list[Metric]:
    """Those of `run`, in the order of the page, in the words of what its speed counts."""
    target, precision = target_of(run), run.spec.get("train", {}).get("precision")
    return [
        Metric(m.name, m.unit.replace("tokens", target), m.measured.replace("tokens", target), m.only)
        for m in METRICS
        if m.only in ("", precision)
    ]
