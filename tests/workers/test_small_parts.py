"""Settings, folders, orders and devices of a worker."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint.folder import saving
from parallel_core.known_fields import later
from parallel_core.processes import start_ticks
from tests.workers.harness import tiny
from workers import checkpoints, devices
from workers import folder as folders
from workers.address import Address, own_address
from workers.calibration import Calibration
from workers.contract import START_LIMIT_S, AttemptBody, task_of
from workers.devices import Devices, core_names, cpu_name
from workers.disk import Disk
from workers.folder import KEEP_S, Folder, Meta, unsettled
from workers.relay import Relay
from workers.run_commands import Refused, attempt_number, read_command, with_beginning
from workers.settings import Settings
from workers.supervisor import Supervisor
from workers.wire import Publisher
from workers.worker import Worker

DEVICES = Devices(cpu_devices=3)._read_cpu()


def message(**changes: Any) -> dict[str, Any]:
    node = {"worker": "a", "devices": [0, 2], "first_rank": 0, "address": "127.0.0.1"}
    return {"run": 1, "attempt": 5, "number": 1, "spec": tiny(), "nodes": [node], **changes}


# Settings


@pytest.mark.parametrize(
    "env",
    [
        {"TRAINYARD_WORKER_NAME": "../up"},
        {"TRAINYARD_CPU_DEVICES": "two"},
        {"TRAINYARD_NO_PROGRESS_S": "-1"},
        {"TRAINYARD_SPOOL_BYTES": "2 GiB"},
    ],
)
def test_a_setting_that_cannot_be_used_is_named(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(env.values()))):
        Settings.from_env(env)


@pytest.mark.parametrize("token", ["ty_abc…", "ty_a b", "ty_a\nb"])
def test_a_token_that_no_request_can_carry_is_named_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="TRAINYARD_TOKEN has characters that no token has") as refused:
        Settings.from_env({"TRAINYARD_TOKEN": token})
    assert "ty_a" not in str(refused.value)
    assert Settings.from_env({"TRAINYARD_TOKEN": " ty_A-b_9\n"}).token == "ty_A-b_9"


def test_an_empty_setting_is_none() -> None:
    assert Settings.from_env({"TRAINYARD_CPU_DEVICES": "", "TRAINYARD_WORKER_NAME": ""}).cpu_devices is None


# Folders


def test_an_attempt_is_claimed_once(tmp_path: Path) -> None:
    assert Folder.claim(tmp_path, 4)
    assert Folder.claim(tmp_path, 4) is None


def test_a_folder_remembers(tmp_path: Path) -> None:
    folder = Folder.claim(tmp_path, 4)
    assert folder
    end = AttemptBody(attempt=4, state="ended")
    meta = Meta(None, [0, 1], {0: (10, 20), 1: (11, 21)}, "cancelled", end, {"outcome": "cancelled"})
    folder.save(meta)
    assert Folder(folder.path).load() == meta


def test_processes_of_an_earlier_boot_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pids, and even their start times, may be those of others by now."""
    claimed = Folder.claim(tmp_path, 4)
    assert claimed
    claimed.save(Meta(None, [0], {0: (os.getpid(), start_ticks(os.getpid()))}))
    assert list(claimed.load().processes) == [0]
    monkeypatch.setattr(folders, "boot", lambda: "the next one")
    assert claimed.load() == Meta(None, [0])


def test_a_settled_folder_is_only_a_claim(tmp_path: Path) -> None:
    folder = Folder.claim(tmp_path, 4)
    assert folder
    folder.save(Meta())
    folder.settle()
    assert unsettled(tmp_path) == []
    assert Folder.claim(tmp_path, 4) is None


def test_what_a_settled_attempt_left_of_a_save_goes(tmp_path: Path) -> None:
    worker = Worker(Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path))
    saves = worker.settings.checkpoints
    mine, others = saving(saves / "7-ab", 4, 10), [saving(saves / "7-ab", 41, 10), saving(saves / "8", 5, 10)]
    (mine / "rank-0.bin").write_bytes(b"half")
    worker.supervisor._ends.settle(4)
    assert not mine.exists() and all(path.exists() for path in others)


def test_old_folders_are_removed_and_named_in_the_log_where_the_yard_has_not_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, taken = Folder.claim(tmp_path, 4), Folder.claim(tmp_path, 5)
    assert kept and taken
    kept.save(Meta({"run": 9}))  # type: ignore[arg-type]
    taken.settle()
    past = time.time() - KEEP_S - 60
    for folder in (kept, taken):
        os.utime(folder.path, (past, past))
    assert [folder.attempt for folder in unsettled(tmp_path)] == [4], "this host was perhaps off since then: once more"
    assert [folder.attempt for folder in unsettled(tmp_path)] == [4] and not taken.path.exists()
    assert not caplog.records
    os.utime(kept.path, (past, past))
    assert unsettled(tmp_path) == []
    assert not kept.path.exists() and not taken.path.exists()
    why = "its records are deleted, because the yard has not taken all of them within 7 days"
    assert [record.getMessage() for record in caplog.records] == [f"attempt 4 of run 9: {why}"]


