"""Waterfall from n times one device down to the measured speedup, one bar for each loss."""

from __future__ import annotations

from dashboard.charts.chart import Chart
from dashboard.charts.waterfall import layout_of, stair
from parallel_core.analysis.losses import NAMES, Losses
from parallel_core.analysis.quantities import minus_text, ns_text, ratio_text

WORDS = {
    "imbalance": "imbalance",
    "bubble": "bubble",
    "communication": "communication not hidden",
    "recompute": "recomputation",
    "smaller_kernels": "slower compute",
    "other": "optimizer, data, host",
}


def chart(found: Losses, source: str) -> Chart:
    """`found` is in ns of device time; the losses are drawn as parts of n."""
    steps = [(WORDS[name], -found.in_speedup(name)) for name in NAMES]
    words = [f"{found.devices} devices", *(word for word, _ in steps), "measured"]
    texts = [
        ratio_text(found.devices),
        *(minus_text(f"{change:+.2f}") if abs(change) >= 0.005 else "0" for _, change in steps),
        ratio_text(found.speedup),
    ]
    values = [found.devices, *(change for _, change in steps), found.speedup]
    traces = stair(values, texts, words, rising="accent", falling="bad")
    layout = layout_of(values, words, "times as fast as one device")
    rows = [[WORDS[name], minus_text(f"{found.in_speedup(name):+.3f}"), _ns(getattr(found, name))] for name in NAMES]
    rows.append(["measured", f"{found.speedup:.3f}", ns_text(found.total, zeros=True)])
    subtitle = (
        "What keeps the speedup below the number of devices, in multiples of one device; the parts add up; slower "
        "compute = the same work took longer than on one device: in smaller operations, or as others used the devices"
    )
    figure = {"data": traces, "layout": layout}
    return Chart("losses", title(found), subtitle, source, figure, ("loss", "of n", "device time"), rows)


def title(found: Losses) -> str:
    worst = max(NAMES, key=lambda name: getattr(found, name))
    lost = found.in_speedup(worst)
    if lost < 0.005:
        return f"{ratio_text(found.speedup)} of one device on {found.devices}: nothing is lost."
    return (
        f"{ratio_text(found.speedup)} of one device on {found.devices}: "
        f"the largest part of the rest, {lost:.2f}, goes to {WORDS[worst]}."
    )


def _ns(ns: int) -> str:
    return ns_text(ns, zeros=True) if ns else "0"
