"""How much memory a rank's tensors may take: what is left of a device beside all that predictions do not count."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.analysis.quantities import bytes_text

FRAMEWORK = {"cpu": 300 << 20, "cuda": 2 << 30}
"""Bytes of a device of each kind that are kept free of tensors: the framework and the libraries of its rank, on GPUs
also its CUDA context, the buffers of collectives and the allocator's fragments, on CPUs its part of the other processes
of the host."""


@dataclass(frozen=True, slots=True)
class Room:
    """`whole`: bytes of a device, or a cap on what the meter counts; `reserved`: those of it that tensors cannot have,
    0 under a cap, which counts tensors alone."""

    whole: int
    reserved: int = 0

    @classmethod
    def on(cls, device_bytes: int | None, kind: str) -> Room | None:
        """The room on a device of this kind; None if its memory is not known."""
        return cls(device_bytes, FRAMEWORK[kind]) if device_bytes else None

    @property
    def usable(self) -> int:
        """Bytes for tensors; at least 1, because 0 stands for an unknown limit elsewhere."""
        return max(1, self.whole - self.reserved)

    @property
    def text(self) -> str:
        """`11.7 GiB less 300 MiB for the framework`, or the cap: in three digits, as what is left shall be seen."""
        return f"{bytes_text(self.whole, 3)}{self._less}"

    @property
    def each(self) -> str:
        """`4 GiB a device less 300 MiB for the framework`."""
        return f"{bytes_text(self.whole, 3)} a device{self._less}"

    @property
    def _less(self) -> str:
        return f" less {bytes_text(self.reserved)} for the framework" if self.reserved else ""


def device_bytes(tensors: int, cap: int | None, kind: str) -> int:
    """Bytes that a device of this kind must have for a rank whose tensors need `tensors`, at most the run's own cap."""
    return min(tensors, cap or tensors) + FRAMEWORK[kind]


def room_of(device: Room | None, cap: int | None) -> Room | None:
    """The room on a device, or within the run's own cap if that is less; None if neither is known."""
    if cap is None or (device is not None and device.usable <= cap):
        return device
    return Room(cap)
