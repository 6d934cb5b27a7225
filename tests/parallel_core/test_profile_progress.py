"""A profile that hangs is ended. One that takes its time is not: its ranks tell of every layer and message."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from parallel_core.cli import main
from parallel_core.engine.distributed import Rendezvous
from parallel_core.launch import StartCommand
from parallel_core.launch.rank import RankArgs
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.profile import measure as measuring
from parallel_core.profile import oversubscription
from parallel_core.profile.measure import ProfileFailed, measure
from parallel_core.profile.ranks import LEAST_REPEATS, be_rank
from parallel_core.profile.request import ProfileRequest
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core import ranks

MODEL = ModelSpec(layers=2, hidden=32, heads=2, seq=16)
REQUEST = ProfileRequest(samples=(1,), devices=1, seconds=0.02, sizes=(1024, 65536))


class _Counted(Progress):
    """A page that counts, under each place, how often its rank got on."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.place, self.count = "", Counter[str]()
        super().__init__(folder, rank)

    def at(self, step: int, op: str) -> None:
        super().at(step, op)
        self.place = op

    def moved(self) -> None:
        super().moved()
        self.count[self.place] += 1


def _profiled(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Counter[str]:
    """Measures as a rank of a profile does, and returns how often it got on at each place."""
    start: StartCommand = {"folder": str(folder), "devices": [0, 0], "first_rank": 0, "device_kind": "cpu"}  # type: ignore[typeddict-item]
    store = {"host": meeting.host, "port": meeting.port}
    page = _Counted(folder, rank)
    be_rank(RankArgs(start, spec, rank, 0, store, meeting.listen_fd, True), FileSink(folder, rank), page)  # type: ignore[arg-type]
    return page.count


def test_every_layer_and_message_of_a_profile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition has no limit in time: on a slow host, of a large model, it may take minutes."""
    monkeypatch.setattr(oversubscription, "_ENOUGH_S", 0.0)
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": {"dp": 2}, "train": {"global_batch": 2}})
    (tmp_path / "request.json").write_text(json.dumps(asdict(REQUEST)))
    first, _ = ranks.run(spec, _profiled, tmp_path)
    passes, messages = LEAST_REPEATS * len(MODEL.units()), 8 * 4 * len(REQUEST.sizes or ())
    least = {"layers tp=1 recompute=none split=pairs": passes, "shared devices tp=1": passes, "ZeRO": passes}
    for place, count in {**least, "fully_shard": passes, "links": messages}.items():
        assert first[place] >= count, (place, first)


def test_a_profile_that_hangs_is_ended_with_its_stacks() -> None:
    command = (sys.executable, "-m", "tests.parallel_core.hanging_profile")
    with pytest.raises(ProfileFailed, match=r"No rank moved for 0.5 s: rank 0 before its first step") as said:
        measure(MODEL, REQUEST, ranks=1, no_progress_s=0.5, command=command)
    assert said.value.traceback.startswith("rank 0: ") and "in hang" in said.value.traceback


@pytest.mark.parametrize(("given", "limit"), [((), 60.0), (("--no-progress", "4"), 4.0)], ids=str)
def test_the_command_has_the_limit_of_train(
    given: tuple[str, ...],
    limit: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stuck(spec: RunSpec, *, no_progress_s: float, **_: Any) -> None:
        raise ProfileFailed(f"No rank moved for {no_progress_s:g} s.", "the stacks")

    monkeypatch.setattr(measuring, "measure_for", stuck)
    (tmp_path / "spec.json").write_text("{}")
    assert main(["profile", str(tmp_path / "spec.json"), *given]) == 1
    assert capsys.readouterr().err == f"profiling failed: No rank moved for {limit:g} s.\nthe stacks\n"
