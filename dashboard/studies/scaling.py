"""The scaling study: what it runs, and what its page says about speed against devices.

Strong scaling: the same batch on more devices (Amdahl 1967). Weak: the same batch a device, so that the work grows with
them (Gustafson 1988). Both are compared with the one-device run of the same model, in samples a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dashboard.charts import scaling as charts
from dashboard.charts.chart import Chart
from dashboard.charts.scaling import Point
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
    """How each measured split scales that has a one-device run of its model; of repeats the median.

    `cores` = number of cores shared by all devices, 0 if each has its own.
    """
    singles = {row.spec.model.model_dump_json(): row for row in reversed(view.rows) if _plain(row) and _rate(row)}
    several = len({row.spec.model.kind for row in view.rows}) > 1
    found: dict[tuple[str, str, str, int], list[Point]] = {}
    for row in view.rows:
        point = _point(row, singles.get(row.spec.model.model_dump_json()), several)
        if point is not None:
            point = point._replace(cores=cores)
            found.setdefault((point.model, point.label, point.way, point.devices), []).append(point)
    return [sorted(own, key=lambda point: point.speedup)[len(own) // 2] for own in found.values()]


def _point(row: Row, base: Row | None, several: bool) -> Point | None:
    rate, one = _rate(row), _rate(base) if base else None
    if base is None or not rate or not one:
        return None
    batch, n = row.spec.train.global_batch / base.spec.train.global_batch, row.run.devices
    if batch not in (1, n):
        return None
    way = "" if n == 1 else "strong" if batch == 1 else "weak"
    model, entry = KINDS[row.spec.model.kind].name if several else "", row.entry
    return Point(model, _label(row), family(row.spec), way, n, rate / one, entry.communication, entry.disturbed)


def _label(row: Row) -> str:
    """The strategy without its degrees."""
    split = row.spec.parallel
    if split.world == 1:
        return "Single"
    if split.pp > 1:
        return variants.TRAITS[split.schedule].label
    return f"DP + ZeRO-{split.zero}" if split.zero else "DP" if split.dp > 1 else "TP"


def _plain(row: Row) -> bool:
    return row.run.devices == 1 and row.spec.parallel.micro_batches == 1


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
    said = charts.sentences(found)
    return view.cautioned(said) if said else [f"{len(view.results)} of {len(view.rows)} runs have finished so far."]


def like_for_like(kind: str, view: Overview) -> Overview:
    """For a scaling study only the runs of the baseline's model, as charts compare with it; else the view itself."""
    if kind != KIND or view.baseline is None:
        return view
    model = view.baseline.spec.model
    return replace(view, rows=[row for row in view.rows if row.spec.model == model])
