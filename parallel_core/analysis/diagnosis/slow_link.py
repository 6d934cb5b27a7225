"""Messages between pipeline stages take so long that ranks wait for them.

Threshold: free messages would save 8 % of the step. With fast enough links a pipeline hides all messages except those
of warm-up and drain (2 to 3 % of a step in healthy runs here).
"""

from __future__ import annotations

import numpy as np

from parallel_core.analysis import waits
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import bytes_text, listed_text, ns_text, percent_text
from parallel_core.plan.units import boundary_elements
from parallel_core.schedule.ir import RECVS
from parallel_core.simulate.replay import FREE, Change

MATTERS = 0.08
CALL_NS = 300_000
"""What a message between two cores takes however small it is (docs/numbers.md: 0.33 to 0.42 ms, with both copies)."""
COPIED = 2.0
"""Bytes a nanosecond that gloo moves between two cores, at least."""


def check(case: Case) -> Finding | None:
    if case.spec.parallel.pp == 1 or case.typical is None or case.share("exposed_p2p") < MATTERS / 2:
        return None
    saved = case.saved(Change(messages=FREE))
    if saved < MATTERS * case.typical.step:
        return None
    sender, receiver, took, size = _slowest(case)
    speed = f", {bytes_text(size / took * 1e9)}/s" if took else ""
    hosts = case.apart(sender, receiver)
    speed += f", between {listed_text(hosts)}" if hosts else ""
    return Finding(
        "slow_link",
        f"{ns_text(saved)} of a step, {percent_text(saved / case.typical.step)}, is waiting for messages.",
        f"The link from rank {sender} to rank {receiver} is slowest: {ns_text(took)} for {bytes_text(size)}{speed}.",
        _change(case, bool(hosts), not hosts and _as_short_as_can_be(case, took, size)),
        effect_ns=saved,
        tab="whatif",
        rank=receiver,
    )


def _as_short_as_can_be(case: Case, took: int, size: int) -> bool:
    """Whether a message between cores of one host took no longer than any such message of its size."""
    return case.spec.train.device == "cpu" and took <= CALL_NS + size / COPIED


def _change(case: Case, apart: bool, shortest: bool) -> str:
    """What to do about a link, of two hosts if `apart`: only what this run can do. A GPT has as much to send at every
    cut. Fewer messages are named where they would save time if each took as long as now. No link is faster than that
    of the `shortest` messages: they take long beside little work."""
    fewer = case.spec.parallel.micro_batches // 2
    saves = fewer and case.saved(Change(micro_batches=fewer, same_messages=True)) >= MATTERS * case.step_ns
    if shortest:
        less = f"Send fewer: lower parallel.micro_batches to {fewer}" if saves else "Raise train.global_batch"
        return f"{less}, so that more is computed between two messages: no link between cores is faster."
    faster = "Place these two ranks on one host or a faster link" if apart else "Give these two ranks a faster link"
    crossing, units = boundary_elements(case.spec), case.layout.stage_units
    if min(crossing[1:], default=0) < max(crossing[own[0]] for own in units[1:]):
        faster += ", or cut the model where less crosses over"
    if saves:
        return f"{faster}. If larger messages take as long, lower parallel.micro_batches to {fewer}."
    return f"{faster}."


def _slowest(case: Case) -> tuple[int, int, int, int]:
    """(sender, receiver, ns of a message from its send to its arrival, its bytes) of the slowest link; lower quartiles
    over the messages of each link."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step in case.traced:
        rows = waits.ordered(step)
        sends = waits.sends(rows, case.layout)
        for rank, own in rows.items():
            causes, receives = waits.received(rank, own, case.layout, sends), waits.of_kinds(own, *RECVS)
            took = (receives["end"] - causes.at).tolist()
            for sender, ns, size in zip(causes.ranks.tolist(), took, receives["bytes"].tolist(), strict=True):
                if sender >= 0:
                    found.setdefault((sender, rank), []).append((ns, size))
    # A late receiver makes a message look slow: the fastest quarter was waited for.
    usual = {link: np.quantile(np.array(times), 0.25, axis=0).tolist() for link, times in found.items()}
    (sender, receiver), (took, size) = max(usual.items(), key=lambda item: item[1][0])
    return sender, receiver, int(took), int(size)
