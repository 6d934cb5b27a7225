"""How much processor time other processes took on a run's devices: the busiest device counts, since its rank delays
all.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from parallel_core.engine.device import open_device
from parallel_core.engine.interference import Interference
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.run import _begin_timed
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.host import CpuOthers
from parallel_core.observe.records import FileSink, read_stream
from parallel_core.spec import RunSpec

NAN = float("nan")


@pytest.mark.parametrize(("ranks", "share"), [([0.0, 0.8, 0.0, 0.0], 0.8), ([0.1, NAN], None), ([0.0, 0.0], 0.0)])
def test_the_share_is_that_of_the_device_used_most(
    ranks: list[float], share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over four devices would call a run undisturbed whose steps all waited for one of them."""
    every = Interference(open_device("cpu"), None, len(ranks))
    monkeypatch.setattr(every, "_exchange", lambda mine: [[rank] for rank in ranks])
    assert every.share() == share


def test_a_rank_knows_its_own_share_without_the_others() -> None:
    one = Interference(open_device("cpu"), None, 1)
    assert one.own_share() is None, "nothing was measured yet"
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: 0.25))
    assert one.own_share() == 0.25
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: NAN))
    assert one.own_share() is None, "the system does not report it"


def test_the_share_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    """An attempt that is cut off has no summary, so its share has to be in what it emitted before."""
    spec, device = RunSpec(), open_device("cpu")
    report = Reporter(spec, 0, FileSink(tmp_path, 0), device)
    one = Interference(device, None, 1)
    report.step(0, [], 0.1, None, 0.01, last=True)
    _begin_timed(cast(Trainer, SimpleNamespace(device=device, spec=spec)), report, one, None)
    one._others = cast(CpuOthers, SimpleNamespace(share=lambda: 0.25))
    report.step(1, [], 0.1, None, 0.01, last=True)
    told = [frame.header["series"] for frame in read_stream(tmp_path, 0) if frame.kind == "points"]
    assert [any(name == "cpu_others" for name, _ in each) for each in told] == [False, True]
