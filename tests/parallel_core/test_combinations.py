"""The page docs/combinations.md is up to date, and every pair of features it declares as running does what the page
says of it: above all, it trains like one device, or like a replay of its updates (`combinations.proof`).

All requested pairs with the same number of ranks run in one launch. A part of them always runs, the rest with `--full`.
"""

from __future__ import annotations

import hashlib
import shutil
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parallel_core import combinations
from parallel_core.combinations import Combination
from parallel_core.combinations.features import FEATURES
from parallel_core.combinations.reasons import Reasons, pairs_text, short
from parallel_core.faults import KINDS as FAULTS
from tests.parallel_core import pair_checks, pair_legs, pair_runs, ranks
from tests.parallel_core.pair_runs import Ran

PAGE = Path(__file__).resolve().parents[2] / "docs" / "combinations.md"
RUNNING = combinations.running()
ALWAYS, ALWAYS_RUN = 192, 960
"""One in this many pairs always runs: of those of which only steps are run, and of the others."""
ALWAYS_TOO = (
    "pipeline 1f1b-naive + selective recomputation",
    "pipeline 1f1b-2bw + model gnmt",
    "pipeline zb-v + clipping by stage",
    "pipeline 1f1b-vertical + deterministic",
)
"""Pairs that are held against a replay, and always run, too."""
ALWAYS_OF_RUNS = (
    "ZeRO-2 + resumed on another layout",
    "sequence parallel + several hosts",
    "pipeline 1f1b-stash + checkpoints",
    "pipeline interleaved + resumed",
    "pipeline zb-h1 + flipped bit",
    "ZeRO-3 + weights from safetensors",
    "pipeline gpipe + weights to safetensors",
    "tensor parallel + torch.profiler",
    "token file + memory cap",
    "shared key heads + text on tensor ranks",
    "learning rate too high + text on stages",
    "pipeline 1f1b-stash + unbalanced cut",
    "slow link + slow replicas",
    "straggler + tiny kernels",
    "slow data + loss scale too high",
    "shared key heads + text of the likeliest tokens",
)
"""Pairs of each kind of check that always run."""
AT_ONCE = 48
"""The most pairs that are run for one test."""


def _always(name: str) -> bool:
    every = ALWAYS if pair_legs.only_trains(RUNNING[name]) else ALWAYS_RUN
    return name in ALWAYS_TOO + ALWAYS_OF_RUNS or int(hashlib.sha256(name.encode()).hexdigest(), 16) % every == 0


@dataclass
class _Chunk:
    """The pairs that were run last. Their checkpoints are removed when others are run; what prevented the run is kept,
    as another try would take as long."""

    names: tuple[str, ...] = ()
    home: Path | None = None
    ran: dict[str, Ran] = field(default_factory=dict)
    error: str = ""

    def take(self, names: tuple[str, ...]) -> None:
        if self.home is not None:
            shutil.rmtree(self.home)
        self.names, self.home, self.ran, self.error = names, ranks.scratch(), {}, ""
        try:
            self.ran = pair_runs.run({name: RUNNING[name] for name in names}, self.home)
        except (Exception, pytest.fail.Exception):
            self.error = traceback.format_exc()
            raise


_last = _Chunk()


