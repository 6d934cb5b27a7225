"""Common part of PyTorch's contestants: the same layers, initial weights, text and optimizer as in this engine."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parallel_core.bench.turns import Contestant, metered
from parallel_core.data.dataset import open_dataset
from parallel_core.data.sampler import Sampler
from parallel_core.models.initial import initial
from parallel_core.models.registry import build_unit, parameter_name
from parallel_core.spec import RunSpec, TrainSpec


class Logits(nn.Module):
    """The head without its loss: [batch, seq, hidden] -> [batch, seq, vocab]."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.norm, self.output = head.get_submodule("norm"), head.get_submodule("output")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.norm(x))
        return out


def layers(spec: RunSpec, names: list[str] | None = None) -> nn.Sequential:
    """Returns the layers `names` (default: all) in full, with the engine's initial weights."""
    made = nn.Sequential()
    for name in names or spec.model.units():
        unit = build_unit(spec.model, name, torch.float32, "cpu")
        with torch.no_grad():
            for local, parameter in unit.named_parameters():
                full = parameter_name(spec.model, name, local)
                parameter.copy_(initial(spec.model, spec.train.seed, full, tuple(parameter.shape)))
        made.append(Logits(unit) if name == "head" else unit)
    return made


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of logits [batch, seq, vocab] and targets [batch, seq]: a scalar."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(model: nn.Module, train: TrainSpec) -> torch.optim.Optimizer:
    """Returns PyTorch's fused AdamW; sharded and whole parameters are in separate groups, as fusing requires."""
    groups: dict[type, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(type(parameter.data), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": group} for group in groups.values()],
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        eps=train.eps,
        weight_decay=train.weight_decay,
        fused=True,
    )


class Batches:
    """Tokens and targets of the micro-batches `ids` (default: all) of each step, concatenated in that order."""

    def __init__(self, spec: RunSpec, cache: Path, ids: tuple[int, ...] | None = None) -> None:
        self._sampler = Sampler(spec, open_dataset(spec, cache))
        self._ids = ids or tuple(range(spec.parallel.dp * spec.parallel.micro_batches))

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        drawn = self._sampler.micro_batches(step, self._ids)
        return torch.from_numpy(drawn.inputs).flatten(0, 1), torch.from_numpy(drawn.targets).flatten(0, 1)


def trained(model: nn.Module, batches: Batches, train: TrainSpec, replicas: int = 1) -> Contestant:
    """Returns a plain training loop as contestant; its loss is the mean over `replicas`, as in this engine."""
    optimizer = adamw(model, train)

    def step(number: int) -> float:
        tokens, targets = batches(number)
        loss = mean_loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if replicas > 1:
            dist.all_reduce(total)
        return float(total) / replicas

    return Contestant(step, metered(step, model))