# Orders


def test_an_order_knows_its_ranks() -> None:
    command = read_command(message(), "a", DEVICES)
    assert (command.attempt, command.ranks, command.alone, command.opens_store) == (5, [0, 1], True, True)


@pytest.mark.parametrize("raw", [None, [], {}, {"attempt": "5"}, {"attempt": True}, {"attempt": 0}])
def test_a_message_without_a_number_is_refused(raw: Any) -> None:
    with pytest.raises(Refused):
        attempt_number(raw)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes": []}, "not placed on worker a"),
        ({"nodes": "everywhere"}, "malformed"),
        ({"spec": {**tiny(), "command": "rm"}}, "command"),
        ({"spec": tiny(dp=4)}, "4 ranks"),
        ({"spec": {**tiny(), "train": {**tiny()["train"], "device": "cuda"}}}, "no cuda device 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        read_command(message(**changes), "a", DEVICES)


# Devices


def test_a_second_thread_of_a_core_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "before", lambda core, usable: [core - 2] if core >= 2 else [])
    names = core_names([0, 1, 2, 3])
    assert [name.removeprefix(cpu_name()) for name in names.values()] == [
        ", core 0",
        ", core 1",
        ", core 2 (shares core 0)",
        ", core 3 (shares core 1)",
    ]


def test_devices_share_the_hosts_memory() -> None:
    assert [device["index"] for device in DEVICES] == [0, 1, 2]
    if DEVICES[0]["kind"] == "cpu":
        assert len({device["memory_total"] for device in DEVICES}) == 1
    assert all(0 < device["memory_used"] <= device["memory_total"] for device in DEVICES)


def test_a_disk_says_what_is_left_for_a_folder_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "not" / "there")
    disk.look()
    assert 0 < (disk.free or 0) <= shutil.disk_usage(tmp_path).total
    before = disk.free

    def silent(path: Path) -> None:
        raise OSError(path)

    monkeypatch.setattr(shutil, "disk_usage", silent)
    disk.look()
    assert disk.free == before


# The broker


