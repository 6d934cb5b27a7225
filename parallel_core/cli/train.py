"""`python -m parallel_core train`: trains as a spec says, on this host, and prints the steps and what was found."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.analysis.meters import Work, values_of
from parallel_core.analysis.quantities import flops_text, percent_text, plural_text
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match
from parallel_core.cli import own_text, stop
from parallel_core.cli.common import (
    CommandError,
    Subparsers,
    add_command,
    add_no_progress,
    add_spec,
    checkpoint_of,
    read_spec,
    require_cores,
)
from parallel_core.cli.numbers import places, whole
from parallel_core.cli.output import say
from parallel_core.faults import sentences
from parallel_core.file_lock import UNSUPPORTED, FileLock
from parallel_core.layout import Layout
from parallel_core.limits import SPOOL_BYTES
from parallel_core.local import Interrupted, LocalRunner
from parallel_core.observe.record_files import Frame
from parallel_core.outcome import Outcome, points
from parallel_core.outline import outline_of
from parallel_core.run_findings import case_of
from parallel_core.run_findings import sentences as findings
from parallel_core.spec import RunSpec


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    train = add_command(
        commands,
        "train",
        "train as the spec says, on this host",
        "examples/pp2.json --out records",
        "examples/pp2.json --resume records --out further",
        "examples/pp2.json --inject straggler:rank=1,factor=3 --out broken",
    )
    add_spec(train)
    train.add_argument("--out", type=Path, help="folder for records and logs (default: run-<date>-<time>)")
    train.add_argument(
        "--devices", type=places, metavar="N,N", help="device of each rank, e.g. 0,1 (default: 0 to ranks - 1)"
    )
    own_text.add(train)
    train.add_argument("--resume", type=Path, help="go on from a checkpoint, or a run's newest; any layout")
    add_no_progress(train)
    spool_help = "bytes of records above which the oldest spans go, never series or logs (default: %(default)d)"
    train.add_argument("--spool-bytes", type=whole(1), default=SPOOL_BYTES, metavar="BYTES", help=spool_help)
    inject_help = "break the run on purpose, e.g. straggler:rank=1,factor=2; may stand several times"
    train.add_argument("--inject", action="append", default=[], metavar="FAULT", help=inject_help)
    train.add_argument("--json", action="store_true", help="print the end as JSON; the steps go to stderr")
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        spec, outcome, resumed = _trained(options)
    if options.json:
        print(json.dumps(_as_json(spec, outcome, resumed)))
    return 0 if outcome.ok else 1


def _trained(options: argparse.Namespace) -> tuple[RunSpec, Outcome, int]:
    """Trains, and prints what happens and what was found. Returns the spec, the outcome, and the steps done in the
    checkpoint that it went on from (0 without one)."""
    text = own_text.name_of(options.text) if options.text else None
    spec = read_spec(options.spec, inject=options.inject, corpus=text)
    for sentence in sentences(spec.inject):
        print(f"broken on purpose. {sentence}")
    _require_devices(spec, options.devices)
    resume, resumed = _checkpoint(options.resume, spec) if options.resume else (None, 0)
    if resume is None:
        own_text.require_weights(spec, options.corpora, options.text)
    with own_text.folder_of(spec, options.text, options.corpora) as corpora, _claimed(options.out) as folder:
        _require_room(folder, resume)
        outcome = _run(spec, folder, resume, corpora, options, Shown(outline_of(spec.model).target, resumed))
    print(_ending(outcome, spec))
    if outcome.ok or outcome.diverged:
        print("\n".join(findings(case_of(spec, outcome))))
    return spec, outcome, resumed


def _as_json(spec: RunSpec, outcome: Outcome, resumed: int) -> dict[str, Any]:
    """The end of a run for scripts, by the names of a run's summary in the API; None for what was not measured.
    `resumed`: the steps done where it began."""
    summary: dict[str, Any] = outcome.last(0, "summary") or {}
    loss, timed, peak = outcome.series("loss"), summary.get("timed") or None, summary.get("peak")
    speeds = (
        Work.of(spec).speeds(timed["median"], peak and peak["flops_per_s"]) if timed and timed["median"] > 0 else None
    )
    judged = outcome.ok or outcome.diverged
    return {
        "ok": outcome.ok,
        "failure": outcome.failure() or None,
        "early": outcome.early or None,
        "records": str(outcome.folder),
        "steps_done": int(loss["step"][-1]) + 1 if len(loss) else resumed,
        "final_loss": float(loss["value"][-1]) if len(loss) and math.isfinite(loss["value"][-1]) else None,
        "timed": timed,
        "meters": speeds,
        "findings": findings(case_of(spec, outcome)) if judged else [],
    }


def _run(
    spec: RunSpec, folder: Path, resume: Path | None, corpora: Path | None, options: argparse.Namespace, shown: Shown
) -> Outcome:
    """Trains in `folder`; after Ctrl-C says what was saved."""
    save_s = stop.save_s()

    def stopping() -> None:
        shown.stopping = True
        stop.announce(save_s)

    with LocalRunner(save_s=save_s, on_stop=stopping) as runner:
        try:
            return runner.run(
                spec,
                folder,
                devices=options.devices,
                corpora=corpora,
                resume=resume,
                on_frame=shown.show,
                no_progress_s=options.no_progress,
                spool_bytes=options.spool_bytes,
            )
        except Interrupted as end:
            say(stop.left(end.outcome), error=True)
            raise


def _require_devices(spec: RunSpec, devices: Sequence[int] | None) -> None:
    ranks = spec.parallel.world
    if devices is not None and len(devices) != ranks:
        named, has = plural_text(len(devices), "device"), plural_text(ranks, "rank")
        raise CommandError(f"--devices names {named}, the run has {has}")
    if spec.train.device == "cpu":
        require_cores(ranks, "parallel.dp x tp x pp makes")


def _new_folder() -> Path:
    """Makes a folder with the time as its name, and a number where another run began in the same second."""
    name = time.strftime("run-%Y%m%d-%H%M%S")
    for number in count(1):
        folder = Path(f"{name}-{number}" if number > 1 else name)
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


@contextmanager
def _claimed(out: Path | None) -> Iterator[Path]:
    """The folder of the run's records, `out` or a new one; keeps other runs out of it meanwhile. Raises CommandError
    where it has records already, or another run is about to write its own there. On a mount without flock only the
    former is checked."""
    folder = out or _new_folder()
    lock = FileLock(folder / ".lock")
    try:
        free = lock.hold()
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        free = True
    if not free:
        raise CommandError(f"another run is writing into {folder}; give another --out")
    try:
        if next(folder.glob("events-*.bin"), None) is not None:
            raise CommandError(f"{folder} holds the records of a run already; give another --out")
        yield folder
    finally:
        lock.release()


def _require_room(folder: Path, resume: Path | None) -> None:
    """Raises CommandError where the run's checkpoints would mix with those of another: the newest of both would be
    taken for the run's, and saving drops those of later steps."""
    if folders.is_one(folder):
        raise CommandError(f"{folder} is a checkpoint; give another --out")
    if folders.holds_any(folder) and (resume is None or folder.resolve() not in resume.resolve().parents):
        raise CommandError(
            f"{folder} holds checkpoints already; give another --out, or go on from them with --resume {folder}"
        )


