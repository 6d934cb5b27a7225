"""ModelSpec: kind and size of a model. Layers, sizes and rules that follow from it are in the kind's `outline`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from parallel_core import limits
from parallel_core.outline import outline_of
from parallel_core.rules import rule_error
from parallel_core.spec_part import SpecPart

ModelKind = Literal["gpt", "mlp", "vgg16", "resnet50", "gnmt"]
Positions = Literal["learned", "rope"]
Activation = Literal["gelu", "swiglu"]
Norm = Literal["layernorm", "rmsnorm"]
Attention = Literal["fused", "plain"]

BYTES = 256
"""The largest vocabulary whose tokens are bytes, so that text can be read and prompted as it is."""


class ModelSpec(SpecPart):
    """The model of a run. Each kind uses some of the fields (`Outline.fields`); the others must keep their defaults.

    `outline_of(model).units()` is its list of layers; a pipeline may be cut before any but the first.
    """

    kind: ModelKind = "gpt"
    """Kind of model; it decides which of the other fields are used."""
    layers: Annotated[int, Field(ge=1, le=limits.MAX_LAYERS)] = 4
    """Layers; of a GPT, blocks of attention and MLP."""
    hidden: Annotated[int, Field(ge=1, le=limits.MAX_HIDDEN)] = 128
    """Width of a layer."""
    heads: Annotated[int, Field(ge=1, le=limits.MAX_HIDDEN)] = 4
    """Heads of attention; divides `hidden`."""
    kv_heads: Annotated[int, Field(ge=1, le=limits.MAX_HIDDEN)] | None = None
    """Heads of keys and values, each shared by heads / kv_heads queries (Ainslie et al. 2023); None = `heads`."""
    ffn: Annotated[int, Field(ge=1, le=limits.MAX_HIDDEN * 4)] | None = None
    """Width of the MLP; None = 4 x hidden, or for SwiGLU 8/3 x hidden rounded up to a multiple of 8 x heads."""
    seq: Annotated[int, Field(ge=1, le=limits.MAX_SEQ)] = 128
    """Tokens of a sample."""
    vocab: Annotated[int, Field(ge=2, le=limits.MAX_VOCAB)] = 256
    """Number of tokens that the model knows; 256 reads text as bytes."""
    positions: Positions = "learned"
    """How a token's place enters: learned vectors, or rotation of queries and keys (RoPE)."""
    rope_base: Annotated[float, Field(ge=1, le=1e9)] = 10_000.0
    """RoPE rotates pair i of a head's d dimensions by rope_base^(-2i/d) per position."""
    activation: Activation = "gelu"
    """Function between the two layers of an MLP."""
    norm: Norm = "layernorm"
    """Normalisation before attention, MLP and head."""
    attention: Attention = "fused"
    """`plain` saves the s x s matrix of probabilities for the backward, `fused` never materializes it."""
    bias: bool = True
    """Whether linear layers have a bias (Llama's have none)."""
    tied: bool = False
    """Whether the output layer uses the weights of the embedding."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of activations set to 0."""

    width: Annotated[int, Field(ge=1, le=limits.MAX_WIDTH)] = 16
    """Channels of the first convolution: 64 in the papers."""
    image: Annotated[int, Field(ge=1, le=limits.MAX_IMAGE)] | None = None
    """Side of the images in pixels, to which the digits are enlarged; None = 8 for the MLP, else 32."""
    channels: Annotated[int, Field(ge=1, le=limits.MAX_CHANNELS)] = 1
    """Channels of an image: 1 of a grey one, 3 of a coloured one."""
    classes: Annotated[int, Field(ge=2, le=limits.MAX_CLASSES)] = 10
    """Number of classes that the model tells apart; every label is below it."""

    @model_validator(mode="after")
    def _only_fields_of_its_kind(self) -> Self:
        outline = outline_of(self)
        for name, info in type(self).model_fields.items():
            if name not in ("kind", *outline.fields) and getattr(self, name) != info.default:
                own = ", ".join(outline.fields)
                raise rule_error(
                    (f"model.{name}",), f"kind={self.kind} has no field {name}; it has {own}; leave it out."
                )
        outline.check()
        return self

    def units(self) -> list[str]:
        """Returns the names of the layers in order."""
        return outline_of(self).units()
