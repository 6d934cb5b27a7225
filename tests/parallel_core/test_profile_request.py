"""What a profile is asked to measure, and which request covers which other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from parallel_core.launch.rank import RankArgs
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.profile import measure, ranks
from parallel_core.profile.request import ProfileRequest, measured_with, other_kernels
from parallel_core.simulate.cost_requirements import CannotPredict
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec
from tests.parallel_core.tables import table


def spec_of(batch: int = 16, **parallel: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"model": {"attention": "plain"}, "parallel": parallel, "train": {"global_batch": batch}}
    )


@pytest.mark.parametrize(
    ("other", "takes_in_plain"),
    [
        (spec_of(tp=2, tensor_split="columns"), True),
        (spec_of(recompute="selective"), True),
        (spec_of(batch=32), False),
    ],
)
def test_a_request_takes_in_what_it_measures_anyway(other: RunSpec, takes_in_plain: bool) -> None:
    plain = spec_of()
    assert measured_with(other, other) and not measured_with(other, plain)
    assert measured_with(plain, other) == takes_in_plain
    assert measured_with(spec_of(recompute="full", dp=2), plain)
    assert measured_with(spec_of(tp=2, sequence=True), plain), "every profile of a GPT times sequence parallelism"


def exact(device: str, deterministic: bool = True) -> RunSpec:
    return RunSpec.model_validate({"train": {"device": device, "deterministic": deterministic}})


def test_deterministic_kernels_are_others_on_gpus_alone() -> None:
    assert other_kernels(exact("cuda")) and not other_kernels(exact("cuda", deterministic=False))
    assert not other_kernels(exact("cpu")), "a step there consists of the same operations"


def test_a_run_is_predicted_by_a_table_of_its_kernels() -> None:
    """A worker of an older version answers a request for deterministic kernels with a table of the usual ones."""
    usual = table(exact("cuda").model, device="cuda")
    assert predict_step(exact("cuda", deterministic=False), usual).seconds
    assert predict_step(exact("cuda"), usual.model_copy(update={"deterministic": True})).seconds
    with pytest.raises(CannotPredict, match=r"another train\.deterministic"):
        predict_step(exact("cuda"), usual)
    assert predict_step(exact("cpu"), table(exact("cpu").model)).seconds


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_profile_uses_the_kernels_of_its_run(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(measure, "measure", lambda *_, **more: given.append(more))
    measure.measure_for(exact("cuda", deterministic), ranks=1)
    assert (given[0]["deterministic"], given[0]["device"], given[0]["precision"]) == (deterministic, "cuda", "fp32")


def test_a_profiling_rank_chooses_the_kernels_before_it_opens_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened(Exception):
        pass

    def opened(*_: object) -> None:
        done.append("opened")
        raise Opened

    done: list[str] = []
    monkeypatch.setattr(ranks, "use_deterministic_algorithms", lambda: done.append("chosen"))
    monkeypatch.setattr(ranks, "open_device", opened)
    (tmp_path / "request.json").write_text(json.dumps(asdict(ProfileRequest())))
    for deterministic, order in ((True, ["chosen", "opened"]), (False, ["opened"])):
        done.clear()
        start: Any = {"folder": str(tmp_path), "devices": [0], "first_rank": 0, "device_kind": "cuda"}
        args = RankArgs(start, exact("cuda", deterministic), 0, 0, {"host": "", "port": 0}, None, True)
        with pytest.raises(Opened):
            ranks.be_rank(args, FileSink(tmp_path, 0), Progress(tmp_path, 0))
        assert done == order
