"""The contexts of the tabs of a run's page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from dashboard.runs import selectors
from dashboard.runs.form import spec_table
from dashboard.runs.layout import picture
from dashboard.runs.layout.hosts import Hosts
from dashboard.runs.memory_limits import memory_limit
from dashboard.runs.models import Run, State
from dashboard.runs.page import (
    accounts,
    charts,
    checkpoints,
    memory,
    metric_charts,
    operators,
    snapshot,
    timeline,
    whatif,
)
from dashboard.runs.page.ran_with import ran_with
from dashboard.runs.reads import read_sentence
from dashboard.runs.tracing import profiles
from dashboard.runs.waiting.spreading import devices_of, hosts_of
from parallel_core.analysis.host_drift import contention_text
from parallel_core.analysis.quantities import (
    bytes_text,
    percent_text,
    plural_text,
    ratio_text,
    seconds_text,
    step_text,
)
from parallel_core.faults import trained
from parallel_core.layout import Layout
from parallel_core.observe.progress import STARTING
from parallel_core.schedule.text import spoken
from parallel_core.spec import RunSpec

TABS = {
    "timeline": "Timeline",
    "accounts": "Accounts",
    "whatif": "What if",
    "operators": "Operators",
    "memory": "Memory",
    "metrics": "Metrics",
    "ranks": "Ranks",
    "layout": "Layout",
    "logs": "Logs",
    "spec": "Spec",
    "events": "Events",
}
OF_TEXT = {key: TABS[key] for key in ("ranks", "logs", "spec", "events")}
"""The tabs of a run that generates text: it has no steps."""
LOG_TAIL = 64 * 1024


class _Asked(NamedTuple):
    """What a tab is shown for. `rank` is used by logs, `step` by tabs that show one traced step, `given` (the query) by
    tabs with parameters of their own."""

    run: Run
    rank: int
    step: int | None
    given: Mapping[str, Any]


def tab_context(tab: str, run: Run, rank: int, step: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the context of the template of `tab`, a key of TABS; the other arguments are those of `_Asked`."""
    return _CONTEXTS[tab](_Asked(run, rank, step, given))


def _memory(asked: _Asked) -> dict[str, Any]:
    run = asked.run
    limit = memory_limit(run, selectors.attempt_of(run))
    return {"memory": charts.memory_rows(run, limit), "limit": bytes_text(limit) if limit else ""} | {
        "over_time": memory.over_time(run),
        **snapshot.context(run, asked.given),
    }


def _ranks(asked: _Asked) -> dict[str, Any]:
    run = asked.run
    sentences = {"equal": equal_sentence(run), "read": read_sentence(run)}
    sentences |= {"pace": pace_sentence(run), "paces": run.summary.get("references")}
    attempt = selectors.attempt_of(run)
    sentences["ran_with"] = ran_with([attempt]) if attempt else ""
    rows = rank_rows(run)
    seen_in = run.ended_at is None or any(row["progress"].get("op") for row in rows)
    steps = not run.task or any(row["phase"] or row["progress"].get("step", -1) >= 0 for row in rows)
    return {"profiles": profiles.listed(run), "ranks": rows, "seen_in": seen_in, "steps": steps, **sentences}


def _spec(asked: _Asked) -> dict[str, Any]:
    spec = asked.run.spec
    return {"spec_groups": spec_table.groups(spec), "spec_text": json.dumps(spec, indent=2)}


def _events(asked: _Asked) -> dict[str, Any]:
    events = asked.run.events.select_related("actor", "attempt")
    attempts = asked.run.attempts.order_by("number")
    return {"events": events, "attempts": attempts, **checkpoints.context(asked.run)}


def _layout_of_rank(asked: _Asked) -> dict[str, Any]:
    return _layout(asked.run, picture.asked_rank(asked.given.get("rank")), asked.given.get("split", ""))


_CONTEXTS: dict[str, Callable[[_Asked], dict[str, Any]]] = {
    "timeline": lambda asked: timeline.context(asked.run, asked.step),
    "accounts": lambda asked: accounts.context(asked.run, asked.step),
    "whatif": lambda asked: whatif.context(asked.run, asked.step, asked.given),
    "operators": lambda asked: operators.context(asked.run, asked.step, asked.given),
    "memory": _memory,
    "metrics": lambda asked: {"charts": metric_charts.metrics(asked.run)},
    "ranks": _ranks,
    "layout": _layout_of_rank,
    "logs": lambda asked: _logs(asked.run, asked.rank),
    "spec": _spec,
    "events": _events,
}
"""Tab -> the function that makes the context of its template."""


def _layout(run: Run, rank: int, how: str) -> dict[str, Any]:
    """The picture of what is trained, and the parts of the query before and after a rank, or a split, that choose
    another one.

    `layout` is None if the spec was stored by another version.
    """
    try:
        spec = trained(RunSpec.stored(run.spec))
    except ValidationError:
        return {"layout": None}
    found = picture.picture(spec, rank, how, Hosts(hosts_of(selectors.attempt_of(run))))
    return {
        "layout": found,
        "ranks_at": ("?tab=layout&rank=", f"{found.query}#details"),
        "splits_at": (f"?tab=layout&rank={found.rank}&split=", "#details"),
    }


