"""The scaling study: what it runs, and what its page says about speed against devices.

Strong scaling: the same batch on more devices (Amdahl 1967). Weak: the same batch a device, so that the work grows with
them (Gustafson 1988). Both are compared in samples a second with the fewest devices of the same model that have a
result: one, where a device alone holds the model.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from dashboard.charts import scaling as charts
from dashboard.charts.chart import Chart
from dashboard.charts.scaling import Point, named
from dashboard.runs.form.presets import BY_KEY as PRESETS
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.strategies import BY_KEY, Strategy
from dashboard.studies.new.variants import Plan, Skipped, Spec, Variant
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.quantities import finished_text
from parallel_core.outline import KINDS
from parallel_core.plan import strategy as naming
from parallel_core.plan.strategy import family

KIND = "scaling"
WAYS = {"strong": "strong: the same batch on more devices", "weak": "weak: the same batch a device"}
MODELS = {
    "mlp": "MLP, 4 x 512",
    "vgg16": "VGG-16 on digits",
    "resnet50": "ResNet-50 on digits",
    "gnmt": "GNMT, 2 x 128",
}
"""Presets whose models a study can use in addition to its own."""
STRATEGIES = ("dp", "zero1", "tp", "naive", "gpipe", "1f1b")


def plan(
    base: Spec,
    *,
    strategies: Iterable[str],
    ways: Sequence[str],
    counts: Sequence[int],
    models: Sequence[str] = (),
    micro_batches: int = 4,
    timed_steps: int = 40,
) -> Plan:
    """For each model a run on one device, then each strategy at each count, strong and weak. The first run is the
    baseline."""
    made: list[Variant | Skipped] = []
    cells = [(BY_KEY[key], n) for key in strategies for n in sorted(set(counts)) if n > 1]
    for model in (_own(base), *(_preset(base, key) for key in models)):
        head = f"{KINDS[model['model'].get('kind', 'gpt')].name}, " if models else ""
        longer = variants.with_steps(model, timed_steps)
        made.append(_named(variants.valid(longer, "Single"), head))
        for strategy, n in cells:
            m = micro_batches if strategy.micro else 1
            made += [_named(one, head, tail) for one, tail in _split(longer, strategy, n, m, ways)]
    skipped = tuple(one for one in made if isinstance(one, Skipped))
    return Plan(tuple(one for one in made if isinstance(one, Variant)), skipped)


def _split(
    base: Spec, strategy: Strategy, n: int, m: int, ways: Sequence[str]
) -> Iterator[tuple[Variant | Skipped, str]]:
    """The base split by a strategy over `n` devices with `m` micro-batches, for each way, which ends its name; one
    Skipped where the strategy cannot use so many devices."""
    title, degrees = f"{strategy.title} on {n}", strategy.split(n)
    if degrees is None:
        yield Skipped(title, f"needs {strategy.needs}."), ""
        return
    for way in ways:
        spec = copy.deepcopy(base)
        spec["parallel"] = {**degrees, "schedule": strategy.schedule, "micro_batches": m}
        spec["train"]["global_batch"] = variants.batch_of(base) * (n if way == "weak" else 1)
        yield variants.valid(spec, title), ", weak" if way == "weak" else ""


def _named(made: Variant | Skipped, head: str, tail: str = "") -> Variant | Skipped:
    return replace(made, name=f"{head}{made.name}{tail}")


def _own(base: Spec) -> Spec:
    return {"model": {}, **base}


def _preset(base: Spec, key: str) -> Spec:
    """The base with the model, batch and learning rate of a preset."""
    other = PRESETS[key].spec
    plain = {name: value for name, value in base.get("train", {}).items() if name != "corpus"}
    return {**base, "model": other["model"], "train": {**plain, **other["train"]}}


def points(view: Overview, cores: int = 0) -> list[Point]:
    """How each measured split scales, model by model; of repeats the median.

    `cores` = number of cores shared by all devices, 0 if each has its own.
    """
    models: dict[str, list[Row]] = {}
    for row in view.rows:
        models.setdefault(row.spec.model.model_dump_json(), []).append(row)
    several = len({row.spec.model.kind for row in view.rows}) > 1
    return [point for rows in models.values() for point in _of_model(rows, several, cores)]


class _Split(NamedTuple):
    """What the repeats of one measured split have in common; `parallel` = the whole ParallelSpec as JSON."""

    devices: int
    way: str
    parallel: str
    precision: str
    device: str


def _of_model(rows: Sequence[Row], several: bool, cores: int) -> list[Point]:
    """The points of one model: its rates over that of its fewest devices with a result, there of the fastest split."""
    splits = _splits(rows)
    if not splits:
        return []
    labels = _labels(splits)
    rates = {split: median(filter(None, map(_rate, own))) for split, own in splits.items()}
    first = min(rates, key=lambda split: (split.devices, -rates[split]))
    return [
        Point(
            model=KINDS[own[0].spec.model.kind].name if several else "",
            label=labels[split],
            family=family(own[0].spec),
            way=split.way,
            devices=split.devices,
            speedup=rates[split] / rates[first],
            stall=_stall(own),
            disturbed=any(row.entry.disturbed for row in own),
            cores=cores,
            fewest=first.devices,
            base=named(labels[first], first.way),
            whiskers=_whiskers(own, rates[first]),
        )
        for split, own in splits.items()
    ]


def _whiskers(rows: Sequence[Row], base: float) -> tuple[float, float] | None:
    """Speedups over the rate `base` at the slowest and the fastest whisker of the rows; of few steps, anything."""
    known = [(row.spec.train.global_batch / base, row.entry.own) for row in rows if row.entry.own]
    if not known or any(own.few for _, own in known):
        return (0.0, math.inf) if known else None
    return min(batch / own.p90 for batch, own in known), max(batch / own.p10 for batch, own in known)


def _splits(rows: Sequence[Row]) -> dict[_Split, list[Row]]:
    """The measured rows of one model by what they measure; several are repeats."""
    batch = _one_device_batch(rows)
    splits: dict[_Split, list[Row]] = {}
    for row in rows:
        way, train = _way(row, batch), row.spec.train
        if way is not None and _rate(row):
            split = row.spec.parallel.model_dump_json()
            splits.setdefault(_Split(row.run.devices, way, split, train.precision, train.device), []).append(row)
    return splits


def _labels(splits: Mapping[_Split, Sequence[Row]]) -> dict[_Split, str]:
    """The strategy of each split without its degrees, as a line joins it over numbers of devices; with more words where
    another on as many devices, scaled in the same way, would have the same label. Precision and device are named if
    they differ."""
    precisions, devices = ({split[i] for split in splits} for i in (3, 4))

    def said(split: _Split, label: str) -> str:
        kind = split.device.upper() if len(devices) > 1 else ""
        return named(label, split.precision if len(precisions) > 1 else "", kind)

    specs = {split: own[0].spec for split, own in splits.items()}
    found = {split: said(split, naming.label(spec, degrees=False)) for split, spec in specs.items()}
    found = _apart(found, {split: said(split, naming.label(spec)) for split, spec in specs.items()})
    counted = {split: named(found[split], f"m = {spec.parallel.micro_batches}") for split, spec in specs.items()}
    found = _apart(found, counted)
    return _apart(found, {split: f"{label} #{splits[split][0].run.pk}" for split, label in found.items()})


def _apart(labels: Mapping[_Split, str], longer: Mapping[_Split, str]) -> dict[_Split, str]:
    """The labels; the longer ones of splits on as many devices, scaled in the same way, that have the same label."""
    counts = Counter((split.devices, split.way, label) for split, label in labels.items())
    return {
        split: longer[split] if counts[split.devices, split.way, label] > 1 else label
        for split, label in labels.items()
    }


def _stall(rows: Sequence[Row]) -> float | None:
    """The median share of their steps that communication stalls; None if none was traced."""
    known = [row.entry.communication for row in rows if row.entry.communication is not None]
    return median(known) if known else None


def _one_device_batch(rows: Sequence[Row]) -> int:
    """The batch of one device for which most of the rows scale, strongly or weakly; of several the largest."""
    sizes = {(row.spec.train.global_batch, row.run.devices) for row in rows}
    found = {batch for batch, _ in sizes} | {batch // n for batch, n in sizes if batch % n == 0}
    return max(found, key=lambda one: (sum(_way(row, one) is not None for row in rows), one))


def _way(row: Row, batch: int) -> str | None:
    """strong, weak, or '' on one device that takes its whole batch at once; None where it is none of these.

    `batch` = that of one device.
    """
    own, n = row.spec.train.global_batch, row.run.devices
    if n == 1:
        return "" if own == batch and row.spec.parallel.micro_batches == 1 else None
    return "strong" if own == batch else "weak" if own == n * batch else None


def _rate(row: Row) -> float | None:
    """Samples a second of a run that is done; else None."""
    seconds = row.entry.traced_median
    return row.spec.train.global_batch / seconds if row.entry.done and seconds else None


def of_overview(study: Study, view: Overview) -> dict[str, Chart]:
    """The charts `scaling` and `stalls` of a scaling study; {} for any other."""
    if study.kind != KIND:
        return {}
    found = points(view, study.shared_cores)
    made = (charts.speedup(found, view.source), charts.stalls(found, view.source))
    return {chart.key: chart for chart in made}


def verdict(study: Study, view: Overview) -> list[str]:
    """The first sentences of a study's page."""
    if study.kind != KIND:
        return view.verdict
    found = points(view, study.shared_cores)
    done = f"{finished_text(len(view.results), len(view.rows))}."
    return view.cautioned(charts.sentences(found) or [charts.unscaled(found), done])


def like_for_like(kind: str, view: Overview) -> Overview:
    """For a scaling study only the runs of the baseline's model, as charts compare with it; else the view itself."""
    if kind != KIND or view.baseline is None:
        return view
    model = view.baseline.spec.model
    return replace(view, rows=[row for row in view.rows if row.spec.model == model])
