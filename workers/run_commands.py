"""Checks StartMessages: data that arrives on the queue is not trusted before these checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint.manifest import CheckpointError, Manifest, read
from parallel_core.generation_request import read_request
from parallel_core.launch import GenerationRequest
from parallel_core.spec import RunSpec, field_errors
from workers.checkpoints import Beginning, begin
from workers.contract import Device, Node, StartMessage, task_of
from workers.settings import Settings

_MESSAGE = TypeAdapter(StartMessage)


class Refused(ValueError):
    """The message cannot be carried out here; the text gives the reason, for the user."""


@dataclass(frozen=True)
class RunCommand:
    """This worker's share of an attempt."""

    message: StartMessage
    spec: RunSpec
    node: Node
    beginning: Beginning | None = None
    """Where it begins; None before `with_beginning`, and if its ranks are on several hosts that share no folder: then
    nothing is saved."""
    request: GenerationRequest | None = None
    """Request for text to generate from that checkpoint; None if the run trains or times links."""
    links: bool = False
    """Whether the run times messages between its two hosts instead of training."""

    @property
    def attempt(self) -> int:
        return self.message["attempt"]

    @property
    def ranks(self) -> list[int]:
        first = self.node["first_rank"]
        return list(range(first, first + len(self.node["devices"])))

    @property
    def alone(self) -> bool:
        """Whether all ranks of the run are on this host."""
        return len(self.message["nodes"]) == 1

    @property
    def shares(self) -> bool:
        """Whether all hosts of the run keep checkpoints in a folder that they share."""
        return all(node.get("shares", True) for node in self.message["nodes"])

    @property
    def is_retry(self) -> bool:
        """Whether it resumes from a checkpoint of its own run, which this worker chose and not a user."""
        return self.beginning is not None and self.beginning.own

    def touches(self, run: int) -> bool:
        """Whether its ranks may read or write checkpoints of that run."""
        origin = self.message.get("resume")
        return run == self.message["run"] or (origin is not None and run == origin["run"])

    def reads_text(self, sha256: str) -> bool:
        """Whether its ranks read that uploaded text."""
        return self.spec.train.corpus == f"blob:{sha256}"

    @property
    def opens_store(self) -> bool:
        return self.node["first_rank"] == 0


def attempt_number(raw: Any) -> int:
    """The id of the attempt in a message. Raises Refused if there is none; then no answer is possible either."""
    number = raw.get("attempt") if isinstance(raw, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise Refused("the message names no attempt")
    return number


def read_command(raw: Any, worker: str, devices: Sequence[Device]) -> RunCommand:
    """The command in a message. Raises Refused if it is not a StartMessage, its spec is invalid, or it does not fit
    this host."""
    try:
        message = _MESSAGE.validate_python(_renamed(raw))
    except ValidationError as error:
        raise Refused(f"The start message is malformed: {_first(error)}") from error
    try:
        spec = RunSpec.model_validate(message["spec"])
    except ValidationError as error:
        raise Refused(f"The spec breaks a rule: {_first(error)}") from error
    mine = [node for node in message["nodes"] if node["worker"] == worker]
    if len(mine) != 1:
        raise Refused(f"The attempt was not placed on worker {worker}.")
    links = task_of(message.get("task")) == "links"
    command = RunCommand(message, spec, mine[0], request=None if links else _request(message, spec), links=links)
    if links:
        _check_pair(message)
    _check_ranks(command)
    _check_devices(command, devices)
    return command


def with_beginning(command: RunCommand, settings: Settings, look: Callable[[Path], Manifest] = read) -> RunCommand:
    """Adds where the command begins; `look` reads checkpoints of its own run (see `begin`).

    Raises Refused if the named checkpoint, or the weights that it begins from, are not available here.
    """
    command = _with_checkpoint(command, settings, look)
    if command.beginning is None or command.beginning.resume is None:
        _require_weights(command.spec, settings)
    return command


def _require_weights(spec: RunSpec, settings: Settings) -> None:
    """Raises Refused if the spec names weights from which a run of it cannot begin here."""
    if not (name := spec.train.weights):
        return
    try:
        llama_weights.require_match(llama_weights.path_of(name, settings.corpora), spec.model)
    except (CheckpointError, OSError) as error:
        raise Refused(
            f"Worker {settings.name} cannot begin from the weights in {settings.corpora / name}: {error}"
        ) from error


def _with_checkpoint(command: RunCommand, settings: Settings, look: Callable[[Path], Manifest]) -> RunCommand:
    if not command.alone and (settings.shared_checkpoints is None or not command.shares):
        if command.message.get("resume"):
            raise Refused("A checkpoint is read by one host, or from a folder that all of them share; here is neither.")
        return command
    try:
        return replace(command, beginning=begin(settings, command.message, command.spec, command.opens_store, look))
    except CheckpointError as error:
        raise Refused(str(error)) from error


def _renamed(raw: Any) -> Any:
    """`raw` with the key `task`; a message that an earlier version sent may have it as `wish`."""
    if isinstance(raw, dict) and "task" not in raw and "wish" in raw:
        return {**raw, "task": raw["wish"]}
    return raw


def _request(message: StartMessage, spec: RunSpec) -> GenerationRequest | None:
    asked = message.get("task")
    if not asked:
        return None
    if not message.get("resume") and not spec.train.weights:
        raise Refused("Text is generated from a checkpoint or from weights; the message names none.")
    request, errors = read_request(asked, spec)
    if request is None:
        raise Refused(f"The request for text breaks a rule: {' '.join(errors.values())}")
    return request


def _check_pair(message: StartMessage) -> None:
    """Raises Refused unless a message that times links has two hosts with the same number of devices."""
    given = [len(node["devices"]) for node in message["nodes"]]
    if len(given) != 2 or given[0] != given[1]:
        raise Refused(f"Links are timed between two hosts with as many devices each; the message gives {given}.")


def _check_ranks(command: RunCommand) -> None:
    covered = sorted(
        rank
        for node in command.message["nodes"]
        for rank in range(node["first_rank"], node["first_rank"] + len(node["devices"]))
    )
    if covered != list(range(command.spec.parallel.world)):
        raise Refused(f"The run has {command.spec.parallel.world} ranks, but devices were given for ranks {covered}.")


def _check_devices(command: RunCommand, devices: Sequence[Device]) -> None:
    kind, wanted = command.spec.train.device, command.node["devices"]
    there = {device["index"] for device in devices if device["kind"] == kind}
    if missing := sorted(set(wanted) - there):
        raise Refused(f"Worker {command.node['worker']} has no {kind} device {missing[0]}; it has {sorted(there)}.")
    if len(set(wanted)) != len(wanted):
        raise Refused(f"Two ranks were given the same device: {wanted}.")


def _first(error: ValidationError) -> str:
    field, message = next(iter(field_errors(error).items()))
    return f"{field}: {message}"
