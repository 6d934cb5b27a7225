"""The command line of the engine: train, schedule, calibrate and bench; the other commands are in `cli_*`."""

from __future__ import annotations

import argparse
import errno
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from parallel_core import cli_fit, cli_models, cli_order, cli_partition, cli_plan, cli_profile, cli_stop
from parallel_core.analysis.meters import Work, values_of
from parallel_core.analysis.quantities import flops_text, percent_text
from parallel_core.checkpoint import manifest as manifests
from parallel_core.cli_models import Wrong, checkpoint_of, require_few
from parallel_core.cli_numbers import above, places, target, whole
from parallel_core.faults import parse, sentences
from parallel_core.launch import ServerLost
from parallel_core.layout import Layout
from parallel_core.limits import NO_PROGRESS_S
from parallel_core.local import Interrupted, LocalYard, Outcome, points
from parallel_core.observe.cores import cores
from parallel_core.observe.records import Frame
from parallel_core.outline import outline_of
from parallel_core.run_findings import case_of
from parallel_core.run_findings import sentences as findings
from parallel_core.spec import RunSpec, field_errors

RANKS_A_CORE = 32
"""Most ranks that may share a core of this host: each is a process, whose share of the core falls with their number."""
MOST_PRINTED = 131_072
"""Most operations of a schedule that is printed, which takes some seconds."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk is reported as, without the name of the file."""
STREAMED = 3
"""Steps shown of a pipeline that never flushes: one to fill it, one that is full, one to drain it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0 done, 1 the run failed, 2 command or spec invalid, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("stopped; no process is left", file=sys.stderr)
        return 130
    except Wrong as error:
        print(error, file=sys.stderr)
        return 2
    except ServerLost as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in NO_SPACE:  # not about a file that the user named: our bug
            raise
        print(f"{error.filename or 'a file cannot be written'}: {error.strerror}", file=sys.stderr)
        return 2


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser("train", help="train as the spec says, on this host")
    train.add_argument("spec", type=Path, help="a RunSpec as JSON ('-' reads stdin)")
    train.add_argument("--out", type=Path, help="folder for records and logs (default: run-<date>-<time>)")
    train.add_argument("--devices", type=places, help="device of each rank, e.g. 0,1 (default: 0 to ranks - 1)")
    train.add_argument("--corpora", type=Path, help="folder of uploaded texts, named by their sha256")
    train.add_argument("--resume", type=Path, help="a checkpoint, or a run's folder: its newest one; any layout")
    still = "end the run when no rank has moved for so long (default: %(default)g)"
    train.add_argument("--no-progress", type=above(0), default=NO_PROGRESS_S, metavar="SECONDS", help=still)
    inject_help = "break the run on purpose, e.g. straggler:rank=1,factor=2; may stand several times"
    train.add_argument("--inject", action="append", default=[], metavar="FAULT", help=inject_help)
    train.set_defaults(run=_train)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parallel_core", description="The training engine, on its own.")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_train(commands)
    schedule = commands.add_parser("schedule", help="print what every pipeline rank does in one step")
    schedule.add_argument("spec", type=Path)
    form = schedule.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="compute alone, one row a rank, as PyTorch spells it")
    form.add_argument("--json", action="store_true", help="every operation of every rank")
    schedule.set_defaults(run=_schedule)
    calibrate = commands.add_parser("calibrate", help="find the model whose step takes 50-200 ms here (JSON)")
    calibrate.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    calibrate.add_argument("--index", type=whole(0), default=0, help="which device")
    calibrate.set_defaults(run=_calibrate)
    cli_plan.add(commands)
    cli_order.add(commands)
    cli_partition.add(commands)
    cli_fit.add(commands)
    cli_models.add(commands)
    cli_profile.add(commands)
    bench = commands.add_parser("bench", help="this engine against PyTorch's own, and its own costs")
    bench.add_argument("names", nargs="*", metavar="name", help="which benchmarks (default: all; 'list' names them)")
    bench.add_argument("--rounds", type=whole(1), default=20, help="turns each contestant gets, at least (default: 20)")
    bench.add_argument("--json", type=target, help="write the results to this file too")
    bench.set_defaults(run=_bench)
    return parser


def read_spec(path: Path, inject: Sequence[str] = ()) -> RunSpec:
    """Returns the RunSpec in a JSON file, with additional faults in the syntax of the command line.

    Raises Wrong with one line per invalid field.
    """
    given = _json(path)
    faults = [_fault(text) for text in inject]
    if faults and isinstance(given, dict) and isinstance(own := given.get("inject", []), list):  # else it is invalid
        given["inject"] = own + faults
    try:
        return RunSpec.model_validate(given)
    except ValidationError as error:
        lines = [f"{path} cannot be trained:", *(f"  {name}: {why}" for name, why in field_errors(error).items())]
        raise Wrong("\n".join(lines)) from error


def _json(path: Path) -> Any:
    """Parses a JSON file, or the standard input for `-`. Raises Wrong."""
    try:
        return json.loads(sys.stdin.read() if str(path) == "-" else path.read_text())
    except OSError as error:
        raise Wrong(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise Wrong(f"{path} is no spec: {error}") from error
    except RecursionError as error:
        raise Wrong(f"{path} is no spec: its lists stand too deep in each other") from error


def _fault(text: str) -> dict[str, str]:
    try:
        return parse(text)
    except ValueError as error:
        raise Wrong(f"--inject: {error}") from error


def _train(options: argparse.Namespace) -> int:
    spec = read_spec(options.spec, inject=options.inject)
    for sentence in sentences(spec.inject):
        print(f"broken on purpose. {sentence}")
    folder = options.out or Path(time.strftime("run-%Y%m%d-%H%M%S"))
    if next(folder.glob("events-*.bin"), None) is not None:
        raise Wrong(f"{folder} holds the records of a run already; give another --out")
    _require_devices(spec, options.devices)
    resume = _checkpoint(options.resume, spec) if options.resume else None
    outcome = _run(spec, folder, resume, options)
    print(_ending(outcome, spec))
    if outcome.ok:
        print("\n".join(findings(case_of(spec, outcome))))
    return 0 if outcome.ok else 1


def _run(spec: RunSpec, folder: Path, resume: Path | None, options: argparse.Namespace) -> Outcome:
    """Trains in `folder`; after Ctrl-C says what was saved."""
    save_s = cli_stop.save_s()
    folder.mkdir(parents=True, exist_ok=True)
    with LocalYard(save_s=save_s, on_stop=lambda: cli_stop.announce(save_s)) as yard:
        try:
            return yard.run(
                spec,
                folder,
                devices=options.devices,
                corpora=options.corpora,
                resume=resume,
                on_frame=_shown(outline_of(spec.model).target),
                no_progress_s=options.no_progress,
            )
        except Interrupted as end:
            print(cli_stop.left(end.outcome), file=sys.stderr)
            raise


def _require_devices(spec: RunSpec, devices: Sequence[int] | None) -> None:
    ranks, most = spec.parallel.world, RANKS_A_CORE * len(cores())
    if devices is not None and len(devices) != ranks:
        raise Wrong(f"--devices names {len(devices)} devices, the run has {ranks} ranks")
    if spec.train.device == "cpu" and ranks > most:
        raise Wrong(
            f"parallel.dp x tp x pp makes {ranks:,} ranks, and the {len(cores())} cores of this host take turns for "
            f"{most} at most; use fewer"
        )


def _checkpoint(path: Path, spec: RunSpec) -> Path:
    """Returns the checkpoint at `path`. Raises Wrong where a run of `spec` cannot be resumed from it."""
    found, manifest = checkpoint_of(path)
    try:
        manifests.require_match(manifest, spec)
    except manifests.CheckpointError as error:
        raise Wrong(f"{path} cannot be resumed: {error}") from error
    print(f"goes on from {found}: {manifest.step} steps done")
    return found


def _shown(target: str) -> Callable[[Frame], None]:
    """Returns a callback that prints a line per step of rank 0, and one per checkpoint.

    Step times arrive with their step, the loss without a flush only during later steps, so the line is printed then.
    """
    waiting: dict[str, dict[int, float]] = {"step_time": {}, "tokens_per_s": {}}

    def show(frame: Frame) -> None:
        if frame.kind == "checkpoint":
            done, size, took = (frame.header[key] for key in ("step", "bytes", "seconds"))
            print(f"checkpoint of {done} steps: {size:,} bytes in {took:.2f} s")
        for name, values in waiting.items():
            values.update((int(point["step"]), float(point["value"])) for point in points([frame], name))
        for point in points([frame], "loss"):
            seconds, rate = (values.pop(int(point["step"]), math.nan) for values in waiting.values())
            loss = point["value"]
            print(f"step {point['step']:>6}  loss {loss:.6f}  {seconds * 1e3:8.1f} ms  {rate:10.0f} {target}/s")

    return show


def _ending(outcome: Outcome, spec: RunSpec) -> str:
    if not outcome.ok:
        stood = f"{outcome.stood}\n" if outcome.stood else ""
        return f"{outcome.failure()}\n{stood}logs and records: {outcome.folder}"
    summary: dict[str, Any] = outcome.last(0, "summary") or {}
    timed = summary.get("timed", {})
    text = f"median step {timed['median'] * 1e3:.1f} ms over {timed['n']} timed steps; " if timed else ""
    return f"{text}records: {outcome.folder}{_meters(outcome, spec, summary)}"


def _meters(outcome: Outcome, spec: RunSpec, summary: dict[str, Any]) -> str:
    """Returns a line on device utilisation, and one on the mean shares of the timed steps."""
    lines, peak = [], summary.get("peak")
    if peak and summary["timed"]["median"] > 0:
        speeds = Work.of(spec).speeds(summary["timed"]["median"], peak["flops_per_s"])
        used = f"MFU {percent_text(speeds['mfu'])}, HFU {percent_text(speeds['hfu'])}"
        rate, most = speeds["tflops"] * 1e12, peak["flops_per_s"] / spec.parallel.world
        lines.append(f"{used}: {flops_text(rate)} a device of {flops_text(most)} ({peak['source']})")
    steps, shares = values_of(outcome.shares(Layout.of(spec)))
    timed = np.isin(steps, outcome.series("step_time")["step"][-summary.get("timed", {}).get("n", 0) :])
    if timed.any():
        found = (percent_text(float(values[timed].mean())) for values in shares.values())
        parts = zip(found, ("bubble", "communication not hidden", "recomputation"), strict=True)
        lines.append(f"mean of {timed.sum()} timed steps: {', '.join(f'{share} {what}' for share, what in parts)}")
    return "".join(f"\n{line}" for line in lines)


def _schedule(options: argparse.Namespace) -> int:
    from parallel_core import schedule
    from parallel_core.schedule import table, text
    from parallel_core.schedule.check import check
    from parallel_core.simulate.picture import caption, picture

    spec = read_spec(options.spec)
    require_few(spec, MOST_PRINTED, "print")
    made = schedule.build(spec, 1 if spec.parallel.flushes else STREAMED)
    check(made)
    if options.csv or options.json:
        try:
            print((table.to_csv if options.csv else table.to_json)(made).rstrip())
        except table.TableError as error:
            raise Wrong(f"--csv: {error}") from error
    else:
        print(f"{picture(made)}\n{caption(made)}\n\n{text.grid(made)}")
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from parallel_core.calibrate import CalibrationFailed, calibrate

    try:
        print(json.dumps(calibrate(options.device, options.index)))
    except CalibrationFailed as error:
        print(f"calibration failed: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(options: argparse.Namespace) -> int:
    from parallel_core import bench

    return bench.run(options.names, options.rounds, options.json)
