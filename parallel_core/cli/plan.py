"""`python -m parallel_core plan`: predicts the best ways to split a model over a GPU cluster."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_core.analysis.quantities import bytes_text, count_text, percent_text, seconds_text
from parallel_core.cli import alpa
from parallel_core.cli.common import CommandError, Subparsers, add_command
from parallel_core.cli.numbers import whole

if TYPE_CHECKING:
    from parallel_core.plan.cluster.hardware import Cluster
    from parallel_core.plan.cluster.job import Job
    from parallel_core.plan.cluster.model import Transformer
    from parallel_core.plan.cluster.search import SearchResult


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    from parallel_core.plan.cluster.hardware import clusters
    from parallel_core.plan.cluster.model import presets
    from parallel_core.plan.cluster.questions import QUESTIONS

    plan = add_command(
        commands,
        "plan",
        "predict the best ways to split a model over a GPU cluster",
        "--model gpt-175b --cluster selene --devices 1024 --ask all",
        "--model llama-70b --devices 8 --serve 1024:256",
        "--spec examples/pp2.json --table costs",
    )
    plan.add_argument(
        "--model",
        default="gpt-175b",
        choices=presets(),
        metavar="KEY",
        help=f"{', '.join(presets())} (default: gpt-175b)",
    )
    plan.add_argument(
        "--cluster",
        default="selene",
        choices=clusters(),
        metavar="KEY",
        help=f"{', '.join(clusters())} (default: selene)",
    )
    plan.add_argument("--devices", type=whole(1), help="how many devices (default: the cluster's)")
    plan.add_argument("--batch", type=whole(1), default=1536, help="sequences of a step (default: 1536)")
    plan.add_argument(
        "--adapters", type=whole(0), default=0, help="rank of adapters on a frozen base (default: 0, none)"
    )
    plan.add_argument("--columns", action="store_true", help="try linear layers split all by columns, too")
    plan.add_argument(
        "--top", type=whole(1), default=10, help="layouts listed, each with its fastest plan (default: 10)"
    )
    plan.add_argument("--ask", choices=[*QUESTIONS, "all"], help="answer a question about the best plans")
    plan.add_argument("--json", action="store_true", help="the listed plans as JSON")
    plan.add_argument("--accuracy", action="store_true", help="predictions against published measurements instead")
    plan.add_argument("--spec", type=Path, help="Alpa's two levels for this RunSpec's model and micro-batches instead")
    plan.add_argument("--table", type=Path, help="with --spec: what `profile --out` wrote (default: --cluster)")
    plan.add_argument("--serve", metavar="PROMPT:OUTPUT", help="inference instead: tokens of prompts and answers")
    plan.set_defaults(run=run, default_of=plan.get_default)


_TAKEN = {
    "accuracy": (),
    "spec": ("table", "cluster", "devices"),
    "table": ("spec", "devices"),
    "serve": ("model", "cluster", "devices"),
    "json": ("model", "cluster", "devices", "batch", "adapters", "columns", "top"),
    "ask": ("model", "cluster", "devices", "batch", "adapters", "columns", "top"),
}
"""Option that says what is asked -> the options that it takes; without any of them all others are taken."""


def _require_together(options: argparse.Namespace) -> None:
    """Raises CommandError for an option that another one would make pass unnoticed."""
    names = ("model", "cluster", "devices", "batch", "adapters", "columns", "top", *_TAKEN)
    given = [name for name in names if getattr(options, name) != options.default_of(name)]
    if options.table is not None and options.spec is None:
        raise CommandError("--table is of a spec's model; give that spec, too, with --spec")
    for name in _TAKEN:
        odd = [f"--{other}" for other in given if other not in (name, *_TAKEN[name])]
        if name in given and odd:
            takes = ", ".join(f"--{other}" for other in _TAKEN[name]) or "no other option"
            raise CommandError(f"--{name} takes {takes}; leave out {', '.join(odd)}")


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 0 a plan fits, 1 none does, 2 the request is invalid. Raises CommandError for options that
    do not go together."""
    from parallel_core.plan.cluster.exported import rows
    from parallel_core.plan.cluster.hardware import clusters
    from parallel_core.plan.cluster.job import Job
    from parallel_core.plan.cluster.model import presets
    from parallel_core.plan.cluster.problems import Unphysical
    from parallel_core.plan.cluster.search import Space, search

    _require_together(options)
    if options.accuracy:
        return _accuracy()
    if options.spec is not None:
        return alpa.run(options)
    cluster = clusters()[options.cluster]
    if options.devices is not None:
        cluster = replace(cluster, devices=options.devices, per_host=max(1, min(cluster.per_host, options.devices)))
    job = Job(presets()[options.model], options.batch, adapters=options.adapters)
    try:
        if options.serve:
            return _serve(job.model, cluster, options)
        found = search(job, cluster, Space(by_columns=(False, True)) if options.columns else None)
    except Unphysical as error:
        print("\n".join(f"{field}: {message}" for field, message in error.messages.items()), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(rows(job, cluster, found, options.top), indent=1))
    else:
        _print(job, cluster, found, options)
    return 0 if found.timed else 1