def test_a_broker_that_is_back_is_found_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's own retry interval grows to 30 s. Only the sleeping is skipped here: the connection attempts are real
    and fail.
    """
    from workers.celery import RETRY_S, app

    waits: list[float] = []

    def refused(error: Exception, wait: float) -> None:
        waits.append(wait)
        if len(waits) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: None)
    with app.connection_for_read("redis+socket:///nowhere/redis.sock") as broker, pytest.raises(KeyboardInterrupt):
        broker.ensure_connection(refused, None)
    assert waits[0] == RETRY_S[0]
    assert max(waits) == RETRY_S[-1] <= 3


# Several hosts


def test_checkpoints_of_many_deleted_runs_go_one_after_another(tmp_path: Path) -> None:
    """The orders only set them aside: a thread for each would delete what all the others delete, too."""
    settings = Settings("a", "unix://x", tmp_path, tmp_path)
    before = threading.enumerate()
    for run in (1, 2, 3):
        (settings.checkpoints / str(run) / "step-00000010").mkdir(parents=True)
    for run in (1, 2, 4):
        checkpoints.drop(settings, run)
    assert threading.enumerate() == before
    assert len(list(settings.checkpoints.glob(f"{checkpoints.DROPPED}*"))) == 2
    checkpoints.Dropped(settings.checkpoints).look()
    assert [path.name for path in settings.checkpoints.iterdir()] == ["3"]


def test_an_address_is_found_where_none_was_told(tmp_path: Path) -> None:
    named = Settings("a", "redis://:secret@127.0.0.1:6379", tmp_path, tmp_path, address="gpu-1.example.org")
    assert own_address(named) == "gpu-1.example.org"
    for url in ("unix:///run/redis.sock", "redis://127.0.0.1:6379"):
        assert own_address(Settings("a", url, tmp_path, tmp_path)) == socket.gethostname()


def test_an_address_stays_while_no_name_server_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    address = Address(Settings("a", "rediss://yard.example.org:6380", tmp_path, tmp_path))
    address.look()
    assert address.known == socket.gethostname()
    address.known = "10.0.0.7"
    address.look()
    assert address.known == "10.0.0.7"


def test_a_folder_of_checkpoints_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="TRAINYARD_CHECKPOINTS"):
        Settings.from_env({"TRAINYARD_CHECKPOINTS": str(tmp_path / "file" / "below")})
    kept = Settings.from_env({"TRAINYARD_CHECKPOINTS": str(tmp_path / "shared")})
    assert kept.checkpoints == tmp_path / "shared" and kept.checkpoints.is_dir()


def test_a_host_that_others_cannot_reach_says_so_in_its_heartbeat(tmp_path: Path) -> None:
    env = {"TRAINYARD_HOME": str(tmp_path)}
    for name, text, across in (("a", "0", False), ("b", "1", True), ("c", "", True)):
        settings = Settings.from_env(env | {"TRAINYARD_WORKER_NAME": name, "TRAINYARD_ACROSS_HOSTS": text})
        assert Worker(settings).heartbeat.body()["across_hosts"] is across
    with pytest.raises(ValueError, match="TRAINYARD_ACROSS_HOSTS='no' must be 0"):
        Settings.from_env(env | {"TRAINYARD_ACROSS_HOSTS": "no"})


def test_a_worker_announces_what_it_can_do_instead_of_training(tmp_path: Path) -> None:
    settings = Settings.from_env({"TRAINYARD_HOME": str(tmp_path)})
    body = Worker(settings).heartbeat.body()
    assert body["tasks"] == ["generate", "links"] and body["fields"] == later()


@pytest.mark.parametrize(
    ("task", "kind"), [(None, ""), ({}, ""), ({"links": ["a", "b"]}, "links"), ({"prompt": [1]}, "generate")]
)
def test_a_task_is_told_from_its_request(task: dict[str, Any] | None, kind: str) -> None:
    assert task_of(task) == kind


def over_two(**changes: Any) -> dict[str, Any]:
    nodes = [
        {"worker": name, "devices": [0], "first_rank": rank, "address": "127.0.0.1"} for rank, name in enumerate("ab")
    ]
    return message(nodes=nodes, **changes)


@pytest.mark.parametrize("key", ["task", "wish"])  # messages of an earlier version have it as wish
def test_links_are_timed_between_two_hosts_with_as_many_devices(key: str) -> None:
    task = {"links": ["a", "b"]}
    command = read_command(over_two(**{key: task}), "b", DEVICES)
    assert command.links and command.request is None
    with pytest.raises(Refused, match="between two hosts with as many devices each; the message gives \\[2\\]"):
        read_command(message(**{key: task}), "a", DEVICES)


def test_ranks_on_several_hosts_save_where_all_of_them_can(tmp_path: Path) -> None:
    alone = Settings("b", "unix://x", tmp_path, tmp_path)
    command = read_command(over_two(), "b", DEVICES)
    assert (command.ranks, command.opens_store, command.alone) == ([1], False, False)
    assert with_beginning(command, alone).beginning is None
    resuming = read_command(over_two(resume={"run": 1, "step": 4}), "b", DEVICES)
    with pytest.raises(Refused, match="folder that all of them share"):
        with_beginning(resuming, alone)
    shared = Settings("b", "unix://x", tmp_path, tmp_path, shared_checkpoints=tmp_path / "shared")
    beginning = with_beginning(command, shared).beginning
    assert beginning is not None and beginning.folder == tmp_path / "shared" / "1"


def test_nothing_is_saved_where_one_of_the_hosts_does_not_share_the_folder(tmp_path: Path) -> None:
    """The engine would refuse a run in which only some ranks save, so the decision depends on all hosts."""
    mixed = over_two()
    for node, shares in zip(mixed["nodes"], (True, False), strict=True):
        node["shares"] = shares
    sharing = Settings("a", "unix://x", tmp_path, tmp_path, shared_checkpoints=tmp_path / "shared")
    assert with_beginning(read_command(mixed, "a", DEVICES), sharing).beginning is None
    assert with_beginning(read_command(mixed, "b", DEVICES), Settings("b", "x", tmp_path, tmp_path)).beginning is None
    mixed["nodes"][1]["shares"] = True
    assert with_beginning(read_command(mixed, "a", DEVICES), sharing).beginning is not None


def test_a_host_waits_for_the_store_as_long_as_the_controller_does(tmp_path: Path) -> None:
    """The host of rank 0 may be downloading a large corpus; only the controller knows how long that may take, so the
    other host does not give up by itself.
    """
    settings = Settings("b", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)
    supervisor = Supervisor(settings, Relay(Publisher(settings)), lambda: DEVICES, Calibration(tmp_path, "cpu"))
    command = read_command(over_two(), "b", DEVICES)
    folder = Folder.claim(settings.attempts, command.attempt)
    assert folder is not None
    with pytest.MonkeyPatch.context() as patch:
        supervisor._accepted(folder, command)
        later = time.monotonic() + 10 * START_LIMIT_S
        patch.setattr(time, "monotonic", lambda: later)
        supervisor._launch_if_ready(supervisor._live[command.attempt])
    assert not supervisor._live[command.attempt].meta.stop
    supervisor._control({"kind": "store", "attempt": command.attempt, "host": "a", "port": 4711})
    assert supervisor._live[command.attempt].ready()


def test_that_ranks_run_is_told_again_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not before all of them have a process."""
    settings = Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)
    relay, told = Relay(Publisher(settings)), list[tuple[str, str]]()
    supervisor = Supervisor(settings, relay, lambda: DEVICES, Calibration(tmp_path, "cpu"))
    command = read_command(over_two(), "a", DEVICES)
    folder = Folder.claim(settings.attempts, command.attempt)
    assert folder is not None
    supervisor._accepted(folder, command)
    monkeypatch.setattr(relay, "tell", lambda kind, body: told.append((kind, body["state"])))
    for ranks in (command.ranks[:0], command.ranks):
        for rank in ranks:
            supervisor._live[command.attempt].record(rank, (1, 1))
        supervisor._control({"kind": "up", "attempt": command.attempt})
    assert told == [("attempt", "running")]
