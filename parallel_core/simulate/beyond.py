"""What of a prediction lies beyond what was timed: it goes on along the last two sizes, or scales a smaller group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parallel_core.analysis.quantities import plural_text
from parallel_core.layout import Layout
from parallel_core.profile.table import CostTable
from parallel_core.simulate.network import ALONE, Network, Pattern, Where
from parallel_core.spec import RunSpec


def beyond(spec: RunSpec, table: CostTable, where: Where = ALONE) -> tuple[str, ...]:
    """What `predict_step` extrapolates for this run, each as the end of a sentence; () if all of it was timed."""
    layout = Layout.of(spec)
    network = Network(layout, table, *where)
    return (*_samples(spec, table), *_groups(spec, table, layout, network), *_devices(table, network))


def _samples(spec: RunSpec, table: CostTable) -> Iterator[str]:
    own, widths = spec.micro_batch_size, set(spec.parallel.tensor_ranks)
    rows = (row for row in table.layers if row.tp in widths)
    sizes = {row.samples for row in rows if row.tp == 1 or row.tensor_split == spec.parallel.cut}
    if sizes and own > max(sizes):
        yield f"micro-batches of {plural_text(own, 'sample')} by those of {max(sizes)}"
    if sizes and own < min(sizes):
        yield f"micro-batches of {plural_text(own, 'sample')} as long as those of {min(sizes)}"


def _groups(spec: RunSpec, table: CostTable, layout: Layout, network: Network) -> Iterator[str]:
    """Groups of more ranks than any that was timed in the same place."""
    places = range(layout.pp)
    if spec.parallel.zero_backend == "fully_shard":
        yield from _larger("replicas", spec.parallel.dp, max((row.ranks for row in table.fully_sharded), default=0))
    else:
        yield from _of(network, "replicas", (pattern for place in places for pattern in network.data(place)))
    yield from _of(network, "tensor ranks", (pattern for place in places for pattern in network.tensor(place)))


def _of(network: Network, what: str, patterns: Iterable[Pattern]) -> Iterator[str]:
    """The largest of these groups beside the largest timed ones, within a host and between hosts."""
    sizes = {(sum(count for _, count in pattern), network.most_timed(pattern)) for pattern in patterns}
    larger = [(ranks, timed) for ranks, timed in sizes if ranks > 1]
    if larger:
        yield from _larger(what, *max(larger, key=lambda one: one[0] / max(1, one[1])))


def _larger(what: str, ranks: int, timed: int) -> Iterator[str]:
    if 0 < timed < ranks:
        yield f"messages among {ranks} {what} by those among {timed}"


def _devices(table: CostTable, network: Network) -> Iterator[str]:
    if network.busy > table.devices:
        yield f"{network.busy} ranks of a host as taking turns on {plural_text(table.devices, 'profiled device')}"
