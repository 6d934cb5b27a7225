"""The outline of a model: its layers with their sizes and costs, known without building it. Needs neither NumPy nor
torch.

The engine builds the layers themselves (`parallel_core.models`); spec, layout, planner and dashboard use the outline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from parallel_core.rules import Proposal, refusal
from parallel_core.rules.stages import name

if TYPE_CHECKING:
    from parallel_core.model_spec import ModelSpec
    from parallel_core.spec import RunSpec

ALIGN = 64
"""Alignment of parameters in the flat buffers of the engine, in elements."""

Target = Literal["tokens", "images", "positions"]
"""The unit of a throughput: `positions` include tokens and the padding after short sentences."""


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Memory of one layer on one rank for one micro-batch, in elements of the run's dtype."""

    parameters: tuple[int, ...]
    """Sizes of its parameters."""
    boundary: int
    """Its input, kept even where the layer is recomputed."""
    inner: int
    """Everything else that autograd saves for its backward."""
    passing: int
    """Peak of its backward's temporaries: gradients of activations, and one weight gradient before it is added."""
    gathered: int = 0
    """What W needs in addition to what the layer saves: other ranks' rows (sequence parallelism)."""
    copied: int = 0
    """The part of its input of which the layer saves a copy; the original is freed unless the layer is the first of its
    graph."""
    outgoing: int = 0
    """The gradient of its output, where it is included in `passing`."""
    leaving: int = 0
    """The gradient of its output, where it is not in `passing`: the caller of a graph's last layer holds it."""
    loss: int = 0
    """Peak of the loss's backward, before anything is added to a parameter gradient."""
    product: int = 0
    """The part of `passing` that is a weight gradient before it is added; with a split backward it is made in W."""
    sent: int | None = None
    """What is left of `passing` when the last of its gradients has been added; None = all of it."""
    forward: int = 0
    """Peak of its forward's temporaries, without `original`."""
    original: int = 0
    """The input that it saves a copy of (`copied`), if it is still there at that peak."""
    drawn: int = 0
    """Temporaries of drawing its dropout's mask for the gradient of its output, at the beginning of its backward."""
    put_off: int = 0
    """Addition to `passing` in B of a split backward: inputs of linear layers that a BW would have freed by then."""
    ends: bool = False
    """Whether the layer computes the loss."""
    let_go: int = 0
    """By how much W needs less than was saved: with gathered columns, only the own columns of an output's gradient."""
    aside: int = 0
    """The part of what it saves that W does not need: that of an attention core; all of an LSTM or a convolution."""
    core: int = 0
    """What is freed after the forward and recomputed just before the backward (selective recomputation)."""
    alone: int | None = None
    """Peak of its forward without a graph; None = about what it would save."""
    late: int = 0
    """What a kernel that returns the gradients of all its parameters at once has freed by the time they are added."""

    @property
    def weights(self) -> int:
        """Elements that W needs after B: about what was saved, inputs of linear layers and gradients as large as their
        outputs.

        A layer that computes the loss has no output gradient to keep.
        """
        return self.inner - self.aside + self.gathered - self.let_go + (0 if self.ends else self.boundary)

    @property
    def flat(self) -> int:
        """Elements that its parameters occupy in a flat buffer."""
        return sum(aligned(size) for size in self.parameters)


NO_WIDTHS = Proposal("leave widths empty", "parallel.widths", [None])
WITHOUT_GROUP = (
    Proposal(
        "tp={} with tensor_split=pairs", "parallel.tp", [1], spare=True, also=[("parallel.tensor_split", "pairs")]
    ),
    Proposal("tp={} with sequence=false", "parallel.tp", [1], spare=True, also=[("parallel.sequence", False)]),
)
"""Ways to one tensor rank of a run with a feature that needs several."""


def apart(spec: RunSpec, elements: int) -> int:
    """Returns `elements` in 16-bit runs, for what exists both in 16 bits and in fp32; otherwise 0."""
    return elements if spec.fp32_elements > 1 else 0


def product(spec: RunSpec, matrix: int) -> int:
    """Returns the elements of a linear layer's weight gradient before it is added to a sum of another dtype; 0 where no
    such temporary exists: same dtype, or a layer under torch's fully_shard."""
    return 0 if spec.parallel.zero_backend == "fully_shard" else apart(spec, matrix)


def made(spec: RunSpec, weight: int) -> int:
    """Returns the elements of a weight's gradient as autograd makes it, before it is added; 0 under fully_shard, where
    it becomes the sum itself."""
    return 0 if spec.parallel.zero_backend == "fully_shard" else weight


def widened_rows(width: int) -> int:
    """Returns how many rows of `width` elements a CPU widens to fp32 at a time: as many as fit a core's cache."""
    return max(1, 2**16 // width)


def widened(spec: RunSpec, elements: int, width: int) -> int:
    """Returns the temporaries of widening a tensor of so many elements for sums over its rows (`models.row_sums`), in
    elements of the run's dtype; 0 where torch's own kernels sum."""
    if spec.train.device != "cpu" or spec.fp32_elements == 1:
        return 0
    return spec.fp32_elements * min(elements, widened_rows(width) * width)


FEW_ROWS = 3072
"""Up to so many rows PyTorch's CUDA kernel of an embedding's backward adds chunks of 32 rows to a 16-bit gradient, one
after the other; more are sorted, and summed in fp32 (`embedding_dense_backward_cuda` in ATen/native/cuda/Embedding.cu).
"""


def in_embedding(spec: RunSpec, table: int, out: int, width: int) -> int:
    """Returns what an embedding's backward holds in addition to the gradient of its output [`out` elements, rows of
    `width`]: the gradient of its `table`, in 16-bit runs where that is summed in fp32 (`models.row_sums`) of that size
    and with the rows that are widened for it."""
    block = widened(spec, out, width)
    if spec.train.device == "cuda" and spec.fp32_elements > 1 and out <= FEW_ROWS * width:
        block = spec.fp32_elements * out
    return table * spec.fp32_elements + block if block else made(spec, table)


def at_once(device: str) -> int:
    """Returns how many 64-bit numbers a dropout draws at a time: on a CPU as many as fit a core's cache."""
    return 2**14 if device == "cpu" else 2**20


def drawn(spec: RunSpec, elements: int) -> int:
    """Returns the temporaries of drawing a dropout mask of so many elements (`models.dropout`), in elements of the
    run's dtype.

    These are the mask, one byte per element, and four 64-bit numbers for every four elements, in blocks.
    """
    size = elements + 4 * 8 * min(at_once(spec.train.device), elements // 4)
    return size // spec.element_bytes if spec.model.dropout else 0


def aligned(size: int) -> int:
    """Returns `size` rounded up to a multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


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
            raise refusal(("parallel.widths", "model.kind"), f"widths={name(widths)} {why}; use", NO_WIDTHS)
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
