"""What is known of a model without building it: its layers, their sizes and costs. NumPy-free and torch-free.

The engine builds the layers themselves (`parallel_core.models`); spec, layout, planner and dashboard read this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from parallel_core.rules import rule_error

if TYPE_CHECKING:
    from parallel_core.model_spec import ModelSpec
    from parallel_core.spec import RunSpec

ALIGN = 64
"""Elements that the place of a parameter is rounded up to in the flat buffers of the engine."""

Target = Literal["tokens", "images", "positions"]
"""What a speed counts: `positions` are those of tokens and of the padding behind short sentences."""


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Elements of one layer on one rank, for one micro-batch."""

    parameters: tuple[int, ...]
    """Sizes of its parameters."""
    boundary: int
    """Its input, kept even where the layer is recomputed."""
    inner: int
    """What else autograd keeps for its backward."""
    passing: int
    """Most that its backward needs on top: gradients of activations, and one weight gradient before it is added."""
    gathered: int = 0
    """What W needs beyond what the layer keeps: other ranks' rows (sequence parallelism)."""
    copied: int = 0
    """Of its input, what it keeps a copy of and is let go, unless the layer is the first of its graph."""
    outgoing: int = 0
    """The gradient of its output, where `passing` has it."""
    leaving: int = 0
    """The gradient of its output, where `passing` has it not: whoever calls the last layer of a graph holds it."""
    loss: int = 0
    """Most that its backward needs before anything is added to a gradient: the loss."""
    product: int = 0
    """Of that a product for a weight before it is added, which is made later where W comes later."""
    forward: int = 0
    """Most that its forward needs beside what it keeps."""
    drawn: int = 0
    """What its dropout draws a mask with for the gradient of its output, before all else."""
    put_off: int = 0
    """What else its backward needs where W comes later: inputs of linear layers that it would have let go by then."""
    ends: bool = False
    """Makes the loss."""
    let_go: int = 0
    """How much less than it saved W needs: with gathered columns, gradients are the own columns of an output."""
    aside: int = 0
    """What of it no linear layer needs, and W therefore not: an attention core; all of an LSTM or a convolution."""
    core: int = 0
    """What it lets go after the forward and makes again just before its backward (selective recomputation)."""

    alone: int | None = None
    """Most that its forward holds where no graph is kept; None = about what it would keep."""

    late: int = 0
    """Where the gradients of its parameters come all at once, out of a kernel: what that has let go of by then."""

    @property
    def weights(self) -> int:
        """What W needs of it once B is done: about what it saved, inputs of linear layers and gradients as large as
        their outputs. A layer that makes the loss has no gradient of an output to keep."""
        return self.inner - self.aside + self.gathered - self.let_go + (0 if self.ends else self.boundary)

    @property
    def flat(self) -> int:
        """Elements that its parameters take in a flat buffer."""
        return sum(aligned(size) for size in self.parameters)


def apart(spec: RunSpec, elements: int) -> int:
    """As many again where they have 16 bits, of what is made in those beside what it becomes in fp32."""
    return elements if spec.fp32_elements > 1 else 0


def product(spec: RunSpec, matrix: int) -> int:
    """Elements of a linear layer's product for a weight before it is added to the sum, where that has another number
    type: not in a layer that torch's fully_shard made whole."""
    return 0 if spec.parallel.zero_backend == "fully_shard" else apart(spec, matrix)


def made(spec: RunSpec, weight: int) -> int:
    """Elements of a weight's gradient as autograd makes it, before it is added: to nothing under fully_shard, which
    takes it for the sum."""
    return 0 if spec.parallel.zero_backend == "fully_shard" else weight


def at_once(device: str) -> int:
    """Numbers of 64 bits that a dropout draws at a time: on a CPU as many as a core's cache has room for."""
    return 2**14 if device == "cpu" else 2**20


def drawn(spec: RunSpec, elements: int) -> int:
    """In elements, what a dropout of so many draws its mask with (`models.dropout`): the mask, a byte each, and four
    numbers of 64 bits for each four, some at a time."""
    size = elements + 4 * 8 * min(at_once(spec.train.device), elements // 4)
    return size // spec.element_bytes if spec.model.dropout else 0


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


def block_of(unit: str) -> str | None:
    """Layers of the same block are recomputed together; None = a layer whose graph is always kept."""
    return unit.rsplit(".", 1)[0] if unit.startswith("block.") else None


class Outline(ABC):
    """A kind of model at the sizes of `model`. One small file for each kind."""

    name: ClassVar[str]
    """What people call the kind."""
    fields: ClassVar[tuple[str, ...]]
    """Fields of ModelSpec that the kind reads, in the order of a form."""
    target: ClassVar[Target]
    """What the loss is summed over, and what the speed of a run counts."""
    corpora: ClassVar[tuple[str, ...]]
    """Corpora it can be trained on, the usual one first; 'blob' stands for uploaded text, 'tokens' for token files."""
    batch_norm: ClassVar[bool] = False
    """Whether its layers normalise over the samples of a batch."""
    whole: ClassVar[str] = ""
    """Why its tensors cannot be split; '' where they can."""

    def __init__(self, model: ModelSpec) -> None:
        self.model = model

    @property
    def title(self) -> str:
        """Name and size in few words."""
        return f"{self.name} {self.model.layers} x {self.model.hidden}"

    @property
    @abstractmethod
    def targets(self) -> int:
        """Most targets of one sample: 1 of an image, `seq` of a text."""

    @abstractmethod
    def sample_bytes(self, real: int) -> int:
        """Bytes of one sample as a rank holds it, targets included, where a real number has `real`."""

    def check(self) -> None:  # noqa: B027 - most kinds have no rule of their own
        """Raises a rule where its fields do not go together."""

    def check_tensor(self, tp: int, field: str) -> None:
        """Raises a rule where its tensors cannot be split `tp` ways: here of a kind whose tensors stay whole."""
        right = "use tensor=1" if field == "parallel.tp" else "leave widths empty"
        raise rule_error((field, "model.kind"), f"tensor={tp} is not possible: {self.whole}; {right}.")

    @abstractmethod
    def units(self) -> list[str]:
        """Names of its layers in order; the last one is 'head' and makes the loss."""

    @abstractmethod
    def boundaries(self) -> list[tuple[int, ...]]:
        """For each layer the shape of what enters it, for one sample; () for the first, which takes the sample."""

    @abstractmethod
    def flops(self) -> tuple[int, ...]:
        """Forward FLOPs of one sample in each layer; a matrix product m x n x k counts 2 mnk."""

    @abstractmethod
    def costs(self, spec: RunSpec) -> list[UnitCost]:
        """Cost of each layer on a rank of `spec` (whose model this is)."""

    def matrices(self) -> list[dict[str, tuple[int, ...]]]:
        """Of each layer the full shapes of its parameters by local name, in order; [] where only sizes are known."""
        return []

    def rows(self) -> list[tuple[int, ...]]:
        """Of each layer the rows (first dimensions) of its full parameters, in order."""
        return [tuple(shape[0] for shape in named.values()) for named in self.matrices()]

    def core_flops(self) -> int:
        """FLOPs of one sample in the part of a block that selective recomputation runs again; 0 where there is none."""
        return 0

    def standing(self, units: Collection[str], real: int) -> int:
        """Bytes that a rank's `units` have besides parameters, from the first step to the last, where a real number has
        `real`."""
        return 0

    @cached_property
    def readers(self) -> frozenset[str]:
        """Layers that read the samples themselves: inputs or targets."""
        return frozenset({self.units()[0], "head"})

    def shared(self) -> int:
        """Parameters that `costs` lists twice."""
        return 0
