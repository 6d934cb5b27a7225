"""Where the time of a run that generates text goes: a sentence, a tile, and its chart."""

from __future__ import annotations

from dashboard.charts.chart import Chart
from dashboard.charts.generation_parts import Line, positions
from dashboard.runs.generation import generated_text
from dashboard.runs.generation.generating import Split
from dashboard.runs.models import ENDED, Run
from parallel_core.analysis.generated import growth, over_position
from parallel_core.analysis.quantities import percent_text, plural_text, ratio_text, seconds_text
from parallel_core.spec import RunSpec


def sentence(run: Run) -> str:
    """The share of communication in a token, and whether late tokens take longer; '' as long as neither is known."""
    found, said = generated_text.where_it_goes(run), [grown(run)]
    if found and run.devices > 1:
        said.insert(0, f"Communication takes {percent_text(found.communication)} of a token.")
    return " ".join(filter(None, said))


def grown(run: Run, on: str = "") -> str:
    """Whether late tokens of a run take longer, `on` its split; '' with too few tokens to see it."""
    made = generated_text.whole(run)
    found = growth(made["seconds"], len(run.task["prompt"])) if made else None
    if found is None:
        return ""
    late = f"On {on} late tokens" if on else "Late tokens"
    noise = ", within noise" if found.within_noise else ""
    times = f"{seconds_text(found.first.median)} at first, {seconds_text(found.last.median)} at the end"
    return f"{late} take {ratio_text(found.ratio)} the time of early ones{noise}: {times}."


def figure(run: Run) -> tuple[str, str, str]:
    """(title, value, note) of the communication in a token."""
    if run.devices == 1:
        return "Communication", "none", "on one device"
    found = generated_text.where_it_goes(run)
    if found is None:
        return "Communication", "–", "of a token"
    parts = [f"{seconds_text(found.collective)} in collectives"] if found.collective else []
    parts += [f"{seconds_text(found.p2p)} between stages"] if found.p2p else []
    mean = f", {seconds_text(found.total)} on average" if parts else ""  # the tile of the time shows the median
    said = ", ".join(parts) or "nothing is exchanged"
    return "Communication", percent_text(found.communication), f"of a token{mean}: {said}"


def chart(run: Run) -> Chart | None:
    """Time of a token over its position; None while the run goes on, and where there is no second token."""
    made = generated_text.whole(run) if run.state in ENDED else None
    if made is None or not made["seconds"]:
        return None
    parallel = RunSpec.stored(run.spec).parallel
    split = Split(parallel.tp, parallel.pp, parallel.dp)
    line = Line(split.label, split, over_position(made["seconds"], len(run.task["prompt"])))
    count = plural_text(len(made["seconds"]), "token")
    title = grown(run) or f"{count} after the first, too few to see whether later ones take longer."
    slowest = " on the slowest replica" if parallel.dp > 1 else ""
    return positions([line], title, f"measured, {count} after the first{slowest}")
