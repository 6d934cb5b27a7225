"""Hypothesis strategies for small valid specs, shared by the tests of the NumPy core."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from parallel_core.schedule.round_robin import least_micro_batches
from parallel_core.schedule.traits import CUSTOM, TRAITS, flushes
from parallel_core.spec import RunSpec


@st.composite
def run_specs(draw: st.DrawFn, max_degree: int = 4, max_micro_batches: int = 6, in_turn: bool = False) -> RunSpec:
    """Any combination of degrees, schedule, chunks, micro-batches, recomputation, precision and cuts that the rules
    allow. `in_turn` adds stages with different numbers of replicas and of tensor ranks.
    """
    layers = draw(st.integers(1, 5))
    units = 2 * layers + 2
    pp, schedule, chunks = draw(_pipelines(min(max_degree, units), units))
    shares = draw(_shares(schedule, pp, max_degree, max_micro_batches, in_turn))
    dp, tp = shares["dp"], shares["tp"]
    asynchronous = not flushes(schedule)
    tied = not (asynchronous or shares["replicas"] or shares["widths"]) and draw(st.booleans())
    parallel = {
        **shares,
        "pp": pp,
        "cuts": draw(_cuts(pp * (chunks or 1), units)),
        "schedule": schedule,
        "chunks": chunks,
        "zero": draw(st.integers(0, 2 if pp > 1 else 3)) if dp > 1 and not asynchronous else 0,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        **draw(_tensor_ways(tp)),
    }
    train = {
        "global_batch": dp * shares["micro_batches"] * draw(st.integers(1, 3)),
        "precision": draw(st.sampled_from(["fp32", "fp64", "bf16", "fp16"])),
        "clip": "stage" if asynchronous else "global",
    }
    model = {"layers": layers, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "tied": tied}
    return RunSpec.model_validate({"model": model, "parallel": parallel, "train": train})


@st.composite
def _shares(draw: st.DrawFn, schedule: str, pp: int, most: int, most_micro_batches: int, in_turn: bool) -> Any:
    """How a batch and its layers are divided: dp or replicas, tp or widths, and as many micro-batches as these and the
    schedule require.
    """
    least = 2 * pp if TRAITS[schedule].pairs and pp > 1 else 1
    if TRAITS[schedule].sync == "2bw":
        least = pp - 1
    replicas = draw(_replicas(schedule, pp, most)) if in_turn else None
    if replicas is not None:
        least = least_micro_batches(schedule, replicas)
    widths = draw(_widths(pp)) if in_turn else None
    return {
        "replicas": replicas,
        "widths": widths,
        "tp": 1 if widths else draw(st.sampled_from([1, 2, 4])),
        "dp": 1 if replicas else draw(st.integers(1, most)),
        "micro_batches": draw(st.integers(least, max(least, most_micro_batches))),
    }


def _cuts(stages: int, units: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """Cuts between stages of at least one unit each; None: even ones."""
    cut_sets = st.sets(st.integers(1, units - 1), min_size=stages - 1, max_size=stages - 1)
    return st.none() | cut_sets.map(lambda found: tuple(sorted(found)))


def _tensor_ways(tp: int) -> st.SearchStrategy[dict[str, object]]:
    """How a tensor group of `tp` ranks divides layers: in pairs, with or without sequence parallelism, or by
    columns.
    """
    ways = [("pairs", False), ("pairs", True), ("columns", False)] if tp > 1 else [("pairs", False)]
    return st.sampled_from([{"tensor_split": split, "sequence": sequence} for split, sequence in ways])


def _replicas(schedule: str, pp: int, most: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """Replicas of each stage; None: equally many for all."""
    if pp == 1 or not TRAITS[schedule].round_robin:
        return st.none()
    return st.none() | st.tuples(*[st.integers(1, most)] * pp)


def _widths(pp: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """Tensor ranks of each stage; None: equally many for all."""
    return st.none() if pp == 1 else st.none() | st.tuples(*[st.sampled_from((1, 2, 4))] * pp)


@st.composite
def _pipelines(draw: st.DrawFn, most_places: int, units: int) -> tuple[int, str, int | None]:
    """Pipeline ranks, schedule (custom ones are tested separately) and chunks (None without a pipeline) such that no
    stage is empty.
    """
    pp = draw(st.integers(1, most_places))
    known = {name: traits for name, traits in TRAITS.items() if name != CUSTOM}
    if pp == 1:
        return pp, draw(st.sampled_from([name for name in known if flushes(name)])), None
    name = draw(st.sampled_from([name for name, traits in known.items() if pp * traits.least <= units]))
    return pp, name, draw(st.integers(TRAITS[name].least, min(TRAITS[name].most or 4, units // pp)))
