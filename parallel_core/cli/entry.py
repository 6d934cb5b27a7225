"""The parser of the engine's command line, and its smallest commands: calibrate and bench."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence

from parallel_core.analysis.quantities import plural_text
from parallel_core.atomic_file import NO_SPACE
from parallel_core.cli import fields, fit, images, models, order, partition, plan, profile, schedule, train
from parallel_core.cli.common import CommandError
from parallel_core.cli.numbers import target, whole
from parallel_core.cli.output import drop_unread, say
from parallel_core.launch import ServerLost
from parallel_core.observe.cores import cores
from parallel_core.observe.gpus import AmbiguousGpus


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0 done, 1 the run failed, 2 command, spec or a
    setting of the environment invalid, 130 interrupted, 141 nobody reads what it prints."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        if sys.stdout is not None:  # it was closed from the beginning
            sys.stdout.flush()  # at the end of the process a closed pipe would be reported as an exception
        return code
    except KeyboardInterrupt:
        say("stopped; no process is left", error=True)
        return 130
    except (CommandError, AmbiguousGpus) as error:
        say(str(error), error=True)
        return 2
    except ServerLost as error:
        say(str(error), error=True)
        return 1
    except BrokenPipeError:
        drop_unread()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None and error.errno not in NO_SPACE:  # not about a file that the user named: our bug
            raise
        say(f"{error.filename or 'a file cannot be written'}: {error.strerror}", error=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parallel_core", description="The training engine, on its own.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train.add(commands)
    fields.add(commands)
    schedule.add(commands)
    calibrate = commands.add_parser("calibrate", help="find the model whose step takes 50-200 ms here (JSON)")
    calibrate.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    calibrate.add_argument("--index", type=whole(0), default=0, help="which device")
    calibrate.set_defaults(run=_calibrate)
    plan.add(commands)
    order.add(commands)
    partition.add(commands)
    fit.add(commands)
    models.add(commands)
    images.add(commands)
    profile.add(commands)
    bench = commands.add_parser("bench", help="this engine against PyTorch's own, and its own costs")
    bench.add_argument("names", nargs="*", metavar="name", help="which benchmarks (default: all; 'list' names them)")
    bench.add_argument("--rounds", type=whole(1), default=20, help="turns each contestant gets, at least (default: 20)")
    bench.add_argument("--json", type=target, help="write the results to this file too")
    bench.set_defaults(run=_bench)
    return parser


def _calibrate(options: argparse.Namespace) -> int:
    from parallel_core.calibrate import CalibrationFailed, calibrate

    if options.device == "cpu" and options.index >= (count := len(cores())):
        raise CommandError(
            f"--index {options.index}: this host has {plural_text(count, 'CPU device')}, numbered from 0"
        )
    try:
        print(json.dumps(calibrate(options.device, options.index)))
    except CalibrationFailed as error:
        print(f"calibration failed: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(options: argparse.Namespace) -> int:
    from parallel_core import bench

    return bench.run(options.names, options.rounds, options.json)