def _ran(names: tuple[str, ...], name: str) -> Ran:
    if names != _last.names:
        _last.take(names)
    assert not _last.error, _last.error
    return _last.ran[name]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> list[str]:
    """The pairs that this session runs."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    return [str(item.callspec.params["name"]) for item in items if item.originalname == test_runs.__name__]


@pytest.mark.timeout(1800)  # the first of a chunk runs all of it
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if _always(name) else pytest.mark.full) for name in RUNNING]
)
def test_runs(name: str, asked: list[str]) -> None:
    first = asked.index(name) // AT_ONCE * AT_ONCE
    pair_checks.check(RUNNING[name], _ran(tuple(asked[first : first + AT_ONCE]), name))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == combinations.page(), (
        "python -m parallel_core.combinations docs/combinations.md writes it again"
    )


def test_every_fault_is_a_feature() -> None:
    fields = {name for leaves in FEATURES.values() for name in leaves}
    without = [kind for kind in FAULTS if f"inject.{kind}" not in fields]
    assert not without, f"add {', '.join(without)} to the faults in parallel_core/combinations/features.py"


def test_a_refusal_names_what_would_do() -> None:
    said = combinations.verdict("ZeRO-1", "pipeline 1f1b-stash")
    assert isinstance(said, str)
    assert "use zero=0" in said
    assert combinations.verdict("bf16", "fp16") is None


@pytest.mark.parametrize(
    ("schedule", "runs"),
    [("naive", True), ("interleaved", True), ("zb-h1", False), ("1f1b-stash", False)],
)
def test_early_gradients_are_tried_with_every_schedule(schedule: str, runs: bool) -> None:
    found = combinations.verdict(f"pipeline {schedule}", "early gradients")
    assert isinstance(found, Combination) if runs else "early_gradients=true parts a backward" in str(found)


def test_what_a_pair_is_held_against() -> None:
    assert set(ALWAYS_TOO) <= set(RUNNING) and all(combinations.proof(RUNNING[name]) == "replay" for name in ALWAYS_TOO)
    assert combinations.proof(RUNNING["pipeline 1f1b-stash + fp32"]) == "only run"
    assert combinations.proof(RUNNING["fp32 + clipping by stage"]) == "first step"
    assert combinations.proof(RUNNING["clipping by stage + no clipping"]) == "one device"


@pytest.mark.parametrize("proof", ["only run", "first step", "state"])
def test_the_page_names_the_pairs_that_are_held_against_less(proof: str) -> None:
    found = [name.split(" + ") for name, pair in RUNNING.items() if combinations.proof(pair) == proof]
    assert f": {pairs_text((first, second) for first, second in found)}." in PAGE.read_text(encoding="utf-8")


def test_refusals_that_differ_in_values_are_one_reason() -> None:
    reasons = Reasons()
    said = "zero={} gathers while schedule={} is old; use {}."
    given = [(1, "a", "zero=0"), (2, "a", "zero=0"), (1, "b-c", "zero=0"), (2, "b-c", "clip=global")]
    numbers = [reasons.number(said.format(*one), (f"z{one[0]}", one[1])) for one in given]
    assert numbers == [1, 1, 1, 1] and reasons.number("Only a.", ("x", "y")) == 2
    assert reasons.lines() == [
        "* **r1** zero={1 | 2} gathers while schedule={a | b-c} is old:\n"
        "  * use zero=0. (z1 + a, b-c; z2 + a)\n  * use clip=global. (z2 + b-c)",
        "* **r2** Only a. (x + y)",
    ]


def test_pairs_are_named_as_products() -> None:
    assert pairs_text([("a", "c"), ("b", "c"), ("a", "d"), ("b", "d")]) == "a, b + c, d"
    assert short(f"blob:{'0123456789abcdef' * 4} there") == "blob:01234567… there"


def test_pairs_that_always_run_are_of_every_check() -> None:
    found = [RUNNING[name] for name in ALWAYS_OF_RUNS]
    assert {pair.resume for pair in found} == {"", "same", "another"}
    assert any(pair.hosts > 1 for pair in found) and any(pair.imported for pair in found)
    assert any(pair.exported for pair in found) and any(pair.text is not None for pair in found)
    assert {combinations.proof(pair) for pair in found} == {"one device", "replay"}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("model gnmt", "text on stages", "gnmt"),
        ("data parallel", "slow tensor ranks", "✓"),
        ("tensor parallel", "flipped bit", "✓"),
        ("replicas 2-1", "flipped bit", "replicas"),
        ("model mlp", "token file", "kind=mlp trains on 'digits'"),
        ("model resnet50", "weights to safetensors", "kind=resnet50 has no field"),
        ("fp32", "loss scale too high", "·"),
    ],
)
def test_what_is_said_of_pairs_that_are_no_plain_runs(first: str, second: str, said: str) -> None:
    found = combinations.verdict(first, second)
    assert said in ("✓" if isinstance(found, Combination) else found or "·")
