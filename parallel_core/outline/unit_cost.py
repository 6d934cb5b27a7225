"""What one layer costs a rank in memory, counted in elements."""

from __future__ import annotations

from dataclasses import dataclass

ALIGN = 64
"""Alignment of parameters in the flat buffers of the engine, in elements."""


def aligned(size: int) -> int:
    """Returns `size` rounded up to a multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


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
