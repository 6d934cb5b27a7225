"""Why a run is fastest or slowest: what differs from the baseline, and nothing where no difference is to explain."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.analysis import sentences
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Stats


def stats(median: float) -> Stats:
    return Stats(median, median * 0.99, median * 1.01, median, 40)


SINGLE = Result("Single", stats(0.1), breakdown=Breakdown(compute=95, optimizer=5))
FP16 = Result("FP16", stats(0.2), breakdown=Breakdown(compute=196, optimizer=4))
PLAIN = Result("1F1B", stats(0.08), breakdown=Breakdown(compute=60, bubble=20), devices=2)
NAIVE = Result("Naive", stats(0.12), breakdown=Breakdown(compute=50, bubble=70), devices=2)


def test_a_slower_computation_is_the_reason_where_it_is_what_grew() -> None:
    """Not the optimizer, which is the largest of the other parts, but takes no longer than in the baseline."""
    said = sentences.slowest([SINGLE, FP16], SINGLE)
    assert said == "FP16 is slowest: 0.50x; its compute takes 2.06x as long as that of Single."


def test_the_part_that_grew_most_is_the_reason() -> None:
    """The bubble is the larger part of its step, but the baseline's has one as large."""
    heavy = Breakdown(compute=50, bubble=70, exposed_collective=60)
    said = sentences.slowest([NAIVE, replace(PLAIN, step=stats(0.18), breakdown=heavy)], NAIVE)
    assert said.endswith("; 33 % of its step is collectives not hidden.")


def test_fewer_devices_are_a_reason() -> None:
    said = sentences.slowest([PLAIN, SINGLE], PLAIN)
    assert said == "Single is slowest: 0.80x; it has 1 device instead of 2."


def test_others_are_blamed_only_where_they_took_more_than_of_the_baseline() -> None:
    taken = replace(FP16, taken=0.52)
    assert sentences.slowest([SINGLE, taken], SINGLE).endswith("; other processes took 52 % of its device.")
    little = replace(FP16, taken=0.42)
    told = sentences.slowest([SINGLE, little], SINGLE)
    assert told.endswith(" of Single."), "with 42 % less of a device a step takes 1.7 times as long at most, not twice"
    base = replace(SINGLE, taken=0.51)
    assert sentences.slowest([base, taken], base).endswith("; its compute takes 2.06x as long as that of Single.")


def test_a_lead_on_as_many_devices_is_explained_by_what_it_saves() -> None:
    said = sentences.fastest([NAIVE, PLAIN], NAIVE)
    assert said.endswith("; it saves 50 ms of bubble.")
    assert sentences.fastest([FP16, SINGLE], FP16).endswith("; it saves 101 ms of compute.")
    assert sentences.fastest([SINGLE, PLAIN], SINGLE).endswith("; 1.5 of its 2 devices compute on average.")


def test_a_difference_within_noise_has_no_reason() -> None:
    close = replace(FP16, step=stats(0.101))
    assert sentences.slowest([SINGLE, close], SINGLE) == "FP16 has the slowest median: 0.99x, within noise."
    naive = replace(NAIVE, step=stats(0.101))
    told = sentences.slowest([SINGLE, naive], SINGLE)
    assert told == "Naive has the slowest median: 0.99x, within noise; 58 % of its step is bubble.", (
        "it has two devices"
    )


def test_without_a_step_of_the_baseline_its_largest_loss_is_said() -> None:
    base = replace(SINGLE, breakdown=None)
    assert sentences.slowest([base, NAIVE], base).endswith("; 58 % of its step is bubble.")


def test_what_is_within_noise_of_the_baseline_and_of_others_is_said_once() -> None:
    close, closer, third = (
        Result(label, stats(at), breakdown=None) for label, at in (("A", 0.101), ("B", 0.102), ("C", 0.1015))
    )
    noisy = ", within noise of Single and of A."
    assert sentences.slowest([SINGLE, close, closer], SINGLE) == f"B has the slowest median: 0.98x{noisy}"
    assert sentences.slowest([SINGLE, close, closer, third], SINGLE).endswith(
        ", within noise of Single and of 2 others."
    )
    assert sentences.fastest([SINGLE, close, closer], closer).endswith(" of B, within noise of it and of A.")


def test_none_is_called_fastest_or_slowest_where_another_may_be() -> None:
    """Whiskers of the twins overlap, those of the baseline are far away."""
    twin = replace(FP16, label="BF16", step=stats(0.199))
    runs, close = [SINGLE, FP16, twin], "; BF16 is within noise."
    assert sentences.slowest(runs, SINGLE).startswith("FP16 has the slowest median: 0.50x; ")
    assert sentences.slowest(runs, SINGLE).endswith(close)
    assert sentences.slowest(runs, FP16) == f"FP16, the baseline, has the slowest median: 200 ms a step{close}"
    runs[0], close = replace(SINGLE, label="Last", step=stats(0.3), breakdown=None), "; FP16 is within noise."
    assert sentences.fastest(runs, FP16).startswith("BF16 has the fastest median: 1.01x")
    assert sentences.fastest(runs, twin) == f"BF16, the baseline, has the fastest median: 199 ms a step{close}"
    assert sentences.fastest(runs, runs[0]).startswith("BF16 has the fastest median: 1.51x ± 0.03 of Last")
