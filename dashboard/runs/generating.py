"""Runs that generate text: submits them, and puts into words what they have generated so far."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import generate_panel, resuming, selectors, services, submission, weights
from dashboard.runs import run_on as places
from dashboard.runs.models import RankInfo, Run
from parallel_core import limits
from parallel_core.analysis.generated import (
    Generated,
    Parts,
    merged,
    over_position,
    parts,
    rate,
    replicas,
    text,
)
from parallel_core.analysis.quantities import bytes_text, percent_text, plural_text, rate_text, seconds_text
from parallel_core.analysis.stats import summarise
from parallel_core.generation_request import inference, read_request
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec, field_errors
from workers.contract import ResumeFrom

LABEL = "Generate"
_NAME = 40
_SPLIT = re.compile(r"(\d{1,9})\s*[x×]\s*(\d{1,9})\s*[x×]\s*(\d{1,9})")


@dataclass(frozen=True)
class Text:
    """One sample: the prompt, and what has been generated after it so far."""

    prompt: str
    made: str
    done: int


def able(run: Run) -> bool:
    """Whether text can be generated from the run: it is a GPT with a checkpoint, or begins from weights, also to
    generate."""
    if (run.task and not run.generates) or run.spec.get("model", {}).get("kind", "gpt") != "gpt":
        return False
    return bool(weights_of(run)) or bool(resuming.steps(run))


def weights_of(run: Run) -> str:
    """The weights from which the run begins with step 0; '' if it begins otherwise."""
    return str(run.spec.get("train", {}).get("weights", "")) if run.resume_step is None else ""


def of_weights(name: str) -> Run | None:
    """A run that begins from weights of a worker, as a source of text; it is not in the database, and its number is 0.
    None if no worker that reports has them, or tells their model in words of another version."""
    made = weights.spec_of(name, FleetSnapshot.now())
    try:
        return None if made is None else Run(pk=0, name=name, spec=RunSpec.model_validate(made).model_dump(mode="json"))
    except ValidationError:
        return None


def begins_from(run: Run, step: int) -> ResumeFrom | None:
    """The run's checkpoint of `step`; None of step 0 where that is the weights that the run begins from."""
    return None if step == 0 and weights_of(run) else {"run": run.pk, "step": step}


def prompt_tokens(given: str, vocab: int) -> list[int]:
    """The prompt as tokens: its bytes for a vocabulary of at most 256, else the numbers in it.

    Raises ValueError with a message for the user.
    """
    if vocab <= 256:
        return list(given.encode())
    try:
        return [int(part) for part in given.replace(",", " ").split()]
    except ValueError as error:
        raise ValueError("Write numbers of tokens with commas or blanks between.") from error


