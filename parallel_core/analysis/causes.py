"""Why a run is fast or slow: what differs most between its traced step and that of the baseline.

The largest part of a step need not be what made it long: the baseline's may have one as large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.analysis.breakdown import COMPONENTS
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.analysis.quantities import ns_text, one_of, percent_text, plural_text, ratio_text

if TYPE_CHECKING:
    from parallel_core.analysis.sentences import Result

LOSSES = tuple(name for name in COMPONENTS if name != "compute")
"""The components of a step besides compute."""


def why_fast(result: Result, baseline: Result) -> str:
    """A clause on why a run is faster than the baseline, if it was traced: what its devices do most of the time; on no
    more devices than those of the baseline, what it saves. '' if not known."""
    if result.breakdown is None or not result.breakdown.total:
        return ""
    grown = _grown(result, baseline)
    if grown and result.devices <= baseline.devices:
        name = min(grown, key=grown.__getitem__)
        return f"; it saves {ns_text(-grown[name] * 1e9)} of {COMPONENT_NAMES[name]}"
    share = result.breakdown.share("compute")
    if result.devices == 1:
        return f"; {percent_text(share)} of its step is compute"
    return f"; {share * result.devices:.1f} of its {result.devices} devices compute on average"


def why_slow(result: Result, baseline: Result) -> str:
    """A clause on what slowed a run: what was broken in it on purpose; other processes, if they took more of it than of
    the baseline, and so much that it may be as slow for that; fewer devices; else the part of its traced step that grew
    most. '' if not known."""
    if result.slowed_by and not baseline.slowed_by:
        return f"; it was broken on purpose: {result.slowed_by}"
    explained = result.step.median * (1 - result.taken) <= baseline.step.median
    if result.taken - baseline.taken > DISTURBED_ABOVE and explained:
        return f"; other processes took {percent_text(result.taken)} of {one_of(result.devices)}"
    if result.devices < baseline.devices:
        return f"; it has {plural_text(result.devices, 'device')} instead of {baseline.devices}"
    if result.breakdown is None or not result.breakdown.total:
        return ""
    grown = _grown(result, baseline)
    name = max(grown, key=grown.__getitem__) if grown else max(LOSSES, key=result.breakdown.share)
    if name == "compute":
        times = _seconds(result, name) / _seconds(baseline, name)
        return f"; its compute takes {ratio_text(times)} as long as that of {baseline.label}"
    return f"; {percent_text(result.breakdown.share(name))} of its step is {COMPONENT_NAMES[name]}"


def _grown(result: Result, baseline: Result) -> dict[str, float]:
    """By component: the seconds of a median step that it takes longer than in the baseline; {} if one of the two was
    not traced, or does not compute."""
    parts = result.breakdown, baseline.breakdown
    if any(one is None or not one.compute for one in parts):
        return {}
    return {name: _seconds(result, name) - _seconds(baseline, name) for name in COMPONENTS}


def _seconds(result: Result, component: str) -> float:
    """Of the median step, which may be scaled to another batch than that of the traced one."""
    return result.step.median * (result.breakdown.share(component) if result.breakdown else 0.0)
