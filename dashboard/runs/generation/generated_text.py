"""What a run that generates text has generated so far: its texts, in words, and as numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dashboard.runs import selectors
from dashboard.runs.generation import generate_panel
from dashboard.runs.models import RankInfo, Run
from parallel_core.analysis.generated import (
    Generated,
    Parts,
    merged,
    over_position,
    parts,
    rate,
    replicas,
    text,
    text_seconds,
    whole_rate,
)
from parallel_core.analysis.quantities import bytes_text, percent_text, plural_text, rate_text, seconds_text
from parallel_core.analysis.stats import summarise
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec

ENOUGH = 8
"""From so many tokens on, a text that says nothing is no chance of its first ones."""


@dataclass(frozen=True)
class Text:
    """One sample: the prompt, and what has been generated after it so far."""

    prompt: str
    made: str
    done: int
    advice: str = ""
    """What to try where the text is white space or one token again and again; else ''."""


def ranks(run: Run) -> dict[int, Mapping[str, Any]]:
    """What each rank of the newest attempt has generated; without ranks that have reported nothing."""
    return {rank: info.generated for rank, info in selectors.ranks(run).items() if info.generated}


def where_it_goes(run: Run) -> Parts | None:
    """Where a token of the newest attempt goes; None if its ranks have not told it."""
    return parts(ranks(run), Layout.of(RunSpec.stored(run.spec)))


def _replicas(run: Run) -> list[Mapping[str, Any]]:
    """What each replica has generated; [] until all of them have reported something."""
    layout = Layout.of(RunSpec.stored(run.spec))
    reported = replicas(ranks(run), layout)
    return reported if len(reported) == layout.dp else []


def texts(run: Run) -> list[Text]:
    """One text for each sample; before the first token only the prompts."""
    vocab, prompt = RunSpec.stored(run.spec).model.vocab, run.task["prompt"]
    reported = _replicas(run)
    samples = merged(reported)["tokens"] if reported else [[] for _ in range(run.task["samples"])]
    start, out = text(prompt, vocab), []
    for tokens in samples:
        whole, advice = text([*prompt, *tokens], vocab), _advice(tokens, text(tokens, vocab), run.task)
        # A prompt may end inside a letter of several bytes: then the whole does not begin with it.
        shown = start if whole.startswith(start) else ""
        out.append(Text(shown, whole.removeprefix(shown), len(tokens), advice))
    return out


def _advice(tokens: Sequence[int], made: str, task: Mapping[str, Any]) -> str:
    """A sentence on what may help where all that was generated says nothing."""
    if len(tokens) < min(ENOUGH, task["new"]) or not (made.isspace() or len(set(tokens)) == 1 < len(tokens)):
        return ""
    warm = f"a temperature above {task['temperature']:g}" if task["temperature"] else "a temperature such as 0.8"
    what = "white space alone" if made.isspace() else "one token, repeated"
    return f"All that was generated is {what}: generate at {warm}, or from a model that was trained longer."


def sentence(run: Run) -> str:
    """How many tokens there are and how fast they came; begins with the number."""
    reported = _replicas(run)
    if not reported:
        return "No token is there yet."
    all_of_it, wanted, samples = merged(reported), run.task["new"], run.task["samples"]
    done = min(len(tokens) for tokens in all_of_it["tokens"])
    of = "" if done == wanted else f" of {wanted}"
    several = f" in each of {samples} texts" if samples > 1 else ""
    out = f"{done}{of} token{'s' if wanted > 1 else ''}{several}: the first after {seconds_text(all_of_it['prefill'])}"
    if (speed := rate(reported)) is not None:
        out += f", then {seconds_text(speed[0])} each (median), {rate_text(speed[1])}"
        out += f"; {rate_text(whole_rate(reported) or 0.0)} overall"
    return f"{out}."


def figures(run: Run) -> list[tuple[str, str, str]]:
    """(title, value, note) of prefill, time of a token, speed, caches, and memory."""
    reported, prompt = _replicas(run), len(run.task["prompt"])
    first = merged(reported) if reported else None
    speed = rate(reported)
    caches = [rank["kv_bytes"] for rank in ranks(run).values()]
    what = "prompt token"
    over = f", over {len(reported)} replicas" if len(reported) > 1 else ""
    together = f"{run.task['samples']} at a time{over}"
    return [
        (
            "Prefill",
            seconds_text(first["prefill"]) if first else "–",
            f"{plural_text(prompt, what)}{_share(reported)}",
        ),
        ("Time a token", seconds_text(speed[0]) if speed else "–", _spread(first)),
        ("Speed", rate_text(speed[1]) if speed else "–", f"{_at_median(reported)}, {together}"),
        (
            "Keys and values",
            bytes_text(max(caches)) if caches else "–",
            _holders(run.devices, caches),
        ),
        generate_panel.figure(run),
    ]


def _at_median(reported: Sequence[Mapping[str, Any]]) -> str:
    """What the speed is, and beside it that of the whole texts so far: a few slow tokens leave the median as it is."""
    whole = whole_rate(reported)
    return f"at the median token ({rate_text(whole)} overall)" if whole else "at the median token"


def _holders(devices: int, caches: list[int]) -> str:
    """Where the caches are; stages may have different numbers of layers, and so caches of different sizes."""
    if devices == 1:
        return "on its one rank"
    return f"on each of {devices} ranks" if len(set(caches)) < 2 else f"on the fullest of {devices} ranks"


def _share(reported: Sequence[Mapping[str, Any]]) -> str:
    """The prefill's share of the time so far."""
    if not reported or not all(replica["seconds"] for replica in reported):
        return ""
    return f", {percent_text(merged(reported)['prefill'] / max(text_seconds(reported), 1e-9))} of the time"