class Split(NamedTuple):
    """The devices to use: `dp` replicas of `pp` stages of `tp` devices each. Written as `2x1x1`, in that order."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @classmethod
    def read(cls, written: str) -> Split:
        """The split of a text; `1` is a single device. Raises ValueError with a message for the user."""
        found = _SPLIT.fullmatch("1x1x1" if written.strip() == "1" else written.strip())
        if found is None:
            what = "write tensor ranks x stages x replicas, such as 2x1x1, or 1 for a single device"
            raise ValueError(f"“{written.strip()[:40]}” is no split; {what}.")
        split = cls(*map(int, found.groups()))
        if not all(1 <= degree <= limits.MAX_DEGREE for degree in split):
            raise ValueError(f"Each number of “{written.strip()}” must be from 1 to {limits.MAX_DEGREE}.")
        return split

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def world(self) -> int:
        """Number of devices."""
        return self.tp * self.pp * self.dp

    @property
    def label(self) -> str:
        """`Single`, `TP 2`, `DP 2 x TP 2`: a pipeline has no schedule here, as one stage works at a time."""
        degrees = (("DP", self.dp), ("TP", self.tp), ("PP", self.pp))
        return " x ".join(f"{axis} {degree}" for axis, degree in degrees if degree > 1) or "Single"


ONE = Split()
"""A single device."""


def submit(
    *,
    owner: Any,
    run: Run,
    step: int,
    request: Mapping[str, Any],
    split: Split = ONE,
    name: str = "",
    on: RunOn = ANYWHERE,
    priority: int = 0,
    also: services.Also = services.nothing_else,
) -> Run:
    """Queues a run that generates from `run`'s checkpoint of `step`, on the host that has it or on hosts that share its
    folder, and there on the devices chosen (`on`); `also` gets it.

    Raises services.Invalid with a message by field (`step`, `run_on`, `priority`, those of Split, or of
    parallel_core.generation_request.TextRequest).
    """
    begins = begins_from(run, step)
    if begins and (gone := resuming.absent(run, step)):
        raise services.Invalid({"step": gone})
    spec = spec_of(run, split, step)
    found = read_request(request, spec)
    errors = {**found.errors, **lost_weights(spec), **crowded(split, fleet_check(spec, begins, on))}
    if found.request is None or errors:
        raise services.Invalid(errors)
    start = text(found.request["prompt"], spec.model.vocab)
    made = name.strip() or f"{LABEL}: {start[:_NAME]}{'…' if len(start) > _NAME else ''}".replace("\x00", "")
    return services.submit(
        owner=owner,
        also=also,
        spec=spec.model_dump(mode="json"),
        name=made,
        resume_from=begins,
        task=dict(found.request),
        run_on=str(on),
        priority=priority,
    )


def lost_weights(spec: RunSpec) -> dict[str, str]:
    """Why no worker that reports can begin from the weights, at `step`; {} if one can, or the spec names none."""
    found = weights.weights_errors(spec, FleetSnapshot.now())
    return {"step": " ".join(found.values())} if found else {}


def fleet_check(spec: RunSpec, begins: ResumeFrom | None, on: RunOn = ANYWHERE) -> submission.FleetCheck:
    """What the devices chosen of the fleet say to a run that generates text from the checkpoint `begins`, or from the
    weights that the spec names."""
    return submission.fleet_check(spec, FleetSnapshot.now().narrowed(on), begins=begins, task="generate")


def crowded(split: Split, check: submission.FleetCheck) -> dict[str, str]:
    """Why no workers can hold so many ranks, at the field with the largest degree, or why those chosen cannot, at
    `run_on`; {} if some can."""
    wide = max(Split._fields, key=lambda name: getattr(split, name))
    at = places.FIELD if places.FIELD in check.errors else wide
    return {at: " ".join(check.errors.values())} if check.errors else {}


def spec_of(run: Run, split: Split, step: int | None = None) -> RunSpec:
    """The run's model on so many devices; `step` 0 may stand for the weights that it begins from (`begins_from`).
    Raises services.Invalid if it cannot be split like that."""
    try:
        read = weights_of(run) if step is not None and begins_from(run, step) is None else ""
        return inference(run.spec, *split, weights=read)
    except ValidationError as error:
        found = field_errors(error)
        field = next((name for name in ("pp", "dp") if f"parallel.{name}" in found), "tp")
        raise services.Invalid({field: " ".join(found.values())}) from error
    except ValueError as error:
        raise services.Invalid({"step": f"{error}."}) from error


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
    whole = [text([*prompt, *tokens], vocab) for tokens in samples]
    start = text(prompt, vocab)
    # A prompt may end inside a letter of several bytes: then the whole does not begin with it.
    return [
        Text(start, made.removeprefix(start), len(tokens)) if made.startswith(start) else Text("", made, len(tokens))
        for made, tokens in zip(whole, samples, strict=True)
    ]


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
    return f"{out}."


def figures(run: Run) -> list[tuple[str, str, str]]:
    """(title, value, note) of prefill, time of a token, speed, caches, and memory."""
    reported, prompt = _replicas(run), len(run.task["prompt"])
    first = merged(reported) if reported else None
    speed = rate(reported)
    caches = [rank["kv_bytes"] for rank in ranks(run).values()]
    what = "prompt token"
    over = f", over {len(reported)} replicas" if len(reported) > 1 else ""
    return [
        (
            "Prefill",
            seconds_text(first["prefill"]) if first else "–",
            f"{plural_text(prompt, what)}{_share(first)}",
        ),
        ("Time a token", seconds_text(speed[0]) if speed else "–", _spread(first)),
        ("Speed", rate_text(speed[1]) if speed else "–", f"{run.task['samples']} at a time{over}"),
        (
            "Keys and values",
            bytes_text(max(caches)) if caches else "–",
            _holders(run.devices, caches),
        ),
        generate_panel.figure(run),
    ]


def _holders(devices: int, caches: list[int]) -> str:
    """Where the caches are; stages may have different numbers of layers, and so caches of different sizes."""
    if devices == 1:
        return "on its one rank"
    return f"on each of {devices} ranks" if len(set(caches)) < 2 else f"on the fullest of {devices} ranks"


def _share(first: Mapping[str, Any] | None) -> str:
    """The prefill's share of the time so far."""
    if not first or not first["seconds"]:
        return ""
    return f", {percent_text(first['prefill'] / max(first['prefill'] + sum(first['seconds']), 1e-9))} of the time"


def _spread(first: Mapping[str, Any] | None) -> str:
    if not first or not first["seconds"]:
        return "median"
    seconds = sorted(first["seconds"])
    low, high = seconds[len(seconds) // 10], seconds[-1 - len(seconds) // 10]
    return f"median; 80 % within {seconds_text(low)} to {seconds_text(high)}"


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
    - kv_bytes: keys and values on the rank that has the most.
    - digest: SHA-256 of the tokens of all texts: equal for equal texts.
    - parts: analysis.generated.Parts of the slowest replica; None if its ranks have not told them.
    - positions: rows of analysis.generated.Stretch, on the slowest replica.
    """
    made = whole(run)
    if made is None:
        return None
    speed, prompt = rate(_replicas(run)), len(run.task["prompt"])
    own = where_it_goes(run)
    return {
        "parts": own._asdict() if own else None,
        "positions": [list(row) for row in over_position(made["seconds"], prompt)],
        "prefill": made["prefill"],
        "token": asdict(summarise(made["seconds"])) if speed else None,
        "tokens_per_s": speed[1] if speed else None,
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
