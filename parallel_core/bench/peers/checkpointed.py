"""torch.utils.checkpoint around each block of a plain training loop; embedding and head save theirs, as here."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from parallel_core.bench.peers.common import Batches, layers, trained
from parallel_core.bench.turns import Contestant
from parallel_core.spec import RunSpec


class _Block(nn.Module):
    """Attention and MLP of a block, recomputed for their backward."""

    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(attention, mlp)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return out


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    plain, batches = layers(spec), Batches(spec, cache)
    blocks = [_Block(plain[i], plain[i + 1]) for i in range(1, len(plain) - 1, 2)]
    model = nn.Sequential(plain[0], *blocks, plain[-1])
    return trained(model, batches, spec.train)
