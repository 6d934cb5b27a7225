"""Outlines of model kinds: layers, sizes and costs without torch, for all but the engine. One small module each."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from parallel_core.outline.base import Outline, block_of
from parallel_core.outline.gnmt import GnmtOutline
from parallel_core.outline.gpt import GptOutline
from parallel_core.outline.mlp import MlpOutline
from parallel_core.outline.resnet50 import ResNet50Outline
from parallel_core.outline.unit_cost import UnitCost, aligned
from parallel_core.outline.vgg16 import Vgg16Outline

if TYPE_CHECKING:
    from parallel_core.model_spec import ModelSpec

__all__ = ["BUILT_IN_CORPORA", "FILE_CORPORA", "KINDS", "Outline", "UnitCost", "aligned", "block_of", "outline_of"]

KINDS: dict[str, type[Outline]] = {
    "gpt": GptOutline,
    "mlp": MlpOutline,
    "vgg16": Vgg16Outline,
    "resnet50": ResNet50Outline,
    "gnmt": GnmtOutline,
}
FILE_CORPORA = ("tokens", "images")
"""Kinds of files in a worker's data folder: a spec names one as `<kind>:<name>`."""
BUILT_IN_CORPORA = tuple(
    dict.fromkeys(name for kind in KINDS.values() for name in kind.corpora if name not in ("blob", *FILE_CORPORA))
)
"""Names of the corpora that are part of an installation."""


@lru_cache(maxsize=1024)
def outline_of(model: ModelSpec) -> Outline:
    """Returns the outline of this model."""
    return KINDS[model.kind](model)
