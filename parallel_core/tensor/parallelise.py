"""Replaces layers of a model unit by their shards."""

from __future__ import annotations

from torch import nn

from parallel_core.models.dropout import Dropout
from parallel_core.models.layers import Positions
from parallel_core.models.loss import CrossEntropySum
from parallel_core.outline.splits import ROW, VOCAB, TensorSplit
from parallel_core.tensor.columns import GatheredLinear
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.linear import ColumnLinear, RowLinear
from parallel_core.tensor.sequence import (
    GatheringColumn,
    Rows,
    ScatteringEmbedding,
    ScatteringRow,
    SharedPositions,
)
from parallel_core.tensor.vocab import VocabCrossEntropy, VocabEmbedding
from parallel_core.tensor.weights import WeightGradients


def parallelise(
    unit: nn.Module,
    group: TensorGroup,
    weights: WeightGradients,
    how: TensorSplit = "pairs",
    rows: Rows | None = None,
) -> nn.Module:
    """Replaces the layers of `unit` that can be split by this rank's shard; `rows` is set under sequence parallelism.

    Linear layers are replaced over a group of one too, so that `weights` gets the gradients of their parameters.
    """
    if rows is not None:
        return _share_rows(unit, rows, weights)
    second = RowLinear if how == "pairs" else GatheredLinear
    for name, layer in list(unit.named_children()):
        if isinstance(layer, nn.Linear):
            split = second if name in ROW and group.size > 1 else ColumnLinear
            setattr(unit, name, split(layer, group, weights))
        elif group.size == 1:
            continue
        elif name in VOCAB and isinstance(layer, nn.Embedding):
            setattr(unit, name, VocabEmbedding(layer, group))
        elif isinstance(layer, CrossEntropySum):
            setattr(unit, name, VocabCrossEntropy(group))
    return unit


def _share_rows(unit: nn.Module, rows: Rows, weights: WeightGradients) -> nn.Module:
    """`parallelise` under sequence parallelism, where layers that are not split work on some of the rows."""
    for name, layer in list(unit.named_children()):
        if isinstance(layer, nn.Linear):
            split = ScatteringRow if name in ROW else GatheringColumn
            setattr(unit, name, split(layer, rows, weights))
        elif isinstance(layer, Positions):
            setattr(unit, name, SharedPositions(layer, rows))
        elif name in VOCAB and isinstance(layer, nn.Embedding):
            setattr(unit, name, ScatteringEmbedding(layer, rows))
        elif isinstance(layer, CrossEntropySum):
            setattr(unit, name, VocabCrossEntropy(rows.group))
        elif isinstance(layer, Dropout):
            layer.held = rows.held
    return unit