def _checkpoint(path: Path, spec: RunSpec) -> tuple[Path, int]:
    """Returns the checkpoint at `path`, and the steps done there. Raises CommandError where a run of `spec` cannot be
    resumed from it."""
    found, manifest = checkpoint_of(path)
    try:
        match.require_match(manifest, spec)
    except manifests.CheckpointError as error:
        raise CommandError(f"{path} cannot be resumed: {error}") from error
    print(f"goes on from {found}: {plural_text(manifest.step, 'step')} done")
    return found, manifest.step


class Shown:
    """Prints a line per step of rank 0, and one per checkpoint and evaluation.

    Step times arrive with their step, the loss without a flush only during later steps, so the line is printed then.
    `stopping`: the run is ending; until then a line that nobody can read any more ends it as Ctrl-C does.
    """

    def __init__(self, target: str, resumed: int = 0) -> None:
        """`resumed`: the steps done in the checkpoint that the run goes on from; 0 without one."""
        self.stopping = False
        self._resumed = resumed
        self._target = target
        self._waiting: dict[str, dict[int, float]] = {"step_time": {}, "tokens_per_s": {}}
        self._saved = -1
        """Steps done at the last checkpoint: its record comes again where its held-out loss became known later."""

    def show(self, frame: Frame) -> None:
        """Prints what the frame completes. Raises KeyboardInterrupt where nobody reads it."""
        if frame.kind == "checkpoint" and frame.header["step"] != self._saved:
            done, size, took = (frame.header[key] for key in ("step", "bytes", "seconds"))
            self._saved = done
            self._say(f"checkpoint of {plural_text(done, 'step')}: {size:,} bytes in {took:.2f} s")
        if frame.kind == "left_out":
            done, why = frame.header["step"], frame.header["why"]
            self._say(f"no checkpoint of {plural_text(done, 'step')}: {why}; {self._left(last=frame.header['last'])}")
        for name, values in self._waiting.items():
            values.update((int(point["step"]), float(point["value"])) for point in points([frame], name))
        for point in points([frame], "loss"):
            seconds, rate = (values.pop(int(point["step"]), math.nan) for values in self._waiting.values())
            step, loss = point["step"], point["value"]
            self._say(f"step {step:>6}  loss {loss:.6f}  {seconds * 1e3:8.1f} ms  {rate:10.0f} {self._target}/s")

        for point in points([frame], "eval_loss"):
            self._say(f"step {point['step']:>6}  held-out loss {point['value']:.6f}")

    def _left(self, *, last: bool) -> str:
        """What there is where a checkpoint was left out, the `last` one or not."""
        if self._saved > 0:
            return f"that of {plural_text(self._saved, 'step')} stays"
        if self._resumed:
            return f"that of {plural_text(self._resumed, 'step')}, from which it went on, stays"
        return "there is none, and the run was ending" if last else "there is none yet"

    def _say(self, line: str) -> None:
        if not say(line) and not self.stopping:
            raise KeyboardInterrupt


