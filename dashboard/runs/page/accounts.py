"""The Accounts tab: what each rank's step consists of, to the nanosecond; what the speedup lost; the critical path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboard.charts import losses as losses_chart
from dashboard.charts.chart import Chart
from dashboard.runs import selectors
from dashboard.runs.models import Run
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.traces import Trace
from parallel_core.analysis.breakdown import COMPONENTS, Account
from parallel_core.analysis.critical import LINK, critical_path
from parallel_core.analysis.losses import losses
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.analysis.quantities import ns_text, percent_text, plural_text, step_text
from parallel_core.analysis.rows import durations
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS

SHORT = COMPONENT_NAMES | {"exposed_p2p": "messages not hidden"}
BESIDE = {"warmup": "bubble: warm-up", "steady": "bubble: steady", "drain": "bubble: drain", "overlapped": "hidden"}
"""Fields of Account that are not part of the sum -> the heads of their columns."""


def context(run: Run, step: int | None) -> dict[str, Any]:
    """The tab's context; without accounts if no traced step has arrived."""
    trace = traces.trace(run, step)
    if trace is None:
        return {"accounts": [], "dropped": selectors.dropped_text(run, step)}
    path = critical_path(trace.spans, trace.layout) if trace.trained.parallel.flushes else np.empty(0, LINK)
    return table(trace.accounts) | {
        "account_step": trace.step,
        "path": path_rows(path),
        "path_sentence": path_sentence(path),
        "no_path": "" if trace.trained.parallel.flushes else traces.STREAMED,
        "losses": _losses(traces.of_speedup(trace, step)),
        "no_losses": _why_no_losses(trace),
        "partial": "" if trace.whole else f"{trace.kept} of {trace.total} spans were kept: sums cover those alone.",
    }


def table(accounts: Mapping[int, Account]) -> dict[str, Any]:
    """The context of `runs/accounts_table.html`."""
    return {
        "accounts": [_row(rank, account) for rank, account in sorted(accounts.items())],
        "account_columns": [SHORT[name] for name in COMPONENTS],
        "beside_columns": list(BESIDE.values()),
    }


def _row(rank: int, account: Account) -> dict[str, Any]:
    parts = account.parts
    return {
        "rank": rank,
        "total": ns_text(parts.total, zeros=True),
        "parts": [_ns(ns) for ns in parts.as_dict().values()],
        "beside": [_ns(getattr(account, name)) for name in BESIDE],
    }


def _ns(ns: int) -> str:
    return ns_text(ns, zeros=True) if ns else "0"


def path_sentence(path: np.ndarray) -> str:
    """Describes the critical path (LINK rows) in a sentence."""
    if not len(path):
        return ""
    took, ranks = durations(path), path["rank"]
    total = int(took.sum())
    turns = int((ranks[1:] != ranks[:-1]).sum())
    rank, share = max(
        ((int(r), int(took[ranks == r].sum()) / total) for r in np.unique(ranks)),
        key=lambda pair: pair[1],
    )
    changes = f"changes ranks {turns} time{'' if turns == 1 else 's'}"
    within = plural_text(len(path), "operation")
    return f"{percent_text(share)} of the critical path is on rank {rank}; it {changes} in {within}."


def path_rows(path: np.ndarray) -> list[tuple[str, str, str]]:
    """(what, time, share) by kind, the longest first."""
    took, kinds = durations(path), path["kind"]
    total = int(took.sum())
    found = [(int(took[kinds == kind].sum()), Kind(int(kind))) for kind in np.unique(kinds)]
    found.sort(reverse=True)
    return [(WORDS.get(kind, kind.name), ns_text(ns, zeros=True), percent_text(ns / total)) for ns, kind in found]


def _losses(trace: Trace) -> Chart | None:
    base = traces.baseline(trace.run)
    if base is None or trace.layout.world == 1:
        return None
    other, single = base
    found = losses(single, [account.parts for account in trace.accounts.values()])
    source = f"measured, {step_text(trace.step)} against the traced step of {other.label or other.name}"
    return losses_chart.chart(found, source)


def _why_no_losses(trace: Trace) -> str:
    if trace.layout.world == 1:
        return "One device has nothing to lose to splitting."
    missing = "its study has none that succeeded and was traced" if trace.run.study_id else "this run is in no study"
    against = "a run on one device of the same study and kind of device, with the same model, batch and precision"
    return f"What the speedup lost is shown against {against}: {missing}."
