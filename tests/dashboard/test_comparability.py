"""Which runs of pipelines without a flush are to compute the same updates, so that their losses may be compared.

`tests.parallel_core.test_parity_async` shows that the engine updates by these rules.
"""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.studies.comparability import same_updates, why_not
from parallel_core.spec import RunSpec

NAIVE, STASH, TWO = "1f1b-naive", "1f1b-stash", "1f1b-2bw"
MODEL = {"layers": 4, "hidden": 32, "heads": 4, "seq": 32}


def alike(schedule: str, one: dict[str, Any], other: dict[str, Any], clip_norm: float | None = 1.0) -> bool:
    """Whether two splits under a schedule compute the same, either way round."""
    train = {"global_batch": 16, "clip": "stage", "clip_norm": clip_norm}
    a, b = (
        RunSpec.model_validate(
            {
                "model": MODEL,
                "parallel": {"pp": 2, "micro_batches": 4, "schedule": schedule, **split},
                "train": train,
            }
        )
        for split in (one, other)
    )
    assert same_updates(a, b) == same_updates(b, a)
    return same_updates(a, b)


@pytest.mark.parametrize(
    ("again", "naive", "stash"),
    [
        ({"recompute": "full"}, False, True),
        ({"recompute": "full", "recompute_layers": (3,)}, False, True),
        ({"recompute": "selective"}, True, True),
    ],
)
def test_without_a_stash_full_recomputation_is_from_newer_weights(
    again: dict[str, Any], naive: bool, stash: bool
) -> None:
    assert (alike(NAIVE, {}, again), alike(STASH, {}, again)) == (naive, stash)
    assert alike(NAIVE, again, again)


def test_all_layers_by_number_recompute_what_all_do() -> None:
    assert alike(NAIVE, {"recompute": "full"}, {"recompute": "full", "recompute_layers": (0, 1, 2, 3)})


@pytest.mark.parametrize("other", [{"micro_batches": 8}, {"dp": 2}, {"dp": 2, "micro_batches": 2}, {"tp": 2}])
def test_2bw_updates_once_a_step_however_the_step_is_divided(other: dict[str, Any]) -> None:
    assert alike(TWO, {}, other) and alike(TWO, {}, other, clip_norm=None)
    assert alike(STASH, {}, other) == ("tp" in other)


@pytest.mark.parametrize("other", [{"pp": 3}, {"cuts": (2,)}, {"replicas": (2, 1)}])
def test_2bw_depends_on_the_stages_only_where_each_is_clipped(other: dict[str, Any]) -> None:
    assert not alike(TWO, {}, other)
    assert alike(TWO, {}, other, clip_norm=None)
    assert not alike(STASH, {}, other, clip_norm=None)


def test_what_counts_is_where_stages_begin_not_who_said_so() -> None:
    own = {"cuts": (3,), "replicas": (2, 1)}
    assert alike(TWO, {"cuts": (3,)}, own)
    assert alike(STASH, {"widths": (2, 1), "cuts": (3,)}, {"cuts": (3,)})
    assert not alike(STASH, {"cuts": (3,)}, own), "two replicas update half as often"
    assert not alike(STASH, {}, {"schedule": TWO})


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ({}, {"steps": 60}, ""),
        ({}, {"lr_final": 0.5}, ""),
        ({"lr_warmup_steps": 5}, {"lr_warmup_steps": 5, "steps": 60}, ""),
        ({}, {"lr_warmup_steps": 5}, "they differ in steps of rate warm-up"),
        ({}, {"lr_schedule": "cosine"}, "they differ in learning-rate schedule"),
        ({"lr_schedule": "cosine"}, {"lr_schedule": "cosine", "steps": 60}, "they differ in steps"),
        ({}, {"eval_samples": 8}, ""),
        ({"optimizer": "sgd"}, {"optimizer": "sgd", "beta1": 0.5, "eps": 1e-3}, ""),
        ({}, {"beta1": 0.5}, "they differ in adamW β₁"),
        ({"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.5}, "they differ in momentum"),
        ({"eval_every": 5}, {"eval_every": 10}, ""),
        ({}, {"eval_every": 5}, "they differ in held-out samples"),
        ({"eval_every": 5}, {"eval_every": 5, "eval_samples": 8}, "they differ in held-out samples"),
        (
            {"lr_schedule": "linear"},
            {"lr_schedule": "linear", "lr_final": 0.5, "steps": 60},
            "they differ in rate at the end and steps",
        ),
    ],
)
def test_what_is_learned_depends_on_the_rate_of_each_step_and_on_what_is_held_out(
    one: dict[str, Any], other: dict[str, Any], why: str
) -> None:
    a, b = (RunSpec.model_validate({"train": train}) for train in (one, other))
    assert same_updates(a, b) == same_updates(b, a) == (not why)
    assert why_not(a, [b]) == (why or "they update by other rules")


def test_why_runs_do_not_compute_the_same_names_model_and_batch_beside_the_optimizer() -> None:
    base, sgd, wider, larger = (
        RunSpec.model_validate({"model": {**MODEL, **model}, "train": {"global_batch": 16, **train}})
        for model, train in (({}, {}), ({}, {"optimizer": "sgd"}), ({"hidden": 64}, {}), ({}, {"global_batch": 32}))
    )
    assert why_not(base, [sgd, wider, larger]) == "they differ in model, batch and optimizer"
    assert why_not(base, [wider]) == "they differ in model"


def test_batch_norms_compute_the_same_only_with_as_many_micro_batches() -> None:
    def spec(kind: str, **parallel: Any) -> RunSpec:
        train = {"global_batch": 16, "corpus": "digits"}
        return RunSpec.model_validate({"model": {"kind": kind, "width": 2}, "parallel": parallel, "train": train})

    resnet = {"one": spec("resnet50"), "dp": spec("resnet50", dp=2), "m": spec("resnet50", micro_batches=2)}
    assert same_updates(resnet["one"], resnet["dp"])
    assert same_updates(resnet["m"], spec("resnet50", dp=2, pp=2, micro_batches=2))
    assert not same_updates(resnet["one"], resnet["m"]) and not same_updates(resnet["m"], resnet["one"])
    assert why_not(resnet["one"], [resnet["m"]]) == "their batch norms see micro-batches of another size"
    assert same_updates(spec("vgg16"), spec("vgg16", micro_batches=2)), "it has no batch norms"