def equal_sentence(run: Run) -> str:
    """How often the ranks of an ended run were compared, what that cost, and the hash of their parameters."""
    found, timed = run.summary.get("fingerprint"), run.summary.get("timed")
    if not found or not timed:
        return ""
    attempt = selectors.attempt_of(run)
    began = (attempt.begins.get("step") or 0) if attempt else 0
    covered = found["step"] + 1 - began  # by this attempt's checks
    took = covered * timed["median"]
    cost = percent_text(found["checks"] * found["seconds"] / took) if took > 0 else "none"
    since = f" since {step_text(began)}" if began else ""
    each = "" if found["checks"] == 1 else " each"
    times = f"{plural_text(found['checks'], 'check')}{since}, {seconds_text(found['seconds'])}{each}"
    equal = _compared(trained(RunSpec.stored(run.spec)))
    return (
        f"{times} ({cost} of the steps): {equal}. Parameters after {step_text(found['step'])}: {found['parameters']}."
    )


def _compared(spec: RunSpec) -> str:
    """What the checks of a run have compared: see `engine.fingerprint`, under ZeRO-3 replicas hold nothing twice."""
    split = spec.parallel
    if split.world == 1:
        return "one rank, which has no replica"
    if max(split.copies) > 1 and split.zero < 3:
        return "all replicas equal bit for bit"
    layout = Layout.of(spec)
    tied_apart = spec.model.tied and layout.place(0) != layout.place(layout.stages - 1)
    if layout.tp > 1 or tied_apart:
        return "what several ranks hold is equal bit for bit, and there are no replicas to compare"
    why = " under ZeRO-3" if split.zero == 3 else ""
    return f"no two ranks hold the same parameters{why}, so none were compared"


WORK = (
    "Reference work: a small computation, the same on every rank, between the timed steps. "
    "What it took says how fast the device was."
)


def pace_sentence(run: Run) -> str:
    """How much the devices of an ended run differed in speed, and how much they slowed each other down."""
    found, company = run.summary.get("references"), run.summary.get("company")
    if not found or min(found) <= 0:
        return ""
    if len(found) == 1:
        return WORK
    slowest = max(range(len(found)), key=found.__getitem__)
    longer = found[slowest] / min(found)
    apart = f" It took rank {slowest} longest, {ratio_text(longer)} as long as the quickest."
    return WORK + apart + (f" {contention_text(run.devices, company)}" if company else "")


def rank_rows(run: Run) -> list[dict[str, Any]]:
    """One row for each rank of the newest attempt: what it is, where it is, and how it ended."""
    attempt = selectors.attempt_of(run)
    if attempt is None:
        return []
    infos = selectors.ranks(run)
    exits, where, indices = attempt.report.get("exits") or {}, hosts_of(attempt), devices_of(attempt)
    took = run.summary.get("references") or []
    return [
        {
            "rank": rank,
            "hello": infos[rank].hello if rank in infos else {},
            "host": where[rank] if where else "",
            "device": indices[rank] if rank < len(indices) else None,
            "phase": infos[rank].phase if rank in infos else "",
            "progress": _place(
                attempt.progress.get(str(rank)) or {},
                run,
                ended_well=exits.get(str(rank)) == 0,
                began=rank in infos and bool(infos[rank].phase),
            ),
            "exit": _exit(exits.get(str(rank))),
            "took": took[rank] if rank < len(took) else None,
        }
        for rank in range(run.devices)
    ]


def _place(seen: Mapping[str, Any], run: Run, ended_well: bool, began: bool) -> dict[str, Any]:
    """Where the newest heartbeat saw the rank, with its operation in words.

    A rank that ended well is in no operation and has done every step of the run: the heartbeat was before its end. One
    that `began` a phase is no longer `starting`, as between two heartbeats of a short run.
    """
    if began and seen.get("op") == STARTING:
        seen = {**seen, "op": ""}
    if ended_well and seen:
        return {**seen, "op": "", "step": seen.get("step", -1) if run.step is None else run.step}
    return {**seen, "op": spoken(seen["op"])} if seen.get("op") else dict(seen)


def _exit(code: int | None) -> str:
    if code is None:
        return ""
    return f"killed by signal {-code}" if code < 0 else "ended well" if code == 0 else f"exit code {code}"


def _logs(run: Run, rank: int) -> dict[str, Any]:
    part = selectors.log(run, rank, start=-LOG_TAIL)
    return {"log": part, "log_rank": rank, "log_ranks": range(run.devices), "log_empty": _why_empty(run)}


def _why_empty(run: Run) -> str:
    """Why there is no log yet, or none at all."""
    if run.state == State.QUEUED:
        return f"No process has started. {selectors.waiting(run).sentence}"
    if run.state == State.STARTING:
        return "The processes are starting; the first line appears here on its own."
    if run.ended_at is None:
        return "This rank has written nothing so far; its lines appear here by themselves."
    if not run.attempts.exists():
        return "It ended before any process started, so there is no log."
    return "This rank wrote nothing to its log."