def _ending(outcome: Outcome, spec: RunSpec) -> str:
    if not outcome.ok:
        stood = f"{outcome.stood}\n" if outcome.stood else ""
        return f"{outcome.failure()}\n{stood}logs and records: {outcome.folder}"
    summary: dict[str, Any] = outcome.last(0, "summary") or {}
    timed = summary.get("timed", {})
    early = f"{outcome.early}\n" if outcome.early else ""
    over = plural_text(timed["n"], "timed step") if timed else ""
    text = f"median step {timed['median'] * 1e3:.1f} ms over {over}; " if timed else ""
    return f"{early}{text}records: {outcome.folder}{_meters(outcome, spec, summary)}"


def _meters(outcome: Outcome, spec: RunSpec, summary: dict[str, Any]) -> str:
    """Returns a line on device utilisation, and one on the mean shares of the timed steps."""
    lines, peak = [], summary.get("peak")
    if peak and summary["timed"]["median"] > 0:
        speeds = Work.of(spec).speeds(summary["timed"]["median"], peak["flops_per_s"])
        used = f"MFU {percent_text(speeds['mfu'])}, HFU {percent_text(speeds['hfu'])}"
        rate, most = (total / peak["devices"] for total in (speeds["mfu"] * peak["flops_per_s"], peak["flops_per_s"]))
        lines.append(f"{used}: {flops_text(rate)} a device of {flops_text(most)} ({peak['source']})")
    steps, shares = values_of(outcome.shares(Layout.of(spec)))
    trained, count = outcome.series("step_time")["step"], (summary.get("timed") or {}).get("n", 0)
    timed = np.isin(steps, trained[len(trained) - count :])
    if timed.any():
        found = (percent_text(float(values[timed].mean())) for values in shares.values())
        parts = zip(found, ("bubble", "communication not hidden", "recomputation"), strict=True)
        said = ", ".join(f"{share} {what}" for share, what in parts)
        lines.append(f"mean of {plural_text(int(timed.sum()), 'timed step')}: {said}")
    return "".join(f"\n{line}" for line in lines)
