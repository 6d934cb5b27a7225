"""The relay has its worker's spool bounded between two sends, and ranks write segments that fit its limit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from parallel_core.observe import spool as spool_module
from parallel_core.observe.record_files import decode, segments
from parallel_core.observe.spool import Recorded, Spool, segment_bytes
from tests.workers.spooled import record
from tests.workers.test_full_disk import DEVICES, message
from workers.attempt import Attempt
from workers.contract import AttemptBody
from workers.folder import Folder, Meta
from workers.relay import Relay
from workers.run_commands import read_command
from workers.settings import Settings
from workers.wire import Publisher


@pytest.fixture(autouse=True)
def _at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "LOOK_S", 0.0)


def test_a_relay_that_cannot_drop_says_so_once_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Spool):
        def bound(self, attempts: Iterable[Recorded], *, last: bool = False) -> bool:
            raise OSError("no space")

    relay = Relay(Publisher(Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)), spool=Broken(1))
    for _ in range(3):
        relay._bound()
    assert [line.message for line in caplog.records] == ["spans on disk cannot be dropped; the relay goes on"]


def test_a_relay_drops_for_a_moment_and_all_at_once_while_the_broker_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a pass takes seconds: with a few segments in each, ranks could write faster than the worker drops."""
    monkeypatch.setattr(spool_module, "AT_ONCE_S", 0.0)
    folder = Folder.claim(tmp_path, 5)
    assert folder
    record(folder.path)
    relay = Relay(Publisher(Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)), spool=Spool(1))
    relay.follow(folder, [0])
    relay._obey(0)
    relay._bound()
    assert bare(folder.path) == 1
    relay._away = True
    relay.tell("store", {})
    relay._bound()
    assert bare(folder.path) == 2, "an order waits for no more than that"
    relay._obey(0)
    relay._bound()
    assert bare(folder.path) == len(segments(folder.path, 0)) - 1
    relay.finish(5, AttemptBody(attempt=5, state="ended", outcome="succeeded"))
    relay._obey(0)
    relay._bound()
    assert bare(folder.path) == len(segments(folder.path, 0)), "nobody writes the newest one any more"


def bare(folder: Path) -> int:
    """How many segments have no spans."""
    every = (decode(path.read_bytes(), base) for base, path in segments(folder, 0))
    return sum(all(frame.kind != "spans" for frame in some) for some in every)


def test_ranks_are_told_how_large_their_segments_are_and_which_gpus_there_are(tmp_path: Path) -> None:
    settings = Settings.from_env({"TRAINYARD_WORKER_NAME": "a", "TRAINYARD_SPOOL_BYTES": str(8 << 20)})
    folder, command = Folder.claim(tmp_path, 5), read_command(message(), "a", DEVICES)
    assert folder
    order = Attempt(folder, Meta(), command).start_command(settings, [("MIG-a", "GPU-a")])
    assert order["segment"] == segment_bytes(8 << 20, 2) == 512 << 10
    assert order["gpus"] == [("MIG-a", "GPU-a")]


@pytest.mark.parametrize(
    ("limit", "ranks", "expected"), [(2 << 30, 8, 16 << 20), (64 << 20, 4, 2 << 20), (1, 4, 64 << 10)]
)
def test_segments_are_small_parts_of_the_limit(limit: int, ranks: int, expected: int) -> None:
    assert segment_bytes(limit, ranks) == expected
