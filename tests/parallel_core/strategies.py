"""Hypothesis strategies for small valid specs, shared by the tests of the NumPy core."""

from __future__ import annotations

from hypothesis import strategies as st

from parallel_core.spec import RunSpec


@st.composite
def run_specs(draw: st.DrawFn, max_degree: int = 4, max_micro_batches: int = 6) -> RunSpec:
    """Any combination of degrees, schedule, micro-batches, recomputation, precision and cuts that the rules allow."""
    layers, tp = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.integers(1, min(max_degree, 2 * layers + 2)))
    dp, m = draw(st.integers(1, max_degree)), draw(st.integers(1, max_micro_batches))
    cut_sets = st.sets(st.integers(1, 2 * layers + 1), min_size=pp - 1, max_size=pp - 1)
    cuts = draw(st.none() | cut_sets.map(lambda found: tuple(sorted(found))))
    return RunSpec.model_validate(
        {
            "model": {"layers": layers, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "tied": draw(st.booleans())},
            "parallel": {
                "dp": dp,
                "tp": tp,
                "pp": pp,
                "micro_batches": m,
                "cuts": cuts,
                "schedule": draw(st.sampled_from(["naive", "gpipe", "1f1b"])),
                "recompute": draw(st.sampled_from(["none", "full"])),
            },
            "train": {
                "global_batch": dp * m * draw(st.integers(1, 3)),
                "precision": draw(st.sampled_from(["fp32", "fp64"])),
            },
        }
    )
