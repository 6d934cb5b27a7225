"""The GPT, compared with its formulas written out, and its initial values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from parallel_core.models.initial import initial
from parallel_core.models.registry import build_unit, parameter_name, parameter_shapes
from parallel_core.spec import ModelSpec

MODEL = ModelSpec(layers=2, hidden=12, heads=3, seq=7, vocab=19)
Values = dict[str, Tensor]


def _norm(x: Tensor, values: Values, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return scaled * values[f"{name}.norm.weight"] + values[f"{name}.norm.bias"]


def _linear(x: Tensor, values: Values, name: str) -> Tensor:
    return x @ values[f"{name}.weight"].T + values[f"{name}.bias"]


def _attention(x: Tensor, values: Values, name: str) -> Tensor:
    """Softmax of masked scores, head by head; the rows of qkv are stored as (head, q|k|v, dimension)."""
    seq, dim = x.shape[1], MODEL.hidden // MODEL.heads
    mixed = _linear(_norm(x, values, name), values, f"{name}.qkv")
    future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    out = []
    for head in mixed.split(3 * dim, -1):
        q, k, v = head.split(dim, -1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(dim)).masked_fill(future, -math.inf)
        out.append(scores.softmax(-1) @ v)
    return x + _linear(torch.cat(out, -1), values, f"{name}.proj")


def _mlp(x: Tensor, values: Values, name: str) -> Tensor:
    h = _linear(_norm(x, values, name), values, f"{name}.fc1")
    gelu = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    return x + _linear(gelu, values, f"{name}.fc2")


def _loss(tokens: Tensor, targets: Tensor, values: Values) -> Tensor:
    x = values["embed.token.weight"][tokens] + values["embed.position.weight"]
    for i in range(MODEL.layers):
        x = _mlp(_attention(x, values, f"block.{i}.attn"), values, f"block.{i}.mlp")
    logits = _norm(x, values, "head") @ values["head.output.weight"].T
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).sum()


def test_layers_compute_the_formulas() -> None:
    torch.manual_seed(0)
    units = {name: build_unit(MODEL, name, torch.float64, "cpu") for name in MODEL.units()}
    values: Values = {f"{n}.{local}": p for n, unit in units.items() for local, p in unit.named_parameters()}
    with torch.no_grad():
        for value in values.values():
            value.normal_(0.0, 0.5)
    tokens, targets = torch.randint(0, MODEL.vocab, (2, 2, MODEL.seq))
    x = tokens
    for name in MODEL.units()[:-1]:
        x = units[name](x)
    torch.testing.assert_close(units["head"](x, targets), _loss(tokens, targets, values), rtol=1e-12, atol=0)


def test_parameters_have_one_name_each_and_tied_ones_share_it() -> None:
    plain = parameter_shapes(MODEL)
    tied = parameter_shapes(MODEL.model_copy(update={"tied": True}))
    hidden, layers = MODEL.hidden, MODEL.layers
    per_block = 12 * hidden**2 + 13 * hidden
    around = (2 * MODEL.vocab + MODEL.seq) * hidden + 2 * hidden
    assert sum(math.prod(shape) for shape in plain.values()) == layers * per_block + around
    assert plain.keys() - tied.keys() == {"head.output.weight"}
    assert parameter_name(MODEL.model_copy(update={"tied": True}), "head", "output.weight") == "embed.token.weight"


def test_first_values_depend_on_seed_and_name_only() -> None:
    def draw(seed: int, name: str) -> Tensor:
        return initial(MODEL, seed, name, (64, 64))

    assert torch.equal(draw(1, "block.0.mlp.fc1.weight"), draw(1, "block.0.mlp.fc1.weight"))
    assert not torch.equal(draw(1, "block.0.mlp.fc1.weight"), draw(2, "block.0.mlp.fc1.weight"))
    assert not torch.equal(draw(1, "block.0.mlp.fc1.weight"), draw(1, "block.1.mlp.fc1.weight"))


@pytest.mark.parametrize(
    ("name", "std"),
    [("block.0.attn.qkv.weight", 0.02), ("block.1.attn.proj.weight", 0.01), ("block.1.mlp.fc2.weight", 0.01)],
)
def test_first_weights_have_their_spread(name: str, std: float) -> None:
    """Layers that feed a residual sum have 0.02 / sqrt(2 x 2 layers)."""
    assert float(initial(MODEL, 7, name, (200, 200)).std()) == pytest.approx(std, rel=0.02)


def test_building_a_model_does_not_load_the_compiler() -> None:
    """On the meta device torch's own initialisers would import the compiler, which takes more than a second per
    process.
    """
    import subprocess
    import sys

    code = (
        "import sys, torch\n"
        "from parallel_core.spec import ModelSpec\n"
        "from parallel_core.models.registry import parameter_shapes\n"
        "parameter_shapes(ModelSpec())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
