"""Split layers on two real ranks, compared with the whole layer on one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.layout import Layout
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.tensor.columns import GatheredLinear
from parallel_core.tensor.group import Begun, TensorGroup
from parallel_core.tensor.linear import ColumnLinear, RowLinear
from parallel_core.tensor.sequence import GatheringColumn, Rows
from parallel_core.tensor.vocab import VocabCrossEntropy, VocabEmbedding
from parallel_core.tensor.weights import WeightGradients
from tests.parallel_core import ranks
from tests.parallel_core.gradients import grad_of
from tests.parallel_core.shards import shard

SPEC = RunSpec.model_validate({"parallel": {"tp": 2}})


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(seed))


def on_two_ranks(use: Callable[[TensorGroup, SpanRecorder], Any], tmp_path: Path) -> list[Any]:
    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
        groups, recorder = connect(meeting, rank, Layout.of(spec), "gloo"), SpanRecorder()
        try:
            recorder.begin_step(0)
            return use(TensorGroup(rank, 2, groups.tensor, Scope(recorder)), recorder)
        finally:
            disconnect()

    return ranks.run(SPEC, work, tmp_path)


def _linear(kind: str, full_in: int, full_out: int) -> nn.Linear:
    layer = nn.Linear(full_in, full_out, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(_random(full_out, full_in, seed=1))
        layer.bias.copy_(_random(full_out, seed=2))
    return layer


def test_column_then_row_equals_two_linears(tmp_path: Path) -> None:
    up, down, x = _linear("fc1", 6, 8), _linear("fc2", 8, 6), _random(2, 3, 6)
    whole = x.clone().requires_grad_()
    want = down(torch.tanh(up(whole)))
    want.square().sum().backward()

    def use(group: TensorGroup, recorder: SpanRecorder) -> Any:
        weights, mine = WeightGradients(Scope(recorder)), x.clone().requires_grad_()
        column, row = ColumnLinear(up, group, weights), RowLinear(down, group, weights)
        for parameter in (*column.parameters(), *row.parameters()):
            parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            for split, full, name in ((column, up, "fc1"), (row, down, "fc2")):
                split.weight.copy_(shard(full.weight, f"u.{name}.weight", group.rank, 2))
                assert split.bias is not None
                split.bias.copy_(shard(full.bias, f"u.{name}.bias", group.rank, 2))
        out = row(torch.tanh(column(mine)))
        out.square().sum().backward()
        return recorder.end_step()[1:], [
            out.detach(),
            *(grad_of(t).detach() for t in (mine, column.weight, column.bias, row.weight, row.bias)),
        ]

    for rank, (spans, got) in enumerate(on_two_ranks(use, tmp_path)):
        assert spans["kind"].tolist() == [Kind.TP_COLLECTIVE, Kind.TP_FLIGHT, Kind.TP_COLLECTIVE]
        assert spans["end"][1] == spans["start"][2] > spans["start"][1], "the flight ends where the wait starts"
        rows, columns = slice(4 * rank, 4 * rank + 4), (slice(None), slice(4 * rank, 4 * rank + 4))
        parameters = (
            grad_of(up.weight)[rows],
            grad_of(up.bias)[rows],
            grad_of(down.weight)[columns],
            grad_of(down.bias),
        )
        expected = [want.detach(), grad_of(whole), *parameters]
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


class _Noted(TensorGroup):
    """A group of two of which this is the only process: it notes its collectives in `notes` and moves nothing."""

    def __init__(self) -> None:
        super().__init__(0, 2, None, Scope(SpanRecorder()))
        self.notes: list[str] = []

    def begin_all_reduce(self, tensor: Tensor) -> Begun:
        self.notes.append("begin all_reduce")
        return Begun(tensor, None, 0, 0)

    def begin_gather(self, mine: Tensor) -> Begun:
        self.notes.append("begin gather")
        return Begun(torch.cat([mine, mine], 1), None, 0, 0)

    def begin_scatter(self, tensor: Tensor) -> Begun:
        self.notes.append("begin scatter")
        return Begun(tensor.flatten(0, -2).chunk(2)[0][None].contiguous(), None, 0, 0)

    def end(self, begun: Begun) -> Tensor:
        self.notes.append("end")
        return begun.tensor


def test_a_collective_with_nothing_behind_it_is_one_span(tmp_path: Path) -> None:
    def use(group: TensorGroup, recorder: SpanRecorder) -> Any:
        mine = torch.full((1, 2, 3), float(group.rank))
        whole = group.gather(mine)
        return recorder.end_step()["kind"].tolist()[1:], whole[0, :, 0].tolist(), group.scatter(whole)[0, :, 0].tolist()

    kinds, wholes, shares = zip(*on_two_ranks(use, tmp_path), strict=True)
    assert kinds == ([Kind.TP_COLLECTIVE],) * 2
    assert wholes == ([0.0, 0.0, 1.0, 1.0],) * 2 and shares == ([0.0, 0.0], [2.0, 2.0])


def _column(group: TensorGroup, weights: WeightGradients) -> tuple[nn.Module, Tensor]:
    return ColumnLinear(_linear("fc1", 6, 8), group, weights), _random(2, 4, 6)


def _gathering_column(group: TensorGroup, weights: WeightGradients) -> tuple[nn.Module, Tensor]:
    return GatheringColumn(_linear("fc1", 6, 8), Rows(group, 4), weights), _random(1, 4, 6)


def _gathered(group: TensorGroup, weights: WeightGradients) -> tuple[nn.Module, Tensor]:
    return GatheredLinear(_linear("fc2", 6, 8), group, weights), _random(2, 4, 3)


@pytest.mark.parametrize(
    ("make", "noted"),
    [
        (_column, ["begin all_reduce", "weight", "end"]),
        (_gathering_column, ["begin gather", "end", "begin scatter", "weight", "end"]),
        (_gathered, ["begin scatter", "weight", "end"]),
    ],
    ids=["column", "sequence", "columns"],
)
def test_the_input_gradient_is_reduced_while_the_weight_gradient_is_computed(
    make: Callable[..., tuple[nn.Module, Tensor]], noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, weights = _Noted(), WeightGradients(Scope(SpanRecorder()))
    monkeypatch.setattr(weights, "hand_in", lambda _: group.notes.append("weight"))
    layer, x = make(group, weights)
    out = layer(x.requires_grad_())
    group.notes.clear()
    out.sum().backward()
    assert group.notes == noted


def test_vocabulary_embedding_equals_the_whole_one(tmp_path: Path) -> None:
    full, ids = nn.Embedding.from_pretrained(_random(10, 4), freeze=False), torch.tensor([[0, 4, 5, 9], [5, 5, 1, 0]])
    want = full(ids)
    want.square().sum().backward()

    def use(group: TensorGroup, _: SpanRecorder) -> Any:
        mine = VocabEmbedding(full, group)
        with torch.no_grad():
            mine.weight.copy_(shard(full.weight, "embed.token.weight", group.rank, 2))
        out = mine(ids)
        out.square().sum().backward()
        return [out.detach(), mine.weight.grad]

    for rank, got in enumerate(on_two_ranks(use, tmp_path)):
        torch.testing.assert_close(got, [want.detach(), full.weight.grad[5 * rank : 5 * rank + 5]], rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["usual", "huge"])
def test_vocabulary_cross_entropy_equals_torch(scale: float, tmp_path: Path) -> None:
    """Huge logits would overflow if the maximum were not taken over the whole group. A target of -1 does not count."""
    logits, targets = _random(8, 10) * scale, torch.tensor([0, 4, -1, 5, 9, 7, -1, 2])
    whole = logits.clone().requires_grad_()
    want = F.cross_entropy(whole, targets, reduction="sum", ignore_index=-1)
    want.backward()

    def use(group: TensorGroup, recorder: SpanRecorder) -> Any:
        mine = logits.chunk(2, 1)[group.rank].clone().requires_grad_()
        loss = VocabCrossEntropy(group)(mine, targets)
        loss.backward()
        return [loss.detach(), mine.grad], recorder.end_step()["kind"].tolist()

    for rank, (got, kinds) in enumerate(on_two_ranks(use, tmp_path)):
        want_grad = grad_of(whole).chunk(2, 1)[rank]
        torch.testing.assert_close(got, [want.detach(), want_grad], rtol=1e-12, atol=1e-15)
        assert kinds.count(Kind.TP_COLLECTIVE) == 2, "one maximum, one sum: both are recorded"
