"""The outline of a model: its layers with their sizes and costs, known without building it. Needs neither NumPy nor
torch.

The engine builds the layers themselves (`parallel_core.models`); spec, layout, planner and dashboard use the outline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from parallel_core.outline.unit_cost import UnitCost
from parallel_core.rules import Proposal, refusal
from parallel_core.rules.stages import dashed_text

if TYPE_CHECKING:
    from parallel_core.model_spec import ModelSpec
    from parallel_core.spec import RunSpec

Target = Literal["tokens", "images", "positions"]
"""The unit of a throughput: `positions` include tokens and the padding after short sentences."""

NO_WIDTHS = Proposal("leave widths empty", "parallel.widths", [None])
WITHOUT_GROUP = (
    Proposal(
        "tp={} with tensor_split=pairs", "parallel.tp", [1], spare=True, also=[("parallel.tensor_split", "pairs")]
    ),
    Proposal("tp={} with sequence=false", "parallel.tp", [1], spare=True, also=[("parallel.sequence", False)]),
)
"""Ways to one tensor rank of a run with a feature that needs several."""


def block_of(unit: str) -> str | None:
    """Returns the block of a layer, which is recomputed as a unit; None for layers whose graph is always kept."""
    return unit.rsplit(".", 1)[0] if unit.startswith("block.") else None


class Outline(ABC):
    """A kind of model with the sizes of `model`. Each kind has a small module."""

    name: ClassVar[str]
    """Display name of the kind."""
    fields: ClassVar[tuple[str, ...]]
    """Fields of ModelSpec that the kind reads, in the order of a form."""
    target: ClassVar[Target]
    """The unit of a run's throughput; the loss is summed over it, without padding."""
    corpora: ClassVar[tuple[str, ...]]
    """Corpora it can be trained on, the default first; 'blob' stands for uploaded text, 'tokens' and 'images' for files
    on workers."""
    batch_norm: ClassVar[bool] = False
    """Whether its layers normalise over the samples of a batch."""
    recurrent: ClassVar[bool] = False
    """Whether its layers are recurrent: their forward keeps a copy of the weights for the backward."""
    constant_ns: ClassVar[tuple[tuple[float, float], tuple[float, float]]] = (22_000.0, 0.25), (24_000.0, 0.95)
    """Of a forward and a backward, for each tensor of parameters and each parameter (`constant_costs`)."""
    whole: ClassVar[str] = ""
    """Why its tensors cannot be split; '' only where `check_tensor` is overridden."""

    def __init__(self, model: ModelSpec) -> None:
        self.model = model

    @property
    def title(self) -> str:
        """Name and size for display."""
        return f"{self.name} {self.model.layers} x {self.model.hidden}"

    @property
    def profiled(self) -> str:
        """The corpus of the runs that a profile of the model measures, whose files are not read (`data.dataset`)."""
        return self.corpora[0]

    @property
    @abstractmethod
    def targets(self) -> int:
        """Largest number of targets of one sample: 1 for an image, `seq` for a text."""

    @abstractmethod
    def sample_bytes(self, real: int) -> int:
        """The bytes of one sample in a rank's memory, targets included; a floating-point number has `real` bytes."""

    def check(self) -> None:  # noqa: B027 - most kinds have no rule of their own
        """Raises the error of a rule where fields of the model do not fit together."""

    def check_tensor(self, tp: int, widths: tuple[int, ...] | None = None) -> None:
        """Raises the error of a rule where the model cannot be split over `tp` tensor ranks: by default always.

        `widths` = those of all stages, if `tp` is of one stage.
        """
        why = f"is not possible with kind={self.model.kind}: {self.whole}"
        if widths:
            raise refusal(("parallel.widths", "model.kind"), f"widths={dashed_text(widths)} {why}; use", NO_WIDTHS)
        raise refusal(
            ("parallel.tp", "model.kind"),
            f"tp={tp} {why}; use",
            Proposal("tp={}", "parallel.tp", [1]),
            *WITHOUT_GROUP,
        )

    def tensor_widths(self) -> list[int]:
        """Numbers of ranks that its tensors can be split over, ascending; only 1 of a kind whose tensors stay whole."""
        return [1]

    @property
    def least_samples(self) -> int:
        """Of a micro-batch, over all replicas: batch norm takes the variance of more than one value of a channel, in
        the smallest picture, too."""
        return 2 if self.batch_norm and min(shape[-1] for shape in self.boundaries()[1:]) == 1 else 1

    @abstractmethod
    def units(self) -> list[str]:
        """Returns the names of its layers in order; the last one is 'head' and computes the loss."""

    @abstractmethod
    def boundaries(self) -> list[tuple[int, ...]]:
        """Returns for each layer the shape of its input, for one sample; () for the first, which takes the sample."""

    @abstractmethod
    def flops(self) -> tuple[int, ...]:
        """Returns the forward FLOPs of one sample in each layer; a matrix product m x n x k counts 2 mnk."""

    @abstractmethod
    def costs(self, spec: RunSpec) -> list[UnitCost]:
        """Returns the memory of each layer on a rank of `spec`, whose model this is."""

    def matrices(self) -> list[dict[str, tuple[int, ...]]]:
        """For each layer the full shapes of its parameters by local name, in order; [] where only sizes are known."""
        return []

    def rows(self) -> list[tuple[int, ...]]:
        """Returns for each layer the rows (first dimensions) of its full parameters, in order."""
        return [tuple(shape[0] for shape in named.values()) for named in self.matrices()]

    def unread(self, unit: str) -> str:
        """Returns the linear layer of `unit` that ends a block and whose product no backward reads ('': none), so that
        a full recomputation leaves it out."""
        return ""

    def by_autograd(self, unit: str) -> int | None:
        """How many parameters of `unit` (None: all) precede those of linear layers, whose gradients W computes."""
        return 0

    def product_flops(self) -> tuple[int, ...]:
        """Returns the FLOPs of one sample in the matrix products of each layer: `flops` but for an embedding, which has
        none."""
        return self.flops()

    def again_flops(self) -> tuple[int, ...]:
        """Returns the FLOPs of one sample in each layer that a full recomputation of its block runs again."""
        return self.flops()

    def core_flops(self) -> int:
        """The FLOPs of one sample in the part of a block that selective recomputation runs again; 0 without one."""
        return 0

    def norm_channels(self) -> list[list[int]]:
        """Returns for each layer the channels of each of its batch norms."""
        return [[] for _ in self.units()]

    @property
    def norms(self) -> int:
        """Number of its batch norms."""
        return sum(map(len, self.norm_channels()))

    def standing(self, units: Collection[str], real: int) -> int:
        """Returns the bytes that a rank's `units` hold throughout the run in addition to parameters: buffers and cached
        tables. A floating-point number has `real` bytes."""
        return 0

    @cached_property
    def readers(self) -> frozenset[str]:
        """Layers that read the samples themselves: inputs or targets."""
        return frozenset({self.units()[0], "head"})

    def shared(self) -> int:
        """Returns the number of parameter elements that `costs` lists twice (tied ones)."""
        return 0
