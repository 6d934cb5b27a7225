"""The scaling study: what it runs, and what its page says about speed against devices.

Strong scaling: the same batch on more devices (Amdahl 1967). Weak: the same batch a device, so that the work grows with
them (Gustafson 1988). Both are compared in samples a second with the fewest devices of the same model that have a
result: one, where a device alone holds the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from dashboard.charts import scaling as charts
from dashboard.charts.chart import Chart
from dashboard.charts.scaling import Point, named
from dashboard.runs.presets import BY_KEY as PRESETS
from dashboard.studies import variants
from dashboard.studies.models import Study
from dashboard.studies.selectors import Overview, Row
from dashboard.studies.strategies import BY_KEY
from dashboard.studies.variants import Plan, Skipped, Spec, Variant
from parallel_core.outline import KINDS
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
    kept: list[Variant] = []
    skipped: list[Skipped] = []
    cells = [(BY_KEY[key], n) for key in strategies for n in sorted(set(counts)) if n > 1]
    for model in (_own(base), *(_preset(base, key) for key in models)):
        head = f"{KINDS[model['model'].get('kind', 'gpt')].name}, " if models else ""
        _add(variants.with_steps(model, timed_steps), head, "", kept, skipped, "Single")
        for strategy, n in cells:
            degrees = strategy.split(n)
            if degrees is None:
                skipped.append(Skipped(f"{head}{strategy.title} on {n}", f"needs {strategy.needs}."))
                continue
            m = micro_batches if strategy.micro else 1
            for way in ways:
                spec = variants.with_steps(model, timed_steps)
                spec["parallel"] = {**degrees, "schedule": strategy.schedule, "micro_batches": m}
                spec["train"]["global_batch"] = variants.batch_of(model) * (n if way == "weak" else 1)
                tail = ", weak" if way == "weak" else ""
                _add(spec, head, tail, kept, skipped, f"{strategy.title} on {n}")
    return Plan(tuple(kept), tuple(skipped))


def _add(spec: Spec, head: str, tail: str, kept: list[Variant], skipped: list[Skipped], title: str) -> None:
    made = variants.valid(spec, title)
    if isinstance(made, Skipped):
        skipped.append(Skipped(f"{head}{made.name}{tail}", made.reason))
    else:
        kept.append(Variant(f"{head}{made.name}{tail}", made.spec))


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


def _of_model(rows: Sequence[Row], several: bool, cores: int) -> list[Point]:
    """The points of one model: its rates over that of its fewest devices with a result, there of the fastest split."""
    batch = _one_device_batch(rows)
    splits: dict[tuple[int, str, str], list[Row]] = {}
    for row in rows:
        way = _way(row, batch)
        if way is not None and _rate(row):
            splits.setdefault((row.run.devices, _label(row), way), []).append(row)
    rates = {split: median(filter(None, map(_rate, own))) for split, own in splits.items()}
    first = min(rates, key=lambda split: (split[0], -rates[split]), default=(1, "", ""))
    return [
        Point(
            model=KINDS[own[0].spec.model.kind].name if several else "",
            label=split[1],
            family=family(own[0].spec),
            way=split[2],
            devices=split[0],
            speedup=rates[split] / rates[first],
            stall=_stall(own),
            disturbed=any(row.entry.disturbed for row in own),
            cores=cores,
            fewest=first[0],
            base=named(*first[1:]),
        )
        for split, own in splits.items()
    ]


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


def _label(row: Row) -> str:
    """The strategy without its degrees."""
    split = row.spec.parallel
    if split.world == 1:
        return "Single"
    if split.pp > 1:
        return variants.TRAITS[split.schedule].label
    return f"DP + ZeRO-{split.zero}" if split.zero else "DP" if split.dp > 1 else "TP"


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
    done = f"{len(view.results)} of {len(view.rows)} runs have finished."
    return view.cautioned(charts.sentences(found) or [charts.unscaled(found), done])


def like_for_like(kind: str, view: Overview) -> Overview:
    """For a scaling study only the runs of the baseline's model, as charts compare with it; else the view itself."""
    if kind != KIND or view.baseline is None:
        return view
    model = view.baseline.spec.model
    return replace(view, rows=[row for row in view.rows if row.spec.model == model])