def _print(job: Job, cluster: Cluster, found: SearchResult, options: argparse.Namespace) -> None:
    from parallel_core.plan.cluster.advice import advise
    from parallel_core.plan.cluster.exported import rows
    from parallel_core.plan.cluster.questions import QUESTIONS, ask

    print(f"{job.model.name} on {count_text(cluster.devices)} x {cluster.device.name}, batch {count_text(job.batch)}")
    if found.timed:
        print(advise(job, cluster, found.plans.row(found.best()[0])).sentence)
    for row in rows(job, cluster, found, options.top):
        size, share = bytes_text(row["peak_bytes"]), percent_text(row["mfu"])
        print(f"{seconds_text(row['step_s']):>14}  {size:>8}  MFU {share:>5}  {row['label']}")
    for name in QUESTIONS if options.ask == "all" else [options.ask or "fits"]:
        answer = ask(name, job, cluster, found)
        print(f"{answer.question} {answer.sentence}")
    print(f"{found.timed} plans timed, {found.too_large} too large, {found.rate:,.0f} a CPU second".replace(",", " "))


def _serve(model: Transformer, cluster: Cluster, options: argparse.Namespace) -> int:
    """Prints the Pareto-optimal ways by latency and throughput, the lowest latency per token first."""
    from parallel_core.plan.cluster.inference import Ask, cache_bytes, serve

    prompt, _, output = options.serve.partition(":")
    if not (prompt.isdecimal() and output.isdecimal()):
        print(f"--serve {options.serve} is not PROMPT:OUTPUT in tokens, such as 1024:256", file=sys.stderr)
        return 2
    made = serve(model, cluster, Ask(int(prompt), int(output)))
    kept = bytes_text(cache_bytes(model, int(prompt) + int(output)))
    print(f"{model.name} on {count_text(cluster.devices)} x {cluster.device.name}: {kept} of cache a sequence")
    for i in made.front():
        token, size = seconds_text(float(made.token[i])), bytes_text(float(made.weights[i] + made.cache[i]))
        rate = count_text(round(float(made.throughput[i])))
        print(f"{token:>10} a token  {rate:>8} tokens/s  {size:>8}  {made.label(i)}")
    return 0 if made.fits.any() else 1


def _accuracy() -> int:
    from parallel_core.plan.cluster import accuracy

    times = accuracy.step_times()
    for row in [*times, *accuracy.layer_times(), *accuracy.with_replicas()]:
        used = "fitted on" if row.fitted else ""
        values = f"{row.predicted:9.2f} {row.unit:2}  measured {row.measured:9.2f}"
        print(f"{row.error * 100:+z6.1f} %  {values}  {row.key}  {used}".rstrip())
    for word, rows in (("in", [r for r in times if r.fitted]), ("out of", [r for r in times if not r.fitted])):
        found = accuracy.summary(rows)
        errors = f"mean {found.mean:.2%}, worst {found.worst:.2%}, bias {found.bias:+.2%}"
        print(f"{word} the fit: {found.count} step times, {errors}")
    return 0
