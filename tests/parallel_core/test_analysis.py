"""Statistics, parity, and the sentences made from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.analysis import cautions, sentences
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.parity import parity
from parallel_core.analysis.parity_words import parity_sentence
from parallel_core.analysis.quantities import (
    bytes_beside,
    bytes_text,
    difference_text,
    figure_text,
    finished_text,
    flops_text,
    large_text,
    last_samples,
    listed_text,
    most_percent_text,
    percent_text,
    rate_text,
    ratio_text,
    seconds_text,
    signed_percent_text,
    significant,
    slower_text,
)
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Stats, speedup, summarise

MIB = 1024**2


def stats(median: float, whisker: float = 0.01) -> Stats:
    return Stats(median, median - whisker, median + whisker, median, 40)


SINGLE = Result(
    "Single",
    stats(0.100),
    memory={"params": 20 * MIB, "activations": 60 * MIB},
    breakdown=Breakdown(compute=95, optimizer=5),
)
DP = Result(
    "DP", stats(0.063), ideal=2.0, memory={"params": 40 * MIB}, breakdown=Breakdown(compute=80, bubble=20), devices=2
)
NAIVE = Result(
    "Naive", stats(0.120), memory={"params": 30 * MIB}, breakdown=Breakdown(compute=45, bubble=55), devices=2
)
ALL = [SINGLE, DP, NAIVE]


def test_whiskers_are_the_tenth_and_ninetieth_percentile() -> None:
    assert summarise(range(1, 102)) == Stats(median=51, p10=11, p90=91, mean=51, n=101)
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_speedup_with_clear_whiskers() -> None:
    gain = speedup(stats(0.2, 0.02), stats(0.1, 0.01))
    assert (gain.ratio, gain.within_noise) == (2.0, False)
    assert (gain.low, gain.high) == pytest.approx((0.18 / 0.11, 0.22 / 0.09))


def test_overlapping_whiskers_are_within_noise() -> None:
    assert speedup(stats(0.100, 0.01), stats(0.085, 0.01)).within_noise
    assert not speedup(stats(0.100, 0.01), stats(0.075, 0.01)).within_noise


def normal(count: int, seed: int) -> Stats:
    """Times of `count` steps of 100 ms with a standard deviation of 3 ms."""
    return summarise(np.random.default_rng(seed).normal(0.1, 0.003, count))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 40])
def test_two_samples_of_one_distribution_are_rarely_told_apart(count: int) -> None:
    """Of 300 pairs; with one value each the whiskers of every pair are apart."""
    pairs = [(normal(count, 2 * i), normal(count, 2 * i + 1)) for i in range(300)]
    assert sum(not speedup(a, b).within_noise for a, b in pairs) <= 0.05 * len(pairs)


@pytest.mark.parametrize(("one", "other", "few"), [(4, 40, True), (40, 4, True), (1, 1, True), (5, 5, False)])
def test_too_few_values_on_either_side_are_within_noise(one: int, other: int, few: bool) -> None:
    """Though one takes twice as long: whiskers of so few values say next to nothing."""
    gain = speedup(summarise([0.2] * one), summarise([0.1] * other))
    assert (gain.ratio, gain.within_noise, gain.few, gain.n) == (2.0, few, few, min(one, other))
    assert gain.interval == ((None, None) if few else (2.0, 2.0))


def test_one_timed_step_is_said_instead_of_a_spread() -> None:
    a, b = (Result(label, summarise([seconds])) for label, seconds in (("A", 0.1), ("B", 0.0995)))
    words = "within noise (1 timed step)"
    assert sentences.pair_sentence(a, b) == f"B is 1.01x of A, {words}."
    assert sentences.fastest([a, b], a) == f"B has the fastest median: 1.01x of A, {words}."
    assert sentences.slowest([a, b], b) == f"A has the slowest median: 0.99x, {words}."
    assert sentences.fastest([a, b], b).startswith("B, the baseline, has the fastest median: 99.5 ms a step")
    assert sentences.slowest([a, b], a) == "A, the baseline, has the slowest median: 100 ms a step; B is within noise."
    assert sentences.speedup_title([a, b], a) == f"0 of 1 beat A beyond noise; B reaches 1.01x, {words}."


def test_more_steps_are_asked_for_where_runs_have_too_few() -> None:
    short = replace(DP, step=summarise([0.06]))
    told = cautions.few_steps([SINGLE, short, NAIVE])
    assert told.startswith("1 of 3 runs has fewer than 5 timed steps, too few") and len(told.split()) <= 25
    assert cautions.few_steps(ALL) == cautions.few_steps([short]) == ""


positive = st.floats(1e-6, 1e3)


@given(st.lists(positive, min_size=1), st.lists(positive, min_size=1))
def test_speedup_lies_between_its_ends_and_inverts(a: list[float], b: list[float]) -> None:
    there, back = speedup(summarise(a), summarise(b)), speedup(summarise(b), summarise(a))
    assert there.low <= there.ratio * (1 + 1e-12) and there.ratio <= there.high * (1 + 1e-12)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.within_noise == back.within_noise


def test_parity_takes_the_largest_difference_of_the_common_steps() -> None:
    result = parity([0, 1, 2, 9], [4.0, 2.0, 1.0, 5.0], [1, 2, 3], [2.0, 1.01, 7.0])
    assert (result.at, result.steps) == (2, 2)
    assert result.largest == pytest.approx(0.01)


def test_parity_of_equal_and_of_broken_losses() -> None:
    assert parity([0, 1], [1.0, math.nan], [0, 1], [1.0, math.nan]).largest == 0
    assert parity([0, 1], [1.0, 2.0], [0, 1], [1.0, math.nan]).largest == math.inf
    assert parity([0], [1.0], [1], [1.0]).steps == 0


def test_verdict_of_a_study() -> None:
    assert sentences.verdict(ALL, SINGLE) == [
        "DP is fastest: 1.59x (1.23 to 2.08) of Single (79 % of ideal); 1.6 of its 2 devices compute on average.",
        "Naive has the slowest median: 0.83x, within noise; 55 % of its step is bubble.",
        "Least memory: 30 MiB on its worst rank, Naive.",
    ]


def test_equal_memory_has_no_least() -> None:
    alike = [replace(result, memory=SINGLE.memory) for result in ALL]
    assert sentences.least_memory(alike).endswith(" on the worst rank of every run.")


def test_memory_is_said_to_be_least_of_the_runs_that_were_metered() -> None:
    """With `trace.memory` off a run is not, and might need less."""
    unmetered = replace(SINGLE, memory=None)
    known = " (2 of 3 runs were metered)."
    assert sentences.least_memory([unmetered, DP, NAIVE]) == f"Least memory: 30 MiB on its worst rank, Naive{known}"
    assert sentences.memory_title([unmetered, DP, NAIVE]).endswith(known)
    assert sentences.least_memory([unmetered, DP]).endswith("DP (1 of 2 runs was metered).")
    alike = replace(DP, memory=NAIVE.memory)
    assert sentences.least_memory([unmetered, alike, NAIVE]).endswith(" on the worst rank of every metered run.")


def test_all_that_need_the_least_memory_are_named() -> None:
    """Also where their bytes differ by less than is shown."""
    twin = replace(NAIVE, label="Twin", memory={"params": 30 * MIB + 1})
    assert sentences.least_memory([*ALL, twin]) == "Least memory: 30 MiB on the worst rank of Naive and Twin."
    runs = [*ALL, twin, replace(twin, label="Third")]
    assert sentences.least_memory(runs) == "Least memory: 30 MiB on the worst rank of Naive and 2 others."


def test_verdict_names_the_baseline_where_it_wins() -> None:
    assert sentences.fastest(ALL, DP) == "DP, the baseline, is fastest: 63 ms a step."


def test_verdict_with_little_to_say() -> None:
    assert sentences.verdict([], SINGLE) == ["0 runs have finished."]
    assert sentences.verdict([DP], DP) == ["63 ms a step: DP is the only finished run."]


def test_a_narrow_spread_is_one_number() -> None:
    steady = [replace(run, step=stats(run.step.median, 0.005)) for run in (SINGLE, DP)]
    assert sentences.fastest(steady, steady[0]) == (
        "DP is fastest: 1.59x ± 0.22 of Single (79 % of ideal); 1.6 of its 2 devices compute on average."
    )


def test_a_gain_that_devices_cannot_give_is_doubted() -> None:
    for ms, said in ((47, "(106 % of ideal)"), (20, "(250 % of ideal, more than devices usually give: doubt it)")):
        assert said in sentences.fastest([SINGLE, replace(DP, step=stats(ms / 1e3))], SINGLE)
    slow = replace(DP, label="Slow", step=stats(0.2))
    assert "of ideal" not in sentences.fastest([slow, SINGLE], slow), "it is far below its own ideal, no wonder"


def test_why_one_is_fastest_and_one_is_slowest_is_said() -> None:
    alone = replace(DP, devices=1)
    untraced = replace(SINGLE, breakdown=None)
    assert sentences.fastest([untraced, alone], untraced).endswith("; 80 % of its step is compute.")
    assert sentences.fastest([SINGLE, replace(DP, breakdown=None)], SINGLE).endswith("(79 % of ideal).")
    taken = replace(NAIVE, taken=0.7, devices=2)
    assert sentences.slowest([SINGLE, taken], SINGLE).endswith("; other processes took 70 % of one of its devices.")
    broken = replace(taken, slowed_by="straggler")
    assert sentences.slowest([SINGLE, broken], SINGLE).endswith("; it was broken on purpose: straggler.")
    assert sentences.slowest([slower := replace(SINGLE, slowed_by="slow link"), broken], slower).endswith("devices.")
    alone = replace(taken, devices=1, step=stats(0.2))
    assert sentences.slowest([SINGLE, alone], SINGLE).endswith("; other processes took 70 % of its device.")
    assert cautions.disturbed_baseline(SINGLE) == ""
    assert cautions.disturbed_baseline(replace(SINGLE, taken=0.63)).startswith("The baseline, Single, was disturbed: ")
    for base, whose in ((SINGLE, "its device"), (replace(DP, devices=2), "one of its devices")):
        said = cautions.disturbed_baseline(replace(base, taken=0.63))
        assert f" took 63 % of {whose}, so speedups" in said, "the share is of the device that others used most"


def test_noise_is_said() -> None:
    noisy = replace(DP, step=stats(0.095))
    assert "within noise" in sentences.fastest([SINGLE, noisy], SINGLE)
    assert "within noise" not in sentences.fastest(ALL, SINGLE)


def test_titles() -> None:
    assert sentences.speedup_title(ALL, SINGLE) == "1 of 2 beat Single beyond noise; DP reaches 1.59x."
    assert sentences.breakdown_title(ALL) == "55 % of a step of Naive is bubble, the largest loss here."
    assert sentences.memory_title(ALL) == "80 MiB at most: Single, of which 75 % activations."
    unmeasured = [replace(SINGLE, breakdown=None, memory=None)]
    assert sentences.breakdown_title(unmeasured) == "0 steps have the spans of all ranks."
    assert sentences.memory_title(unmeasured) == "0 runs have been metered."
    assert sentences.breakdown_title([]) == sentences.memory_title([]) == "0 runs have finished.", "one may run"
    twice = [SINGLE, replace(SINGLE, label="Twin"), DP]
    assert sentences.memory_title(twice) == "80 MiB at most: Single and Twin, of which 75 % activations."
    other = replace(SINGLE, label="Twin", memory={"params": 50 * MIB, "activations": 30 * MIB})
    assert sentences.memory_title([SINGLE, other]) == "80 MiB at most: Single and Twin."
    assert sentences.memory_title(ALL, 50 * MIB).endswith("; 1 of 3 are above the limit.")
    assert sentences.loss_title(5.54, 3.211, 43, "DP") == "3.211 after 43 steps: the loss of DP falls from 5.540."
    assert sentences.loss_title(5.54, 5.54, 1, "DP") == "5.540 after 1 step: the loss of DP stays at 5.540."
    ended = sentences.loss_title(5.54, float("nan"), 43, "DP")
    assert ended == "Not finite after 43 steps: the loss of DP began at 5.540."


def test_parity_sentence_counts_who_is_off() -> None:
    exact, off = parity([0], [1.0], [0], [1.0]), parity([0], [1.0], [0], [1.01])
    allowed = {"DP": 1e-4, "TP": 1e-4}
    assert (
        parity_sentence({"DP": exact, "TP": exact}, "Single", allowed)
        == "Both runs equal Single to the last bit (0 difference) in every loss."
    )
    assert (
        parity_sentence({"DP": exact, "TP": off}, "Single", allowed)
        == "1 of 2 differ from Single: TP by 1 % at step 0."
    )
    lost = replace(off, largest=float("inf"))
    told = parity_sentence({"DP": exact, "TP": exact}, "Single", allowed, others=2)
    assert told.startswith("2 of 4 other runs equal Single") and told.endswith("in every loss; 2 are not meant to.")
    told = parity_sentence({"DP": exact}, "Single", allowed, others=1)
    assert told.startswith("DP equals Single") and told.endswith("in every loss; 1 is not meant to.")
    assert "DP has no finite loss any more at step" in parity_sentence({"DP": lost}, "Single", allowed)
    told = parity_sentence({"DP": off}, "Single", allowed, amplifies=True)
    assert told.endswith("Batch norms amplify rounding at a high learning rate: compare the first steps.")
    assert "Batch" not in parity_sentence({"DP": exact}, "Single", allowed, amplifies=True)


def test_each_pair_of_runs_is_judged_by_its_own_precision() -> None:
    rough, fine = parity([0], [1.0], [0], [1.005]), parity([0], [1.0], [0], [1.0001])
    allowed = {"DP, bf16": 1e-2, "TP": 1e-5}
    told = parity_sentence({"DP, bf16": rough, "TP": fine}, "Single", allowed)
    assert told == "1 of 2 differ from Single: TP by 1e-04 at step 0."
    equal = parity_sentence({"DP, bf16": rough, "TP": parity([0], [1.0], [0], [1.0])}, "Single", allowed)
    assert equal == "Both runs equal Single within 5e-03 in every loss."


def test_difference_of_two_breakdowns_adds_up() -> None:
    a = Breakdown(compute=50_000_000, bubble=40_000_000, exposed_collective=20_000_000)
    b = Breakdown(compute=49_000_000, bubble=9_000_000, exposed_collective=8_000_000)
    text = sentences.difference_sentence(a, b)
    assert text == "Of 44 ms saved between their traced steps: bubble 31 ms, communication not hidden 12 ms, rest 1 ms."
    assert sentences.difference_sentence(b, a).startswith("Of 44 ms added between their traced steps: bubble 31 ms")


def test_slow_data_is_named_in_a_difference() -> None:
    """It was told as `other`, with set-up and what no span covers."""
    a = Breakdown(compute=100_000_000, other=1_000_000)
    assert sentences.difference_sentence(a, replace(a, data=150_000_000)) == (
        "Of 150 ms added between their traced steps: reading data 150 ms."
    )


def test_the_rest_of_a_difference_is_no_larger_than_what_is_named() -> None:
    a = Breakdown(compute=326_000_000, optimizer=7_000_000)
    b = Breakdown(compute=240_000_000, exposed_collective=137_000_000, bubble=89_000_000, optimizer=3_000_000)
    assert sentences.difference_sentence(a, b) == (
        "Of 136 ms added between their traced steps: communication not hidden 137 ms, bubble 89 ms, compute −86 ms, "
        "rest −4 ms."
    )


def test_what_is_next_to_nothing_of_a_difference_is_not_told() -> None:
    a = Breakdown(compute=70_000_000, optimizer=1_000_000)
    b = Breakdown(compute=30_000_000, optimizer=815_000, other=16_000)
    assert sentences.difference_sentence(a, b) == "Of 40.2 ms saved between their traced steps: compute 40 ms."
    told = sentences.difference_sentence(a, replace(a, optimizer=900_000))
    assert told == "71 ms and 70.9 ms: no part of their traced steps differs by 1 % of these."
    moved = sentences.difference_sentence(a, replace(a, compute=60_000_000, bubble=10_100_000))
    assert moved.startswith("Of 100 µs added between their traced steps: bubble 10.1 ms, compute −10 ms")


SENTENCES: list[Callable[[Result, Result], str]] = [
    lambda a, b: sentences.fastest([a, b], a),
    lambda a, b: sentences.slowest([a, b], a),
    lambda a, b: sentences.least_memory([a, b]),
    lambda a, b: sentences.speedup_title([a, b], a),
    lambda a, b: sentences.breakdown_title([a, b]),
    lambda a, b: sentences.memory_title([a, b], MIB),
    lambda a, b: sentences.pair_sentence(a, b),
    lambda a, b: sentences.difference_sentence(a.breakdown or Breakdown(), b.breakdown or Breakdown()),
    lambda a, b: sentences.gantt_title(b.label, b.breakdown or Breakdown()),
    lambda a, b: sentences.loss_title(a.step.median, b.step.median, 43, b.label),
    lambda a, b: parity_sentence(
        {b.label: parity([0], [a.step.median], [0], [b.step.median])}, a.label, {b.label: 1e-6}
    ),
]
counts = st.integers(0, 10**10)
results = st.builds(
    Result,
    st.sampled_from(["Single", "DP", "PP-1F1B"]),
    st.lists(positive, min_size=1, max_size=9).map(summarise),
    st.floats(0.5, 64),
    st.fixed_dictionaries(dict.fromkeys(CATEGORY_NAMES, counts)),
    st.builds(Breakdown, *[counts] * 8),
)


@pytest.mark.parametrize("sentence", SENTENCES)
@given(a=results, b=results)
def test_every_sentence_is_short_and_has_a_number(
    sentence: Callable[[Result, Result], str], a: Result, b: Result
) -> None:
    text = sentence(a, b)
    assert len(text.split()) <= 25
    assert any(c.isdigit() for c in text)
    assert text.endswith(".")


def test_lists_end_with_and() -> None:
    assert [listed_text(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_sentence_changes_with_its_numbers(sentence: Callable[[Result, Result], str]) -> None:
    base = Result("Single", stats(0.2), 1.0, {"params": 5 * MIB, "grads": 200 * MIB}, Breakdown(compute=60, bubble=40))
    other = Result("DP", stats(0.031), 2.0, {"params": 7 * MIB, "grads": 95 * MIB}, Breakdown(compute=30, bubble=70))
    assert sentence(SINGLE, DP) != sentence(base, other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (finished_text(0, 1), "The only run has no result"),
        (finished_text(1, 1), "The only run has finished"),
        (finished_text(1, 3), "1 of 3 runs has finished"),
        (finished_text(0, 3), "0 of 3 runs have finished"),
        (last_samples([1]), "the last sample"),
        (last_samples([1, 64]), "the last 1 and 64 samples"),
        (significant(1234.6), "1230"),
        (significant(0.01234), "0.0123"),
        (significant(9.996), "10"),
        (significant(math.nan), "not finite"),
        (figure_text(4.512), "4.51"),
        (figure_text(1234.6), "1\N{NO-BREAK SPACE}235"),
        (bytes_text(0), "0 B"),
        (bytes_text(float("nan")), "not finite B"),
        (bytes_text(1023), "1023 B"),
        (bytes_text(1023.4 * 1024), "1023 KiB"),
        (bytes_text(1023.6 * 1024), "1 MiB"),
        (bytes_text(MIB - 1, 5, zeros=True), "1.0000 MiB"),
        (bytes_text(2**60 * 1024), "1048576 PiB"),
        (bytes_text(9.2 * 1024**3), "9.2 GiB"),
        (bytes_text(31 * MIB), "31 MiB"),
        (bytes_beside(31.24 * MIB, 2 * MIB), "31 MiB"),
        (bytes_beside(31.24 * MIB, 31.44 * MIB), "31.2 MiB"),
        (bytes_beside(31.244 * MIB, 31.236 * MIB), "31.244 MiB"),
        (bytes_beside(31.24 * MIB, 31.24 * MIB, 3), "31.2 MiB"),
        (bytes_text(4 * MIB, zeros=True), "4.0 MiB"),
        (bytes_text(31 * MIB, zeros=True), "31 MiB"),
        (significant(9.996, zeros=True), "10.0"),
        (significant(4.2, 5, zeros=True), "4.2000"),
        (significant(0, zeros=True), "0"),
        (seconds_text(17, zeros=True), "17.0 s"),
        (seconds_text(0.11, zeros=True), "110 ms"),
        (rate_text(4_000, zeros=True), "4.00 k tokens/s"),
        (seconds_text(0.0482), "48.2 ms"),
        (seconds_text(0.9994), "999 ms"),
        (seconds_text(0.9996, zeros=True), "1.00 s"),
        (seconds_text(59.96), "1 min"),
        (seconds_text(59.96, zeros=True), "1 min 0 s"),
        (seconds_text(7230), "2 h"),
        (rate_text(999.7), "1 k tokens/s"),
        (large_text(999_700), "1 M"),
        (flops_text(999.7e9), "1 TFLOP/s"),
        (figure_text(999.7), "1\N{NO-BREAK SPACE}000"),
        (seconds_text(200), "3 min 20 s"),
        (seconds_text(-0.0042), "\N{MINUS SIGN}4.2 ms"),
        (signed_percent_text(0.019), "+1.9 %"),
        (signed_percent_text(-0.02), "\N{MINUS SIGN}2.0 %"),
        (signed_percent_text(-0.0001), "0.0 %"),
        (seconds_text(7500), "2 h 5 min"),
        (percent_text(0.001), "under 1 %"),
        (percent_text(0.125), "13 %"),
        (most_percent_text(0.125), "at most 13 %"),
        (most_percent_text(0.004), "under 1 %"),
        (percent_text(0.375), "38 %"),
        (percent_text(0.285), "29 %"),
        (signed_percent_text(-0.125, 0), "\N{MINUS SIGN}13 %"),
        (large_text(174_615_846_912), "175 B"),
        (large_text(812_544), "813 k"),
        (large_text(0), "0"),
        (ratio_text(1.584), "1.58x"),
        (ratio_text(9.996), "10.0x"),
        (ratio_text(105.893), "106x"),
        (slower_text(0.0004), ""),
        (slower_text(0.002), "under 1 %"),
        (slower_text(0.124), "+12 %"),
        (difference_text(2.04e-7), "2e-07"),
        (difference_text(1.7), "170 %"),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_parity_accepts_numpy_columns() -> None:
    steps = np.arange(3, dtype=np.int32)
    assert parity(steps, steps + 1.0, steps, steps + 1.0).steps == 3


def test_rivals_within_noise_of_the_fastest_are_named() -> None:
    near = Result("Near", Stats(0.066, 0.060, 0.080, 0.066, 40), 2.0)
    best = Result("Best", Stats(0.063, 0.060, 0.070, 0.063, 40), 2.0)
    slow = Result("Base", Stats(0.100, 0.099, 0.101, 0.100, 40), 1.0)
    assert sentences.fastest([slow, near, best], slow).endswith("(79 % of ideal); Near is within noise.")
    assert sentences.fastest([slow, best], slow).endswith("(79 % of ideal).")
    assert "Near is within noise" in sentences.fastest([slow, near, best], best)


def test_of_equal_runs_the_first_is_fastest_and_the_last_slowest() -> None:
    """Tables and links have them in the order of their times, too, in which equal ones stay as they were."""
    base, *equal = (Result(label, Stats(0.07, 0.06, 0.09, 0.07, 40), 1.0) for label in ("Base", "One", "Other"))
    assert sentences.fastest([*equal, base], base).startswith("One has")
    assert sentences.slowest([base, *equal], base).startswith("Other has")


def test_a_lead_within_noise_is_not_called_fastest() -> None:
    base = Result("Base", Stats(0.070, 0.060, 0.090, 0.070, 40), 1.0)
    other = Result("Other", Stats(0.065, 0.060, 0.080, 0.065, 40), 1.0)
    assert sentences.fastest([base, other], base).startswith("Other has the fastest median: 1.08x")


def test_disturbance_is_said_with_its_count_and_its_size() -> None:
    text = cautions.disturbed([0.3, None, 0.05, 0.12], 0.10)
    assert text.startswith("2 of 3 runs were disturbed: other processes took up to 30 % of one of their devices, ")
    assert cautions.disturbed([0.05, None], 0.10) == ""
    assert cautions.disturbed([0.3], 0.10).startswith(
        "The run was disturbed: other processes took up to 30 % of one of its"
    )
    one = cautions.disturbed([0.3, 0.05], 0.10)
    assert one.startswith("1 of 2 runs was disturbed: other processes took up to 30 % of one of its devices, ")
    assert len(text.split()) <= 25