def _spread(first: Mapping[str, Any] | None) -> str:
    if not first or not first["seconds"]:
        return "median"
    own = summarise(first["seconds"])  # as in a study and its CSV
    return f"median; 80 % within {seconds_text(own.p10)} to {seconds_text(own.p90)}"


def api_record(run: Run) -> dict[str, Any] | None:
    """What all replicas have generated, with the texts, for the API; None if it generates nothing, or nothing yet."""
    if (found := whole(run)) is None:
        return None
    made = [sample.prompt + sample.made for sample in texts(run)]
    return {**found, "kv_bytes": [rank["kv_bytes"] for rank in ranks(run).values()], "texts": made}


def whole(run: Run) -> Generated | None:
    """What all replicas have generated; None until all of them have reported something."""
    reported = _replicas(run) if run.generates else []
    return merged(reported) if reported else None


def measured(run: Run) -> dict[str, Any] | None:
    """Times and sizes of what was generated; None until all replicas have reported something.

    - prefill: seconds until the first token.
    - token: Stats of the seconds of each later token, on the slowest replica; None before the second token.
    - tokens_per_s: over all texts and replicas, at their medians; None before the second token.
    - text_s: seconds from the prompt to the last token, on the replica that took longest.
    - overall_tokens_per_s: all tokens over this time.
    - kv_bytes: keys and values on the rank that has the most.
    - digest: SHA-256 of the tokens of all texts: equal for equal texts.
    - parts: analysis.generated.Parts of the slowest replica; None if its ranks have not told them.
    - positions: rows of analysis.generated.Stretch, on the slowest replica.
    """
    made = whole(run)
    if made is None:
        return None
    told, prompt = _replicas(run), len(run.task["prompt"])
    speed = rate(told)
    own = where_it_goes(run)
    return {
        "parts": own._asdict() if own else None,
        "positions": [list(row) for row in over_position(made["seconds"], prompt)],
        "prefill": made["prefill"],
        "token": asdict(summarise(made["seconds"])) if speed else None,
        "tokens_per_s": speed[1] if speed else None,
        "text_s": text_seconds(told),
        "overall_tokens_per_s": whole_rate(told),
        "kv_bytes": max(rank["kv_bytes"] for rank in ranks(run).values()),
        "digest": hashlib.sha256(json.dumps(made["tokens"]).encode()).hexdigest(),
    }


def summary(run: Run) -> dict[str, Any]:
    """The summary stored with a run of this kind that has ended; `generation` is what was `measured`, `cpu_others` the
    share of a device that others used meanwhile, on the worst rank, None if a rank does not know it, and
    `other_processes` how many were on one of its GPUs, None if none is known."""
    rows = RankInfo.objects.filter(attempt__run=run).exclude(generated={})
    told = [info.summary for info in selectors.ranks(run).values()]
    others, processes = ([one.get(name) for one in told] for name in ("cpu_others", "other_processes"))
    known = [share for share in others if share is not None]
    nothing = {"timed": None, "final_loss": None, "breakdown": None}
    taken = max(known) if len(known) == run.devices else None
    busy = {"cpu_others": taken, "other_processes": max(filter(None, processes), default=None)}
    return {**nothing, **busy, "generated": rows.exists(), "generation": measured(run)}
