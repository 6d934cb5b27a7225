"""What is judged of losses, gradient norms and loss scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.diagnosis import Case, diagnose
from parallel_core.faults import broken
from parallel_core.learning_rate import rate_at
from parallel_core.simulate.replay import Change
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import MODEL, costs, found, healthy, spec
from tests.parallel_core.test_replay import step


def test_large_loss_scales_have_exponents() -> None:
    skipped = np.minimum(np.arange(40.0), 20)
    found = [
        diagnose(healthy(spec("fp16"), skipped=skipped, loss_scale=np.full(40, last)))
        for last in (32768.0, 2.0**60, 2e23)
    ]
    assert [one[0].evidence.split(" and was ")[1] for one in found] == [
        "32\N{NO-BREAK SPACE}768 in the last step.",
        "2^60 in the last step.",
        "2e+23 in the last step.",
    ]


@pytest.mark.parametrize(
    ("skips", "evidence", "change"),
    [
        (20, "was 2 in the last step.", "Begin with a train.loss_scale of 2 or less, or train in bf16"),
        (40, "was 2 in the last step, skipped, too.", "Begin with a lower train.loss_scale, or train in bf16"),
    ],
)
def test_a_loss_scale_is_named_only_where_a_step_went_through_with_it(skips: int, evidence: str, change: str) -> None:
    skipped = np.minimum(np.arange(1.0, 41.0), skips)
    (found, *_) = diagnose(healthy(spec("fp16"), skipped=skipped, loss_scale=np.full(40, 2.0)))
    assert found.evidence.endswith(evidence) and found.change.startswith(change)


def test_a_scale_that_rises_too_soon_is_not_to_begin_lower() -> None:
    """After every two good steps it doubles, and the third overflows."""
    made = spec("fp16")
    hasty = made.model_copy(update={"train": made.train.model_copy(update={"loss_scale_window": 2})})
    scale, skipped = np.tile([256.0, 256.0, 512.0], 14)[:40], np.repeat(np.arange(14.0), 3)[1:41]
    (found, *_) = diagnose(healthy(hasty, skipped=skipped, loss_scale=scale))
    assert found.title == "13 of 40 steps were skipped: fp16 overflows."
    assert found.evidence == "The loss scale rose 13 times, after 2 good steps each, and overflowed again."
    assert found.change.startswith("Raise train.loss_scale_window, or train in bf16")


def test_a_pipeline_that_stays_full_skips_updates() -> None:
    split = {"pp": 2, "micro_batches": 8, "schedule": "1f1b-stash"}
    train = {"global_batch": 64, "steps": 40, "precision": "fp16", "clip": "stage"}
    at_once = RunSpec.model_validate({"model": MODEL, "parallel": split, "train": train})
    titles = [one.title for one in diagnose(healthy(at_once, skipped=np.minimum(np.arange(40.0) * 8, 100)))]
    assert "100 of 320 updates of the first stage were skipped: fp16 overflows." in titles
    later, from_first = np.arange(100, 140), np.full(40, 2.0)
    skipped = 60.0 + np.minimum(np.arange(40), 20)
    resumed = healthy(spec("fp16"), loss_steps=later, skipped=skipped, loss_scale=from_first)
    (own,) = [one for one in diagnose(resumed) if one.rule == "divergence"]
    assert own.title == "20 of 39 steps were skipped: fp16 overflows.", "the run before it skipped 60"
    assert own.evidence == "The loss scale began at 2 and was 2 in the last step."
    assert own.change.startswith("Begin anew with a train.loss_scale of 2 or less, or train in bf16")
    assert own.change.endswith("; a checkpoint keeps its own of both.")
    calm = diagnose(healthy(spec("fp16"), loss_steps=later, skipped=np.full(40, 60.0), loss_scale=from_first))
    assert not [one for one in calm if one.rule == "divergence"], "it skipped nothing itself"
    few = diagnose(healthy(at_once, skipped=np.minimum(np.arange(40.0) * 8, 60)))
    assert "divergence" not in [one.rule for one in few]


def test_what_no_valid_run_has_saves_nothing_and_is_no_error() -> None:
    made = spec(pp=2, micro_batches=8, cuts=(2,))
    # As after a fault, or stored under older rules: no such spec would be accepted now.
    odd = made.model_copy(update={"train": made.train.model_copy(update={"lr": 1e6})})
    case = healthy(odd, traced=[step(made, costs(made))] * 3)
    assert case.saved(Change(balanced=True)) == 0
    assert "unbalanced_stages" not in found(case)


def test_a_fault_of_the_loss_scale_hides_no_other_finding() -> None:
    cut = spec("fp16", pp=2, micro_batches=8, cuts=(2,))
    made = broken(RunSpec.model_validate(cut.model_dump() | {"inject": [{"kind": "high_scale"}]}))
    case = healthy(made.model_copy(update={"inject": ()}), traced=[step(cut, costs(cut))] * 3)
    assert case.spec.train.loss_scale == 2.0**40
    assert "unbalanced_stages" in found(case)


def test_causes_of_a_divergence() -> None:
    nan = np.where(np.arange(40) < 25, 3.0, np.nan)
    (overflow,) = diagnose(healthy(spec("fp16"), loss=nan, skipped=np.arange(40.0), loss_scale=np.full(40, 1.0)))
    assert "overflowed in fp16" in overflow.evidence and overflow.change.startswith("Train in bf16")
    rising = np.concatenate([np.full(14, 5.5), np.linspace(35, 90, 11), np.full(15, np.nan)])
    first = np.minimum(np.arange(1.0, 41.0), 14)
    (grown,) = diagnose(healthy(spec("fp16"), loss=rising, skipped=first, loss_scale=np.full(40, 2.0**16)))
    assert "train.lr is 0.0003" in grown.evidence, "the scale had fallen until step 14, and the loss rose after it"
    (rate,) = diagnose(healthy(spec(), loss=nan, grad_norm=np.where(np.arange(40) < 25, 1.0, 50.0)))
    assert "train.lr is 0.0003" in rate.evidence
    assert "step 25" in rate.title
    assert rate.evidence.startswith("It began at 3. ")
    (fell,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) < 25, 3.0 - 0.01 * np.arange(40), np.nan)))
    assert fell.evidence.startswith("It had come down to 2.76 at step 24. ")
    (jump,) = diagnose(healthy(spec(), loss=nan, lr=np.where(np.arange(40) < 24, 3e-4, 3e-2)))
    assert "jumped from 0.0003 to 0.03 at step 24" in jump.evidence
    assert "to 100 times" in jump.change
    (wide,) = diagnose(healthy(spec(), loss=nan, lr=np.where(np.arange(40) < 24, 3.0, 3000.0)))
    assert "jumped from 3 to 3\xa0000 at step 24" in wide.evidence
    assert "jump to 1\xa0000 times" in wide.change, "as the fault that is injected by default"
    wildly = np.where(np.arange(40) < 24, 3e-4, 3e26).astype(np.float32)
    (wild,) = diagnose(healthy(spec(), loss=nan, lr=wildly.astype(float)))
    assert wild.change.startswith("Undo the jump to 10^30 times the rate"), "as the run's header names the fault"
    (high,) = diagnose(healthy(spec(), loss=nan, lr=np.full(40, 0.3)))
    assert "The learning rate was 0.3, 1\xa0000 times train.lr" in high.evidence
    assert high.change == "Train at train.lr, 0.0003."


def test_the_rate_to_try_follows_from_where_the_loss_fell() -> None:
    """With a tenth at a time, a rate that is a thousand times too high takes three runs."""
    steps, plain = np.arange(40), spec().train.model_copy(update={"lr": 1.0})
    diverged = np.where(steps < 25, np.where(steps < 10, 5 - 0.1 * steps, 4.1 + steps), np.nan)
    for train, loss, rate, why in (
        (plain.model_copy(update={"lr_warmup_steps": 30}), diverged, 0.16, "had warmed up to 0.323, at step 9."),
        (plain, diverged, 0.1, "train.lr is 1 at a batch of 64."),
        (plain, np.where(steps < 25, 5.0 + steps, np.nan), 0.01, "The loss never fell at that rate."),
    ):
        made = spec().model_copy(update={"train": train})
        rates = np.array([rate_at(train, step) for step in range(40)])
        (found,) = diagnose(healthy(made, loss=loss, lr=rates))
        assert found.evidence.endswith(why) and found.change.startswith(
            f"Lower train.lr, to {rate:g} say, or warm it up"
        )


@pytest.mark.parametrize(
    ("train", "evidence", "change"),
    [
        (
            {"lr": 0.3, "weight_decay": 10.0},
            "train.weight_decay is 10: at this rate each update takes 3 times a weight from it, "
            "and more than 2 times make it grow.",
            "Lower train.weight_decay, to 0.1 say.",
        ),
        ({"lr": 0.3, "weight_decay": 6.0}, "train.lr is 0.3 at a batch of 64", "Lower train.lr"),
        (
            {"lr": 0.5, "weight_decay": 9.0, "optimizer": "sgd", "momentum": 0.9},
            "takes 4.5 times a weight from it, and more than 3.8 times make it grow.",
            "Lower train.weight_decay",
        ),
        ({"lr": 0.3, "weight_decay": 10.0, "optimizer": "sgd", "momentum": 0.9}, "train.lr is 0.3", "Lower train.lr"),
        (
            {"lr": 0.003, "beta2": 0.0},
            "train.beta1 is 0.9, above 0, the root of train.beta2: AdamW forgets how large gradients were before it "
            "forgets them.",
            "Raise train.beta2, to 0.95 say.",
        ),
        ({"beta1": 0.99, "beta2": 0.5}, "the root of train.beta2", "Set train.beta1 to 0.9 and train.beta2 to 0.95."),
        ({"lr": 0.3, "beta1": 0.9, "beta2": 0.8}, "train.lr is 0.3", "Lower train.lr"),
        ({"lr": 0.3, "beta2": 0.0, "optimizer": "sgd"}, "train.lr is 0.3", "Lower train.lr"),
    ],
)
def test_fields_of_the_optimizer_that_no_rate_helps_against_are_the_cause(
    train: dict[str, Any], evidence: str, change: str
) -> None:
    """The advice was a tenth of the rate. With it the loss of a GPT still rose to 300 times its lowest with beta2 at 0,
    and hardly fell with so much decay."""
    made = spec()
    made = RunSpec.model_validate(made.model_dump() | {"train": made.train.model_dump() | train})
    nan = np.where(np.arange(40) < 25, 3.0, np.nan)
    (found,) = diagnose(healthy(made, loss=nan, lr=np.full(40, made.train.lr)))
    assert evidence in found.evidence and found.change.startswith(change)


def test_a_rate_that_jumped_is_the_cause_whatever_the_schedule_and_the_precision() -> None:
    """Older weights and overflows are there in runs that train well, too; a jump of the rate is not."""
    nan = np.where(np.arange(40) < 25, 3.0, np.nan)
    rate = np.where(np.arange(40) < 24, 3e-4, 3e-2)
    at_once = spec(pp=2, micro_batches=8).model_dump()
    at_once["parallel"]["schedule"], at_once["train"]["clip"] = "1f1b-stash", "stage"
    stream = healthy(RunSpec.model_validate(at_once), loss=nan)
    (old,) = [one for one in diagnose(stream) if one.rule == "divergence"]
    assert old.evidence.endswith("Its schedule applies gradients of older weights.")
    half = healthy(spec("fp16"), loss=nan, skipped=np.arange(40.0), loss_scale=np.full(40, 1.0))
    for case in (replace(stream, lr=rate), replace(half, lr=rate)):
        (jump,) = [one for one in diagnose(case) if one.rule == "divergence"]
        assert jump.evidence.endswith("The learning rate jumped from 0.0003 to 0.03 at step 24.")
    (high,) = diagnose(replace(half, lr=np.full(40, 0.3)))
    assert high.change == "Train at train.lr, 0.0003."


@pytest.mark.parametrize("begins", [0, 200])
def test_a_rate_that_jumped_after_the_lowest_mean_is_the_cause(begins: int) -> None:
    """The loss rises a step after the rate, and the lowest mean of several losses may be of earlier ones."""
    loss = np.concatenate([np.linspace(5.5, 4.7, 18), [4.9, 4.8, 4.9], np.full(19, 25.0)])
    rates = np.where(np.arange(40) < 20, 3e-4, 0.9)
    case = healthy(spec(), loss=loss, lr=rates, loss_steps=np.arange(begins, begins + 40))
    (jump,) = [one for one in diagnose(case) if one.rule == "divergence"]
    assert jump.title.endswith("times its lowest: the loss has sprung up.")
    assert jump.evidence.endswith(f"The learning rate jumped from 0.0003 to 0.9 at step {begins + 20}.")


def test_a_gradient_norm_of_many_digits_has_an_exponent() -> None:
    grown = np.where(np.arange(40) < 25, 1.0, 4.42e10)
    (rate,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) < 25, 3.0, np.nan), grad_norm=grown))
    assert "the gradient norm grew to 4.42e+10 times its median" in rate.evidence


def test_a_loss_that_was_not_finite_and_recovered_is_not_urgent() -> None:
    falling = 5 * np.exp(-np.arange(40) / 50)
    once, twice = (np.where(np.isin(np.arange(40), steps), np.nan, falling) for steps in ([5], [0, 5]))
    (one,) = diagnose(healthy(spec(), loss=once))
    assert one.title == "The loss was not a number at step 5; it recovered." and not one.urgent
    (both,) = diagnose(healthy(spec(), loss=twice))
    assert both.title == "The loss was not a number at steps 0, 5; it recovered." and not both.urgent
    (ended,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) < 25, once, np.inf)))
    assert ended.title == "The loss is not a number from step 25 on." and ended.urgent
    rising = np.concatenate([np.linspace(5, 2, 30), np.linspace(3, 9, 10)])
    (sprung,) = diagnose(healthy(spec(), loss=np.where(np.arange(40) == 5, np.nan, rising)))
    assert sprung.title.endswith("times its lowest: the loss has sprung up.") and sprung.urgent
    (none,) = diagnose(healthy(spec(), loss=np.full(40, np.nan)))
    assert none.title == "The loss is not a number from step 0 on."


CALM = 0.02 * np.exp(0.8 * np.sin(2.4 * np.arange(40)))
"""Losses of small batches, of which one may be five times another."""


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (CALM, ""),
        (np.concatenate([[0.009], CALM[1:37], [0.05, 0.04, 0.06]]), ""),
        (np.concatenate([[2.0, 9, 12, 8], np.linspace(6, 4.2, 36)]), "2.1 times its lowest: the loss has sprung up."),
        (np.concatenate([np.linspace(2, 1, 20), np.linspace(2, 8, 20)]), "7.24 times its lowest: the loss has sprung"),
    ],
    ids=["noise", "low by chance at first", "at once", "later"],
)
def test_a_run_that_goes_on_has_diverged_where_it_ends_above_the_loss_that_it_began_with(
    loss: np.ndarray, title: str
) -> None:
    case = healthy(spec(), loss=loss, loss_steps=np.arange(200, 240))
    found = [one.title for one in diagnose(case) if one.rule == "divergence"]
    assert len(found) == bool(title) and all(one.startswith(title) for one in found), found


NOISY = np.exp(np.random.default_rng(3).normal(-2.5, 1.8, 400))
"""Losses of one sample at a time in a run that learns well: most are small, a few above that of the untrained model."""


@pytest.mark.parametrize("begins", [0, 200])
def test_one_sample_that_is_far_off_is_no_divergence(begins: int) -> None:
    loss = np.where(np.arange(400) == 369, 14.6, NOISY)
    loss[0] = 2.9 if begins == 0 else 0.1
    steps = begins + np.arange(400)
    calm = diagnose(healthy(spec(), loss=loss, loss_steps=steps, lr=np.full(400, 3e-4)))
    assert "divergence" not in [one.rule for one in calm]
    lost = np.where(np.arange(400) < 50, loss, 30.0 + 20 * np.sin(np.arange(400)))
    (found,) = diagnose(healthy(spec(), loss=np.minimum(lost, 60), loss_steps=steps, lr=np.full(400, 3e-4)))
    assert found.rule == "divergence"


def test_a_loss_that_is_mostly_above_that_of_the_untrained_model_is_no_noise() -> None:
    loss = np.array([2.81, 622, 1157, 584, 248, 117, 105, 107, 46.3, 48.1, 113, 143])
    (found,) = diagnose(healthy(spec(), loss=loss, loss_steps=np.arange(12), lr=np.full(12, 3e-4)))
    assert found.title == "1160 at step 2: the loss rose above that of the untrained model."


def test_a_run_that_goes_on_and_rises_above_an_untrained_model_has_diverged_though_it_came_down_again() -> None:
    loss = np.concatenate([[2.7, 19, 42, 50, 30, 20, 14, 11], np.linspace(9, 3, 32)])
    (found,) = diagnose(healthy(spec(), loss=loss, loss_steps=np.arange(100, 140), lr=np.full(40, 1.0)))
    assert found.title == "50 at step 103: the loss rose above that of the untrained model."


def test_a_rate_that_rose_over_the_checkpoint_is_the_cause() -> None:
    rose = np.concatenate([[2.0, 9, 12, 8], np.linspace(6, 4.2, 36)])
    resumed = healthy(spec(), loss=rose, loss_steps=np.arange(200, 240), lr=np.full(40, 3e-4))
    (plain,) = diagnose(resumed)
    assert plain.evidence.startswith("train.lr is 0.0003"), "what came before it is not known"
    (jump,) = diagnose(replace(resumed, rate_before=3e-6))
    assert jump.evidence == "The learning rate jumped from 3e-06 to 0.0003 at step 200."
    assert jump.change.startswith("Undo the jump to 100 times the rate")
    (same,) = diagnose(replace(resumed, rate_before=3e-4))
    assert same.evidence == plain.evidence


TRAINED = np.linspace(3.0, 1.0, 40)
EVALUATED = np.array([9, 19, 29, 39])
RISING = np.where(np.arange(40) < 10, np.linspace(9.0, 3.0, 40), np.linspace(1.0, 2.0, 40))
ENDED = np.where(np.arange(40) < 35, TRAINED, np.nan)


@pytest.mark.parametrize(
    ("held_out", "trained", "found"),
    [
        ([3.0, 2.5, 2.6, 2.7], TRAINED, True),
        ([3.0, 2.5, 2.51, 2.52], TRAINED, False),
        ([3.0, 2.5, 2.6, 2.5], TRAINED, False),
        ([3.0, 2.9, 2.8, 2.7], TRAINED, False),
        ([3.0, 2.5, 2.6, 2.7], TRAINED[::-1], False),
        ([2.5, 2.6, 2.7, 2.8], TRAINED, True),
        ([2.5, 2.6, 2.7, 2.8], RISING, False),
        ([3.0, 2.5, 2.6, 2.7], ENDED, False),
    ],
    ids=["risen", "hardly", "once", "falling", "both rise", "from the first", "both rise once trained", "not a number"],
)
def test_a_held_out_loss_that_rises_while_that_of_training_falls(
    held_out: list[float], trained: np.ndarray, found: bool
) -> None:
    case = Case(spec(), loss_steps=np.arange(40), loss=trained, held_out_steps=EVALUATED, held_out=np.array(held_out))
    said = [finding for finding in diagnose(case) if finding.rule == "overfitting"]
    assert bool(said) == found
    if found:
        low = int(np.argmin(held_out))
        assert f"has risen since step {EVALUATED[low]}" in said[0].title and said[0].tab == "metrics"


def test_over_fitting_asks_for_dropout_only_of_a_model_that_has_any() -> None:
    models = [{"kind": "resnet50"}, {"kind": "vgg16"}]
    cases = [Case(RunSpec.model_validate({"model": model}), loss_steps=np.arange(40), loss=TRAINED) for model in models]
    held_out = np.array([3.0, 2.5, 2.6, 2.7])
    resnet, vgg = (diagnose(replace(c, held_out_steps=EVALUATED, held_out=held_out))[0].change for c in cases)
    assert resnet == "Stop earlier, train on more data, or raise weight decay (train.weight_decay)."
    assert "raise dropout (model.dropout) or weight decay" in vgg and "text" not in vgg


KEPT, GONE = (
    "The checkpoint of its lowest held-out loss is kept.",
    "The checkpoint of its lowest held-out loss is not kept.",
)
WOULD = "A checkpoint at each evaluation (train.checkpoint_every) would keep the best."


@pytest.mark.parametrize(
    ("every", "kept", "said"),
    [
        (10, {20, 40}, KEPT),
        (4, {20, 40}, KEPT),
        (5, {30, 40}, GONE),  # by a version that kept only the newest ones
        (10, set(), GONE),
        (0, set(), WOULD),
        (4, {36, 40}, WOULD),
        (10, None, "train.weight_decay)."),
    ],
)
def test_over_fitting_says_whether_the_best_model_is_kept(every: int, kept: set[int] | None, said: str) -> None:
    plain = spec()
    train = plain.train.model_copy(update={"checkpoint_every": every, "eval_every": 10, "eval_samples": 1})
    made = plain.model_copy(update={"train": train})
    held_out = np.array([3.0, 2.5, 2.6, 2.7])
    case = Case(
        made,
        loss_steps=np.arange(40),
        loss=TRAINED,
        held_out_steps=EVALUATED,
        held_out=held_out,
        checkpoints=None if kept is None else frozenset(kept),
    )
    (one,) = (finding for finding in diagnose(case) if finding.rule == "overfitting")
    assert one.change.endswith(said)


def test_one_evaluation_or_none_says_nothing_of_over_fitting() -> None:
    for count in range(3):
        held_out = np.array([2.0, 2.6, 2.7])[:count]
        case = Case(spec(), loss_steps=np.arange(40), loss=TRAINED, held_out_steps=EVALUATED[:count], held_out=held_out)
        assert "overfitting" not in {finding.rule for finding in diagnose(case)}


@pytest.mark.parametrize(
    ("warmed", "words"), [(0, "or warm it up (train"), (5, "or warm it up over more than 5 steps (train")]
)
def test_a_rate_that_warmed_up_is_to_warm_up_longer(warmed: int, words: str) -> None:
    plain = spec()
    made = plain.model_copy(update={"train": plain.train.model_copy(update={"lr_warmup_steps": warmed})})
    lr = np.full(40, made.train.lr)
    (found, *_) = diagnose(healthy(made, loss=np.where(np.arange(40) < 25, 3.0, np.nan), lr=lr))
    assert words in found.change
