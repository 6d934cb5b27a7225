"""Models other than GPTs: published sizes, the digits data set, batch norm, and what is refused."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from parallel_core import combinations
from parallel_core.data.images import Images, digits, enlarging
from parallel_core.model_spec import ModelKind
from parallel_core.models import registry
from parallel_core.models.batchnorm import BatchNorm
from parallel_core.models.microbatch_context import MicroBatchContext
from parallel_core.models.registry import build_unit, parameter_shapes
from parallel_core.outline import KINDS, Outline, outline_of
from parallel_core.plan.units import parameter_count, unit_costs
from parallel_core.spec import ModelSpec, RunSpec, field_errors
from tests.parallel_core.gradients import grad_of
from tests.parallel_core.test_model_parity import MODELS

SMALL = [
    ModelSpec(kind="gnmt", layers=2, hidden=8, seq=6, vocab=30),
    ModelSpec(kind="mlp", layers=2, hidden=20),
    ModelSpec(kind="vgg16", width=2, dropout=0.5),
    ModelSpec(kind="resnet50", width=2, image=64),
]


def test_every_kind_is_known_wherever_kinds_are() -> None:
    """The page of combinations has a row for each kind, and the tests here and in test_model_parity cover it."""
    known: dict[str, set[str]] = {
        "outline/__init__.py": set(KINDS),
        "models/registry.py": set(registry.KINDS),
        "combinations/features.py": set(combinations.KINDS),
        "SMALL of this file": {"gpt", *(model.kind for model in SMALL)},
        "MODELS of test_model_parity.py": {model.get("kind", "gpt") for model in MODELS.values()},
    }
    without = {place: set(get_args(ModelKind)) ^ kinds for place, kinds in known.items()}
    lacking = "; ".join(f"{place}: {', '.join(sorted(kinds))}" for place, kinds in without.items() if kinds)
    assert not lacking, f"add (or drop) these kinds of models, see docs/extend.md: {lacking}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_says_why_its_tensors_stay_whole_or_which_widths_they_can_have(kind: str) -> None:
    """The message of a refusal is made of it."""
    outline = KINDS[kind]
    assert outline.whole or outline.check_tensor is not Outline.check_tensor, "set `whole`, or write check_tensor"


def test_parameters_of_the_published_models() -> None:
    """With three colours and 1000 classes (PyTorch's model zoo)."""
    published = {"width": 64, "image": 224, "channels": 3, "classes": 1000}
    assert parameter_count(ModelSpec.model_validate({"kind": "vgg16", **published})) == 138_357_544
    assert parameter_count(ModelSpec.model_validate({"kind": "resnet50", **published})) == 25_557_032


@pytest.mark.parametrize(("kind", "published"), [("vgg16", 15.47e9), ("resnet50", 4.09e9)])
def test_flops_of_the_published_models(kind: Any, published: float) -> None:
    """Multiply-adds for one image of 224 pixels, as PyTorch's model zoo states them; colours and classes matter
    little.
    """
    flops = sum(outline_of(ModelSpec(kind=kind, width=64, image=224)).flops())
    assert math.isclose(flops / 2, published, rel_tol=0.03)


def test_the_title_tells_a_model_from_one_for_the_digits() -> None:
    """Pages that compare runs name models by it alone."""
    coloured = {"channels": 3, "classes": 7}
    assert outline_of(ModelSpec(kind="mlp")).title == "MLP 4 x 128"
    assert outline_of(ModelSpec(kind="mlp", channels=3, classes=7)).title == "MLP 4 x 128, 3 channels, 7 classes"
    vgg = ModelSpec.model_validate({"kind": "vgg16", **coloured, "classes": 10})
    assert outline_of(vgg).title == "VGG-16 width 16, 32 px, 3 channels"


def _spec_of(model: ModelSpec) -> RunSpec:
    """A run of a model that may be unfit for the built-in corpora."""
    return RunSpec.model_validate({"model": model.model_dump(), "train": {"corpus": outline_of(model).profiled}})


COLOURED = [
    model.model_copy(update={"channels": 3, "classes": 7}) for model in SMALL if "classes" in KINDS[model.kind].fields
]


@pytest.mark.parametrize("model", [*SMALL, *COLOURED], ids=lambda model: f"{model.kind}-{model.classes}")
def test_the_outline_is_what_is_built(model: ModelSpec) -> None:
    outline, shapes = outline_of(model), parameter_shapes(model)
    costs = unit_costs(_spec_of(model))
    assert len(costs) == len(outline.units()) == len(outline.boundaries()) == len(outline.flops())
    for name, cost in zip(outline.units(), costs, strict=True):
        built = [math.prod(shape) for full, shape in shapes.items() if full.startswith(f"{name}.")]
        assert sorted(cost.parameters) == sorted(built)


@pytest.mark.parametrize(
    "model", [*SMALL, *COLOURED, ModelSpec(layers=2, heads=2, hidden=8, activation="swiglu")], ids=str
)
def test_rows_are_those_of_what_is_built(model: ModelSpec) -> None:
    """The number of rows of each parameter, paired with its size."""
    outline, shapes = outline_of(model), parameter_shapes(model)
    costs = unit_costs(_spec_of(model))
    for name, rows, cost in zip(outline.units(), outline.rows(), costs, strict=True):
        built = [(shape[0], math.prod(shape)) for full, shape in shapes.items() if full.startswith(f"{name}.")]
        assert sorted(zip(rows, cost.parameters, strict=True)) == sorted(built)


def test_running_statistics_are_all_that_layers_have_besides() -> None:
    model = ModelSpec(kind="resnet50", width=2)
    outline = outline_of(model)
    for name in outline.units():
        buffers = build_unit(model, name, torch.float64).buffers()
        assert outline.standing([name], 8) == sum(buffer.nbytes for buffer in buffers)


def test_digits_are_there() -> None:
    pixels, labels = digits()
    assert pixels.shape == (1797, 8, 8)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert abs(float(pixels.mean())) < 1e-5
    assert math.isclose(float(pixels.std()), 1, rel_tol=1e-5)


@pytest.mark.parametrize("side", [8, 32, 224])
def test_enlarging_keeps_grey_grey_and_orders_pixels(side: int) -> None:
    weights = enlarging(side)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    assert (np.diff(weights @ np.arange(8)) >= 0).all()
    images, labels = Images(side).take(np.array([3, 3, 5]))
    assert images.shape == (3, 1, side, side)
    assert np.array_equal(images[0], images[1])
    assert labels.tolist() == [3, 3, 5]
    if side == 8:
        np.testing.assert_allclose(images[0, 0], digits()[0][3], rtol=1e-6)


def _norms(channels: int) -> tuple[BatchNorm, nn.BatchNorm2d]:
    mine, torchs = BatchNorm(channels, dtype=torch.float64), nn.BatchNorm2d(channels, dtype=torch.float64)
    mine.passing = MicroBatchContext(0)
    with torch.no_grad():
        for a, b in zip(mine.parameters(), torchs.parameters(), strict=True):
            a.copy_(b.normal_())
    return mine, torchs


@pytest.mark.parametrize("replicas", [1, 2])
def test_batch_norm_over_replicas_is_torchs_over_all_samples(replicas: int) -> None:
    """Both replicas hold the same half of the samples, so what a gather returns is known without a second process."""
    torch.manual_seed(0)
    half = torch.randn(3, 5, 4, 4, dtype=torch.float64) + 2
    mine, torchs = _norms(5)
    if replicas == 2:
        mine.gather = lambda numbers: torch.stack([numbers, numbers])
    inputs = [half.clone().requires_grad_(), torch.cat([half] * replicas).requires_grad_()]
    outs = [mine(inputs[0]), torchs(inputs[1])]
    for out in outs:
        out.square().mul(torch.linspace(0, 1, 4, dtype=torch.float64)).sum().backward()
    torch.testing.assert_close(outs[0], outs[1][:3])
    torch.testing.assert_close(grad_of(inputs[0]), grad_of(inputs[1])[:3])
    for a, b in zip(mine.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(grad_of(a) * replicas, grad_of(b))
    torch.testing.assert_close(mine.running_mean, torchs.running_mean)
    torch.testing.assert_close(mine.running_var, torchs.running_var)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_batch_norm_over_replicas_counts_16_bit_numbers_in_fp32(dtype: torch.dtype) -> None:
    """Values far from 0, where 16 bits leave few digits, and gradients whose sums do not fit into 16 bits."""
    torch.manual_seed(0)
    half = (torch.randn(3, 5, 8, 8, dtype=torch.float64) + 20).to(dtype)
    (mine, torchs), pull = _norms(5), torch.randn(3, 5, 8, 8, dtype=torch.float64).to(dtype) * 1e3
    mine.to(dtype).gather = lambda numbers: torch.stack([numbers, numbers])
    x, true = half.clone().requires_grad_(), torch.cat([half.double()] * 2).requires_grad_()
    out, wanted = mine(x), torchs(true)
    out.backward(pull)
    wanted.backward(torch.cat([pull.double()] * 2))
    digits = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wanted[:3], rtol=digits, atol=digits)
    exact = grad_of(true)
    torch.testing.assert_close(grad_of(x).double(), exact[:3], rtol=digits, atol=digits * float(exact.abs().max()))
    for a, b in zip(mine.parameters(), torchs.parameters(), strict=True):
        mean, exact = grad_of(a), grad_of(b)
        torch.testing.assert_close(mean.double() * 2, exact, rtol=0.01, atol=digits * float(exact.abs().max()))


def test_recomputation_leaves_running_statistics_alone() -> None:
    norm, _ = _norms(2)
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    first = norm(x)
    after = norm.running_mean.clone()
    norm.passing.again = True
    assert torch.equal(norm(x), first)
    assert torch.equal(norm.running_mean, after)
    assert after.abs().sum() > 0


@pytest.mark.parametrize(
    ("rooms", "field", "words"),
    [
        ({"model": {"kind": "vgg16", "image": 40}}, "model.image", "try 32 or 64"),
        ({"model": {"kind": "resnet50"}, "parallel": {"tp": 2}}, "parallel.tp", "convolutions are not split"),
        ({"model": {"kind": "mlp"}, "parallel": {"tp": 2}}, "parallel.tp", "use tp=1"),
        ({"model": {"kind": "gnmt"}, "parallel": {"tp": 2}}, "parallel.tp", "each position needs the one before"),
        ({"model": {"kind": "gnmt", "hidden": 7}}, "model.hidden", "try 8"),
        ({"model": {"kind": "gnmt", "vocab": 3}}, "model.vocab", "no room for the 4 marks of a sentence"),
        ({"model": {"kind": "vgg16", "heads": 8}}, "model.heads", "kind=vgg16 has no field heads; it has width,"),
        ({"model": {"kind": "mlp"}, "train": {"corpus": "stdlib"}}, "train.corpus", "kind=mlp trains on 'digits'"),
        ({"model": {"kind": "gpt"}, "train": {"corpus": "digits"}}, "train.corpus", "'stdlib' or an uploaded text"),
        ({"model": {"kind": "alexnet"}}, "model.kind", "Must be"),
        (
            {"model": {"kind": "resnet50"}, "train": {"global_batch": 4}, "parallel": {"pp": 2, "micro_batches": 4}},
            "parallel.micro_batches",
            "leave one sample, of one pixel in the last layers; try micro_batches=1, 2 or global_batch=8.",
        ),
        ({"model": {"kind": "resnet50"}, "train": {"global_batch": 1}}, "parallel.micro_batches", "try global_batch=2"),
        (
            {"model": {"kind": "mlp", "layers": 1}, "parallel": {"pp": 2, "schedule": "zb-v", "micro_batches": 2}},
            "parallel.chunks",
            "schedule=zb-v needs at least 4 of them; use schedule=1f1b, or more layers.",
        ),
    ],
)
def test_what_cannot_be_is_refused(rooms: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(rooms)
    found = field_errors(caught.value)
    assert list(found) == [field]
    assert words in found[field]


@pytest.mark.parametrize(
    "rooms",
    [
        {"model": {"kind": "resnet50", "image": 64}, "train": {"global_batch": 1}},
        {"model": {"kind": "resnet50"}, "train": {"global_batch": 2}, "parallel": {"dp": 2}},
        {"model": {"kind": "vgg16"}, "train": {"global_batch": 1}},
    ],
)
def test_a_batch_norm_of_two_values_is_one(rooms: dict[str, Any]) -> None:
    """With several pixels or several replicas there are more values; other models have no batch norm."""
    RunSpec.model_validate(rooms)


def test_the_usual_corpus_needs_no_name() -> None:
    assert RunSpec.model_validate({"model": {"kind": "vgg16"}}).train.corpus == "digits"
    assert RunSpec.model_validate({"model": {"kind": "mlp"}, "train": {"lr": 1}}).train.corpus == "digits"
    assert RunSpec.model_validate({}).train.corpus == "stdlib"
