"""On which devices a run may be placed: on any, on those of one type, or on those of one worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.fleet.words import model_name

MAX_RUN_ON = 300
"""Characters of a choice as it is written."""
NOTATION = "worker:NAME, type:NAME of a device type, or nothing for any device"


@dataclass(frozen=True)
class RunOn:
    """The devices of one `worker` or of one `device_type`, as `words.model_name` has it; neither is set for any."""

    worker: str = ""
    device_type: str = ""

    @classmethod
    def read(cls, written: str) -> RunOn:
        """The choice of a text: `worker:yard-a`, `type:NVIDIA H100`, or '' for any. Raises ValueError with a message
        for the user."""
        kind, colon, name = written.strip().partition(":")
        if not kind:
            return ANYWHERE
        if kind not in ("worker", "type") or not colon or not name.strip():
            raise ValueError(f"“{written.strip()[:60]}” names no devices; write {NOTATION}.")
        return cls(worker=name.strip()) if kind == "worker" else cls(device_type=name.strip())

    @classmethod
    def stored(cls, written: str) -> RunOn:
        """The choice of a row, which was valid when it was written."""
        try:
            return cls.read(written)
        except ValueError:
            return ANYWHERE

    def __bool__(self) -> bool:
        return self != ANYWHERE

    def __str__(self) -> str:
        """The inverse of `read`."""
        return f"worker:{self.worker}" if self.worker else f"type:{self.device_type}" if self.device_type else ""

    @property
    def text(self) -> str:
        """`worker yard-a`, `NVIDIA H100`, `any device`."""
        return f"worker {self.worker}" if self.worker else self.device_type or "any device"

    @property
    def have(self) -> str:
        """The begin of a sentence on the number of devices: `worker yard-a has`."""
        if self.worker:
            return f"worker {self.worker} has"
        return f"of {self.device_type} the fleet has" if self.device_type else "the fleet has"

    def takes(self, worker: str, types: Collection[str]) -> bool:
        """Whether some devices of a worker of that name, with devices of these types, are among them."""
        return worker == self.worker if self.worker else not self.device_type or self.device_type in types

    def of(self, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of a chosen worker's devices that are among them."""
        return [one for one in devices if not self.device_type or type_of(one) == self.device_type]


ANYWHERE = RunOn()


def type_of(device: Mapping[str, Any]) -> str:
    """The type of a device (workers.contract.Device): the name that it shares with those of the same model."""
    return model_name(device.get("name", ""))
