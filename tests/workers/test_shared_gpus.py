"""Which GPUs a host has. There is no driver here: a fake NVML module returns what the real library would."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from parallel_core.cli import main
from parallel_core.exits import Exit
from parallel_core.launch import gpu as launch_gpu
from parallel_core.launch import rank as launch_rank
from parallel_core.local import LocalRunner
from parallel_core.observe import gpus as observed
from parallel_core.observe import host
from parallel_core.observe.gpus import AmbiguousGpus, gpus
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from workers import __main__ as worker_main
from workers import devices, ending
from workers.devices import Devices
from workers.settings import Settings
from workers.worker import Worker

GIB = 2**30


@pytest.fixture(autouse=True)
def _counted_by_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of `driver` differ: their numbers mean something only in this order."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def driver(gpus: int, instances: int = 0) -> Any:
    """A fake pynvml with `gpus` GPUs, of which the first is partitioned into `instances` MIG instances."""
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError, nvml.NVML_DEVICE_MIG_ENABLE = RuntimeError, 1
    nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED = 15, 16
    nvml.nvmlDeviceGetCount = lambda: gpus
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=80 * GIB, used=(int(handle) + 1) * GIB)
    nvml.nvmlDeviceGetName = lambda handle: f"GPU {handle:g}"
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=50)
    nvml.nvmlDeviceGetUUID = lambda handle: f"GPU-{'abc'[handle]}{handle}" if handle in (0, 1, 2) else f"MIG-{handle}"

    def mode(handle: int) -> list[int]:
        if handle:
            raise RuntimeError("not supported")
        return [int(instances > 0), 0]

    def part(handle: int, index: int) -> float:
        if not index or index > instances:
            raise RuntimeError("not found")
        return handle + index / 10

    nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetMaxMigDeviceCount = mode, lambda handle: 7
    nvml.nvmlDeviceGetMigDeviceHandleByIndex = part
    return nvml


class Lost(RuntimeError):
    """As pynvml.NVMLError_GpuIsLost."""

    value = 15

    def __str__(self) -> str:
        return "GPU is lost"


LOST = "The driver cannot read it (GPU is lost): reset it, or start the host again."


def losing(nvml: Any, call: str, lost: float) -> None:
    """From here on this call of the driver fails for one GPU, which has fallen off the bus."""
    works = getattr(nvml, call)

    def failing(handle: Any, *more: Any) -> Any:
        if handle == lost:
            raise Lost
        return works(handle, *more)

    setattr(nvml, call, failing)


def reading(nvml: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Devices:
    """The devices of a worker with this driver, read once."""
    monkeypatch.setattr(devices, "open_nvml", lambda: nvml)
    found = Devices(**settings)
    found.look()
    return found


def names() -> list[str]:
    return [gpu.name for gpu in gpus(driver(3))]


def test_each_gpu_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found, _ = reading(driver(2), monkeypatch).listed()
    assert [(one["index"], one["name"], one["memory_total"]) for one in found] == [
        (0, "GPU 0", 80 * GIB),
        (1, "GPU 1", 80 * GIB),
    ]


def test_a_gpu_without_memory_of_its_own_has_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int) -> None:
        raise RuntimeError("not supported")

    nvml = driver(1)
    nvml.nvmlDeviceGetMemoryInfo = none
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (found,), _ = reading(nvml, monkeypatch).listed()
    assert found["memory_total"] == devices.host_memory()[0] and 0 < found["memory_used"] < found["memory_total"]


def test_shares_go_round_the_gpus_and_ranks_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    found, _ = reading(driver(3), monkeypatch, gpu_shares=2).listed()
    assert [one["index"] for one in found] == [0, 1, 2, 3]
    assert [one["name"] for one in found[1:3]] == ["GPU 0, share 1 of 2", "GPU 2, share 2 of 2"]
    assert {one["memory_total"] for one in found} == {40 * GIB}
    seen = [launch_gpu.visible(one["index"], gpus(driver(3))) for one in found]
    assert seen == ["GPU-c2", "GPU-a0", "GPU-c2", "GPU-a0"]


NAMING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")
LOSING = (*NAMING, "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates")


@pytest.mark.parametrize("call", LOSING)
def test_a_gpu_that_is_lost_is_told_and_takes_no_other_along(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others keep their numbers, which ranks know them by, and are still listed."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(3)
    mine = reading(nvml, monkeypatch, gpu_shares=2)
    assert mine.listed()[1] == []
    losing(nvml, call, 1)
    mine.look()
    usable, unusable = mine.listed()
    assert [one["index"] for one in usable] == [0, 2, 3, 5]
    assert [(one["index"], one["kind"], one["name"]) for one in unusable] == [
        (1, "cuda", "GPU 1, share 1 of 2"),
        (4, "cuda", "GPU 1, share 2 of 2"),
    ]
    assert {one["why"] for one in unusable} == {LOST}
    assert launch_gpu.visible(2, gpus(nvml)) == launch_gpu.visible(5, gpus(nvml)) == "GPU-c2"


@pytest.mark.parametrize("call", NAMING)
@pytest.mark.parametrize("given", ["0,1,2", "GPU-a,GPU-b1,GPU-c"])
def test_named_gpus_keep_their_places_while_one_is_lost(given: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    nvml = driver(3)
    losing(nvml, call, 1)
    assert [launch_gpu.visible(i, gpus(nvml)) for i in (0, 2)] == ["GPU-a0", "GPU-c2"]
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    nvml.nvmlDeviceGetName = lambda handle: "GPU"
    assert len(gpus(nvml)) == 3, "a GPU that cannot be read is not one of another model"


PARTS = ("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex")


@pytest.mark.parametrize("given", [None, "0,MIG-0.2,GPU-b,2", "MIG-0.1,MIG-0.2,GPU-b,GPU-c"])
@pytest.mark.parametrize("call", (*NAMING, *PARTS))
def test_instances_of_a_gpu_that_is_lost_keep_their_places(
    call: str, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a run on an instance of another GPU keeps its device, which would else look free under another number."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml = driver(3, instances=2)
    works = getattr(nvml, call)
    mine = reading(nvml, monkeypatch)
    before, named = mine.listed(), mine.gpus
    losing(nvml, call, 0)
    for _ in range(2):
        mine.look()
        usable, unusable = mine.listed()
        assert [(one["index"], one["name"]) for one in usable] == [(2, "GPU 1"), (3, "GPU 2")]
        assert [(one["index"], one["name"]) for one in unusable] == [(0, "GPU 0.1"), (1, "GPU 0.2")]
        assert {one["why"] for one in unusable} == {LOST} and mine.gpus == named
    setattr(nvml, call, works)
    mine.look()
    assert mine.listed() == before and before[1] == []


def test_an_instance_without_a_readable_name_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(2, instances=2)
    losing(nvml, "nvmlDeviceGetUUID", 0.1)
    assert [gpu.name for gpu in gpus(nvml)][1:] == ["MIG-0.2", "GPU-b1"]
    usable, unusable = reading(nvml, monkeypatch).listed()
    assert ([one["index"] for one in usable], [one["why"] for one in unusable]) == ([1, 2], [LOST])


def test_a_gpu_that_is_partitioned_otherwise_moves_no_other_while_the_worker_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(2, instances=2)
    mine = reading(nvml, monkeypatch)
    anew = driver(2, instances=3)
    nvml.nvmlDeviceGetMigDeviceHandleByIndex = lambda handle, index: anew.nvmlDeviceGetMigDeviceHandleByIndex(
        handle, 0 if index == 1 else index
    )
    mine.look()
    usable, unusable = mine.listed()
    assert [(one["index"], one["name"]) for one in usable] == [(1, "GPU 0.2"), (2, "GPU 1")]
    assert [(one["index"], one["why"]) for one in unusable] == [(0, observed.CHANGED)]
    assert [name for name, _ in mine.gpus] == ["MIG-0.1", "MIG-0.2", "GPU-b1"]
    nvml.nvmlDeviceGetCount = lambda: 1
    mine.look()
    assert [one["index"] for one in mine.listed()[0]] == [1] and len(mine.gpus) == 3


@pytest.mark.parametrize("instances", [0, 2])
def test_a_gpu_that_was_lost_when_the_worker_started_comes_back_in_its_place(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But as instances it takes more places than it had."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(2, instances)
    works = nvml.nvmlDeviceGetHandleByIndex
    losing(nvml, "nvmlDeviceGetHandleByIndex", 0)
    mine = reading(nvml, monkeypatch)
    assert [one["index"] for one in mine.listed()[0]] == [1] and mine.gpus[1] == ("GPU-b1", "GPU-b1")
    nvml.nvmlDeviceGetHandleByIndex = works
    mine.look()
    usable, unusable = mine.listed()
    assert [one["name"] for one in usable] == ["GPU 0", "GPU 1"][bool(instances) :]
    assert [one["why"] for one in unusable] == [observed.CHANGED] * bool(instances)
    assert mine.gpus == [("0", "0") if instances else ("GPU-a0", "GPU-a0"), ("GPU-b1", "GPU-b1")]


def test_a_rank_takes_the_gpu_that_its_worker_knows_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank's driver may have lost one and count the others anew."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(3, instances=2)
    known = reading(nvml, monkeypatch).gpus
    losing(nvml, "nvmlDeviceGetMigMode", 0)
    monkeypatch.setattr(launch_gpu, "open_nvml", lambda: nvml)
    assert launch_gpu.take_gpu(2, [2, 3], ahead=False, known=known) == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b1"
    assert launch_gpu.take_gpu(1, [0, 1], ahead=False, known=known) == 2, "on one board"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-0.2"


def test_a_driver_that_answers_nothing_costs_the_devices_and_not_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(2)
    mine = reading(nvml, monkeypatch)
    nvml.nvmlDeviceGetCount = lambda: losing_all()
    mine.look()
    assert mine.listed()[0] == [] and [one["index"] for one in mine.listed()[1]] == [0, 1]
    assert mine.listed()[1][0]["why"] == "The GPUs of this host cannot be counted (GPU is lost)."
    nvml.nvmlDeviceGetCount = lambda: 2
    mine.look()
    assert len(mine.listed()[0]) == 2 and mine.listed()[1] == []


def losing_all() -> int:
    raise Lost


def test_a_driver_that_hangs_keeps_no_heartbeat_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats go on with what was read last; after a while the yard learns that nothing can be used there."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = driver(2)
    monkeypatch.setattr(devices, "open_nvml", lambda: nvml)
    worker = Worker(Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path))
    worker.host.devices.look()
    nvml.nvmlDeviceGetCount = lambda: pytest.fail("a heartbeat asked the driver")
    body = worker.heartbeat.body()
    assert [one["index"] for one in body["devices"]] == [0, 1] and body["unusable"] == []
    assert [name for name, _ in worker.supervisor._gpus()] == ["GPU-a0", "GPU-b1"], "for its ranks"
    monkeypatch.setattr(devices, "SILENT_S", 0.0)
    body = worker.heartbeat.body()
    assert body["devices"] == [] and "has not answered for" in body["unusable"][1]["why"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("1", ["GPU-b1"]),
        ("GPU-b,GPU-a0", ["GPU-b1", "GPU-a0"]),
        ("0,7,1", ["GPU-a0"]),  # as in CUDA, an index that does not exist hides all that follow it
        ("GPU-", []),  # ambiguous: two GPUs match
        ("", []),
        ("-1", []),
    ],
)
def test_only_gpus_that_the_process_was_given_count(
    given: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert names() == found
    monkeypatch.setattr(devices, "open_nvml", lambda: driver(3))
    assert Devices().kind == ("cuda" if found else "cpu")


def test_a_number_that_may_mean_another_gpu_to_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts by bus, CUDA from the fastest: only of equal GPUs are these the same."""
    for order in (None, "FASTEST_FIRST"):
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        if order:
            monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,1")
        with pytest.raises(AmbiguousGpus, match=r"=GPU-a,1 has numbers, .* differ \(GPU 0, GPU 1 and GPU 2\).*UUID"):
            names()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")
        assert names() == ["GPU-b1", "GPU-a0"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        alike = driver(3)
        alike.nvmlDeviceGetName = lambda handle: b"GPU"
        assert [gpu.name for gpu in gpus(alike)] == ["GPU-b1"]


def test_a_worker_whose_gpus_are_not_told_apart_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_main, "open_nvml", lambda: driver(2))
    monkeypatch.setattr(worker_main.preflight, "wait", lambda *_: pytest.fail("it starts"))
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert worker_main.main() == 2
    assert "CUDA_VISIBLE_DEVICES=0 has numbers" in capsys.readouterr().err


