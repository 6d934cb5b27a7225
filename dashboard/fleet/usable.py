"""How many devices of the fleet a run could have if nothing else ran, and why it could not have the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.fleet.worker_views import WorkerView
from dashboard.runs.waiting.spreading import state_of
from parallel_core.analysis.quantities import plural_text


@dataclass(frozen=True)
class Usable:
    """Numbers of devices: `busy` with a run or a profile, and all that are busy or could be given to a run. `others`:
    why the rest could not, a sentence for each worker and reason."""

    busy: int
    devices: int
    others: list[str]

    @classmethod
    def of(cls, views: Sequence[WorkerView]) -> Usable:
        reporting = tuple(view.worker for view in views if not view.silent)
        fleet = FleetSnapshot(tuple(view.worker for view in views), reporting)
        busy = sum(device.run is not None for view in views for device in view.every)
        usable, others = 0, list[str]()
        for view in views:
            state = state_of(view.worker, fleet)
            free = 0 if state else sum(device.run is None for device in view.devices)
            busy, usable = (busy + free, usable) if view.profiling else (busy, usable + free)
            others += _others(view, state)
        return cls(busy, busy + usable, others)


def _others(view: WorkerView, state: str) -> Iterator[str]:
    """Why its devices without a run are given none; `state`: why none of them is, '' if some are."""
    name = view.worker.name
    free = [device for device in view.every if device.run is None]
    if state and free:
        takes = "takes" if len(free) == 1 else "take"
        why = "has left" if view.silent and view.worker.leaving else f"is {state}"
        yield f"{plural_text(len(free), 'device')} of {name} {takes} no run: it {why}."
    elif not state:
        for why, count in Counter(device.why for device in free if device.why).items():
            yield f"{plural_text(count, 'device')} of {name} cannot be used. {why}"
