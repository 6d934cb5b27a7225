"""What the fork server imports before it forks, so that no rank has to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.version import version

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def prewarm() -> None:
    """Imports modules that all ranks use, so that ranks need not import them, and finds the version of that code."""
    import numpy.ma
    import numpy.random  # noqa: F401
    import torch.distributed.checkpoint  # noqa: F401

    version()


def prewarm_compiler() -> None:
    """Imports PyTorch's compiler, which is not used: torch.optim and `fully_shard` import it to configure it, which
    takes a good part of a second."""
    import torch._dynamo
    import torch.optim  # noqa: F401


def imports_compiler(spec: RunSpec) -> bool:
    """Whether the ranks of the run would import PyTorch's compiler."""
    return spec.parallel.zero_backend == "fully_shard"
