"""Times and sizes of the messages between the stages of a run, from its cost table."""

from __future__ import annotations

from collections.abc import Mapping

from parallel_core.layout import Layout
from parallel_core.plan.units import boundary_elements
from parallel_core.profile.curves import Link
from parallel_core.profile.table import CostTable
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.network import Network
from parallel_core.spec import RunSpec


class MessageTimes:
    """Times and sizes of the messages of one run."""

    def __init__(self, spec: RunSpec, table: CostTable, layout: Layout, network: Network) -> None:
        self._spec, self._table, self._layout, self._network = spec, table, layout, network

    def all(self) -> dict[tuple[int, Kind], tuple[int, int]]:
        """(ns, bytes) of each SEND between stages on different ranks."""
        out, spec, layout = {}, self._spec, self._layout
        edges = boundary_elements(spec)
        for stage in range(1, layout.stages):
            if layout.place(stage) == layout.place(stage - 1):
                continue
            size = edges[layout.stage_units[stage][0]] * spec.element_bytes
            for sender, kind, receiver in ((stage - 1, Kind.SEND_ACT, stage), (stage, Kind.SEND_GRAD, stage - 1)):
                if (link := self._route(sender, receiver, size)) is not None:
                    times, each = self.receivers(sender, receiver), self.send_work(sender, receiver, size)
                    way = link.arrival(size, each if self._table.device == "cpu" else 0.0)
                    out[sender, kind] = round(times * way * 1e9), times * size
        return out

    def bytes_to_each(self, messages: Mapping[tuple[int, Kind], tuple[int, int]], stage: int, kind: Kind) -> int:
        """Bytes of a SEND to each receiving rank."""
        size = messages.get((stage, kind), (0, 0))[1]
        return size // self.receivers(stage, stage + 1 if kind is Kind.SEND_ACT else stage - 1) if size else 0

    def _route(self, sender: int, receiver: int, size: float) -> Link | None:
        return self._network.route(self._layout.place(sender), self._layout.place(receiver), size)

    def receivers(self, stage: int, receiver: int) -> int:
        """Most ranks of stage `receiver` to which one rank of `stage` sends each tensor: widths may differ."""
        width, other = (self._layout.widths[self._layout.place(s)] for s in (stage, receiver))
        return -(-other // width)

    def send_work(self, sender: int, receiver: int, size: int) -> float:
        """Seconds of work of a message on its sender, or on its receiver. After a layer the code for it is cold, which
        the table's `message` measures."""
        link = self._route(sender, receiver, size)
        if link is None or link.work is None:
            return 0.0
        cold = max(0.0, self._table.overhead("message") - link.work.seconds[0])
        return link.work.at(size) + cold + self._table.overhead("operation")