@pytest.fixture
def ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has GPUs that differ, and was given one by number."""
    monkeypatch.setattr(host, "open_nvml", lambda: driver(2))
    monkeypatch.setattr(launch_gpu, "open_nvml", lambda: driver(2))
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


@pytest.mark.usefixtures("ambiguous")
@pytest.mark.parametrize("command", ["profile", "bench"])
def test_a_command_whose_gpus_are_not_told_apart_says_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"train": {"device": "cuda"}}')
    assert main([command, str(spec) if command == "profile" else "mfu"]) == 2
    assert capsys.readouterr().err.startswith("CUDA_VISIBLE_DEVICES=0 has numbers")


@pytest.mark.usefixtures("ambiguous")
def test_no_rank_starts_where_gpus_are_not_told_apart(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"train": {"device": "cuda"}})
    with LocalRunner((sys.executable, "-c", "pass")) as yard, pytest.raises(AmbiguousGpus, match="UUID"):
        yard.run(spec, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("ambiguous")
def test_a_rank_whose_gpu_is_not_told_apart_says_so(tmp_path: Path) -> None:
    """On a worker, whose settings may have changed since it started."""
    with pytest.raises(AmbiguousGpus) as raised:
        launch_gpu.take_gpu(0, [0], ahead=False)
    spec = RunSpec.model_validate({"train": {"device": "cuda"}})
    order: Any = {"folder": str(tmp_path)}
    args = launch_rank.RankArgs(order, spec, 0, 0, {"host": "", "port": 0}, None, alone=True)
    code = launch_rank._report(raised.value, args, FileSink(tmp_path, 0))
    told = ending.of_exits(tmp_path, [0], [Exit(0, code, 0.0)], oom_kills=0)
    assert "AmbiguousGpus: CUDA_VISIBLE_DEVICES=0 has numbers" in told.detail


def test_without_the_library_cuda_has_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-a,-1,2")
    assert [gpu.name for gpu in gpus(None)] == ["3", "GPU-a"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpus(None) == []


@pytest.mark.parametrize(("line", "built"), [("cuda: Optional[str] = '13.0'", True), ("cuda = None", False)])
def test_a_build_of_pytorch_for_cpus_has_no_gpus(
    line: str, built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\n{line}\nhip: Optional[str] = None\n")
    monkeypatch.setattr(observed, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert observed.built_for_gpus() == built
    monkeypatch.setattr(host, "open_nvml", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert host.cuda_devices() == ["0"] * built, "else tests that need a GPU run, and a benchmark chooses one"


def test_instances_of_a_gpu_are_devices_on_one_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found_devices, _ = reading(driver(2, instances=2), monkeypatch).listed()
    assert [one["name"] for one in found_devices] == ["GPU 0.1", "GPU 0.2", "GPU 1"]
    found = gpus(driver(2, instances=2))
    assert [launch_gpu.visible(i, found) for i in range(3)] == ["MIG-0.1", "MIG-0.2", "GPU-b1"]
    assert [launch_gpu.board(i, found) for i in range(3)] == ["GPU-a0", "GPU-a0", "GPU-b1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,MIG-0.2")
    assert [gpu.name for gpu in gpus(driver(2, instances=2))] == ["MIG-0.1", "MIG-0.2"]


def test_ranks_of_a_pipeline_launch_kernels_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_gpu, "open_nvml", lambda: driver(2))
    for name, value in {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING", "NCCL_MAX_P2P_NCHANNELS"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    assert launch_gpu.take_gpu(1, [0, 1], ahead=False) == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b1" and os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    # communication through host memory, so nothing waits on the GPU
    assert launch_gpu.take_gpu(2, [0, 1, 2], ahead=True) == 2
    assert not {"CUDA_MODULE_LOADING", "NCCL_MAX_P2P_NCHANNELS"} & {*os.environ}
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    assert launch_gpu.take_gpu(0, [0, 1], ahead=True) == 1
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32" and os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    assert os.environ["NCCL_MAX_P2P_NCHANNELS"] == "4"
    os.environ |= {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_MAX_P2P_NCHANNELS": "8"}
    launch_gpu.take_gpu(0, [0, 1], ahead=True)
    assert os.environ["NCCL_MAX_P2P_NCHANNELS"] == "8", "a value that the user has set is kept"
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 hangs messages" in capsys.readouterr().out


@pytest.mark.parametrize("nvml", [driver(2), None])
def test_a_rank_takes_no_gpu_that_its_host_was_not_given(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_gpu, "open_nvml", lambda: nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launch_gpu.take_gpu(0, [0], ahead=False)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_where_gpus_are_left_out_no_process_sees_one(pytestconfig: pytest.Config) -> None:
    if "not gpu" not in pytestconfig.getoption("markexpr"):
        pytest.skip("GPUs are not left out")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_has_at_least_one_share() -> None:
    assert Settings.from_env({}).gpu_shares == 1
    with pytest.raises(ValueError, match="TRAINYARD_GPU_SHARES='0' must be above 0"):
        Settings.from_env({"TRAINYARD_GPU_SHARES": "0"})
