"""Steps simulated from a profile, kept by content: a form shows what a study will take, and queueing it, or a run that
differs in nothing that a step's time depends on, does not simulate it once more."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from django.core.cache import cache

from dashboard.ledger.models import Profile
from parallel_core.plan.alike import of_step
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cost_requirements import CannotPredict, NeverTimed
from parallel_core.simulate.network import Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

KEPT_S = 24 * 3600


@dataclass(frozen=True)
class SimulatedStep:
    """`seconds` of a step and their `likely` range by errors measured elsewhere, or `why_not`; `untimed`: the hosts
    whose links were never timed."""

    seconds: float | None = None
    likely: tuple[float, float] | None = None
    why_not: str = ""
    untimed: tuple[str, str] | None = None


def simulated(spec: RunSpec, profile: Profile, place: Where) -> SimulatedStep:
    """The step of `spec` at `place` by the costs of `profile`."""
    links = [table.model_dump_json() for table in place.between]
    parts = of_step(spec).model_dump_json(), profile.pk, profile.done_at, list(place.hosts), links
    key = f"likely-step:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
    found: SimulatedStep | None = cache.get(key)
    if found is None:
        found = _simulated(spec, profile, place)
        cache.set(key, found, KEPT_S)
    return found


def _simulated(spec: RunSpec, profile: Profile, place: Where) -> SimulatedStep:
    try:
        step = predict_step(spec, table_of(profile.pk, profile.done_at), where=place)
    except NeverTimed as error:
        return SimulatedStep(why_not=str(error), untimed=error.pair)
    except CannotPredict as error:
        return SimulatedStep(why_not=str(error))
    except ValueError:  # programs that the simulator does not know
        return SimulatedStep(why_not="it cannot be simulated")
    return SimulatedStep(step.seconds, step.likely)


@lru_cache(maxsize=16)
def table_of(pk: int, done_at: datetime | None) -> CostTable:
    """The table of a finished profile; cached because it never changes again."""
    return CostTable.model_validate(Profile.objects.values_list("table", flat=True).get(pk=pk))
