"""The search for the largest number of layers that fits: a pure function of the previous attempts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from parallel_core.local import LocalRunner
from parallel_core.plan.capacity import largest_layers, least_layers
from parallel_core.plan.largest import Search, search_for, trial
from parallel_core.spec import RunSpec


def hunt(truth: int, guess: int, least: int = 1, most: int = 512) -> Search:
    """Answers every number of layers that the search asks for, as if at most `truth` layers fit."""
    search = Search(guess, {}, least, most)
    while (layers := search.following) is not None:
        assert least <= layers <= most and layers not in search.tried
        search = Search(guess, {**search.tried, layers: layers <= truth}, least, most)
    return search


def test_any_truth_is_found_from_any_guess_in_few_runs() -> None:
    draw = random.Random(7)
    for _ in range(2000):
        least = draw.randint(1, 8)
        truth, guess = draw.randint(0, 512), draw.choice([draw.randint(0, 600), 1 << 20])
        search = hunt(truth, guess, least)
        assert search.largest == (truth if truth >= least else None)
        away = abs(truth - min(max(guess, least), 512)) + 1
        assert len(search.tried) <= 2 * away.bit_length() + 2, (truth, guess, search.tried)
        if search.largest is not None and search.largest < 512:
            assert search.tried[search.largest + 1] is False, "the next larger number was really tried"


@pytest.mark.parametrize(("truth", "runs"), [(23, 2), (22, 2), (24, 4)])
def test_a_prediction_that_is_right_costs_two_runs(truth: int, runs: int) -> None:
    assert len(hunt(truth, 23).tried) == runs


def test_what_was_tried_decides_alone() -> None:
    search = Search(10, {10: True, 11: True, 13: False})
    assert (search.largest, search.refused, search.following) == (11, 13, 12)
    assert Search(10, {10: False, 9: False, 12: True, 14: False}).refused == 14, (
        "a success above a failure overrides it"
    )
    assert Search(3, {3: False}, least=3).done


GPT = {"hidden": 32, "heads": 2, "seq": 32, "vocab": 256}
CAP = 3 << 20


@pytest.mark.parametrize(("step", "kept"), [(2, 1), (5, 0)])
def test_a_run_with_a_flipped_bit_is_tried_too(step: int, kept: int) -> None:
    faults = [{"kind": "flipped_bit", "step": step}]
    tried = trial(RunSpec.model_validate({"parallel": {"dp": 2}, "inject": faults}), 2, None)
    assert len(tried.inject) == kept
    assert tried.trace.fingerprint_every > tried.train.steps, "replicas are never compared"


def test_real_runs_find_what_was_predicted(runner: LocalRunner, tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": GPT, "train": {"global_batch": 8}})
    search = search_for(spec, CAP)
    assert least_layers(spec) < search.guess <= largest_layers(spec, CAP)
    while (layers := search.following) is not None:
        outcome = runner.run(trial(spec, layers, CAP), tmp_path / str(layers), corpora=tmp_path)
        fault = outcome.last(0, "fault")
        assert outcome.ok or (fault and fault["cause"] == "out_of_memory"), outcome.failure()
        search = Search(search.guess, {**search.tried, layers: outcome.ok}, search.least)
        if fault:
            assert "above the cap of 3 MiB; " in fault["message"] and "% of it" in fault["message"]
    assert search.largest is not None and search.largest - search.guess in (0, 1), "never below the prediction"
