"""What a worker looks at on its host, each in a thread of its own, so that a heartbeat waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from workers.address import Address
from workers.cached_texts import CachedTexts
from workers.contract import HeartbeatBody
from workers.devices import Devices
from workers.disk import Disk
from workers.periodic import Periodic
from workers.settings import Settings
from workers.token_files import TokenFiles
from workers.weights import Weights


@dataclass(frozen=True)
class HostWatch:
    """The threads that look; each keeps what it saw last."""

    devices: Devices
    disk: Disk
    address: Address
    token_files: TokenFiles
    texts: CachedTexts
    weights: Weights

    @classmethod
    def of(cls, settings: Settings) -> Self:
        data = settings.corpora
        return cls(
            Devices(settings.cpu_devices, settings.gpu_shares),
            Disk(settings.checkpoints),
            Address(settings),
            TokenFiles(data),
            CachedTexts(data),
            Weights(data),
        )

    @property
    def threads(self) -> tuple[Periodic, ...]:
        return self.devices, self.disk, self.address, self.token_files, self.texts, self.weights

    def add_seen(self, body: HeartbeatBody) -> None:
        """Adds what need not be known yet, where it is."""
        if self.disk.free is not None:
            body["disk_free"] = self.disk.free
        if self.token_files.known is not None:
            body["token_files"], body["more_token_files"] = self.token_files.known
        if self.weights.known is not None:
            body["weights"] = self.weights.known
        if self.token_files.images is not None:
            body["image_files"], body["more_image_files"] = self.token_files.images
