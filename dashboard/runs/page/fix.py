"""The one change that would most likely fix a failed run."""

from __future__ import annotations

import numpy as np

from dashboard.control.multi_host import NONE_FAILED
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import resuming, selectors
from dashboard.runs.findings import change_of
from dashboard.runs.form.form_words import in_form_words, short_label
from dashboard.runs.generation import generate_panel
from dashboard.runs.left_out import NO_SPACE, QUOTA
from dashboard.runs.models import Run
from dashboard.runs.run_files import Files
from dashboard.runs.states import retries_at_first
from dashboard.runs.waiting.crashes import signal_of
from dashboard.runs.waiting.fleet_checks import offered_to
from parallel_core.analysis.diagnosis.divergence import MEAN
from parallel_core.analysis.diagnosis.fp16_overflow import IN_BF16
from parallel_core.analysis.quantities import bytes_text, plural_text, step_text
from parallel_core.data.corpus import CorpusError
from parallel_core.observe.progress import CONNECTING
from parallel_core.plan.memory import NOT_COUNTED, counted, none_fits, tried_fixes, worst_stage
from parallel_core.spec import RunSpec

WARM_UP = "train.lr_warmup_steps"
BREAKS = {"out_of_memory": ("memory_hog",), "not_finite": ("high_lr", "high_scale", "flipped_bit")}
"""Cause -> the kinds of injected faults that can end a run so."""


def fix(run: Run) -> str:
    """The one change that would most likely fix a failed run."""
    if injected := _injected(run):
        return f"Clone it without the fault “{injected}” that it injects: a run can end so by that alone."
    if run.cause == "out_of_memory" and not run.between:
        return generate_panel.fix(run) if run.generates else _less_memory(run)
    if named := _of_its_error(run):
        return named
    if run.resume_run and _of_its_checkpoint(run):
        return _elsewhere(run.resume_run, run.resume_step, generates=run.generates)
    if run.cause == "not_finite":
        return _of_loss(run)
    again = _again(run)
    if run.cause == "killed_by_signal" and signal_of(run.detail):
        other = "on another device" if run.task else "with another layout or device"
        return f"{again} {other}: its own process crashed; the end of its log has its stacks."
    if run.cause == "killed_by_signal":
        how = "as it is" if run.task else f"with {_retries(run)}"
        return f"{again} {how}: the signal came from outside; if it returns, see the kernel log."
    if _never_met(run):
        where = "on any port, each at the address that Fleet shows (TRAINYARD_ADDRESS)"
        return f"See that its hosts reach each other {where}, then {again[:1].lower()}{again[1:]}."
    if run.task:
        return _of_task(run, again)
    return {
        "user_code": "Clone it and change what the traceback names; the log below has the lines before it.",
        "worker_lost": f"{again} with {_retries(run)}, used if a worker, a rank or the network between hosts is lost.",
        "timed_out": "Clone it on fewer devices, or see the Ranks tab for the one that did not start.",
        "no_progress": "See the Ranks tab for the rank and operation that stood still, then clone it.",
        "refused": "Bring worker and dashboard to the same version, then clone it.",
    }.get(run.cause, "Clone it; the log below says more.")


def _of_its_error(run: Run) -> str:
    """What mends an error that the run's detail names; '' for any other one."""
    if "ReplicasDiffer" in run.detail:
        return "Resume from an earlier checkpoint, on another device: a device or its memory changed a value."
    again = _again(run)
    if f"{CorpusError.__name__}: " in run.detail:
        return f"{again} once the right data are where its worker reads them."
    if "AddressError: " in run.detail:
        reached = "an address of its host that the others reach"
        where = _first_worker(run)
        return f"Set TRAINYARD_ADDRESS on {where} to {reached}, start it again, then {again[:1].lower()}{again[1:]}."
    if NO_SPACE in run.detail:
        return f"{again} once its worker's disk has room (Fleet says what is left), or keep fewer checkpoints."
    if QUOTA in run.detail:
        more = "once its worker's user has less on that disk, or a larger quota (`quota -s` there)"
        return f"{again} {more}, or keep fewer checkpoints."
    return ""


def _never_met(run: Run) -> bool:
    """Whether its ranks, on several hosts, were all connecting when it ended, and none of them failed by itself."""
    attempt = selectors.attempt_of(run)
    if attempt is None or len(attempt.devices) < 2:
        return False
    if run.cause == "worker_lost":
        return f" in {CONNECTING}. {NONE_FAILED}" in run.detail
    places = run.detail.partition(": ")[2].rstrip(".").split("; ")
    return run.cause == "no_progress" and all(place.endswith(f" in {CONNECTING}") for place in places)


def _first_worker(run: Run) -> str:
    attempt = selectors.attempt_of(run)
    return str(attempt.devices[0]["worker"]) if attempt and attempt.devices else "the worker of rank 0"


def _of_task(run: Run, again: str) -> str:
    """As for a run that trains, of one that cannot be cloned. Links are timed without retries."""
    then, beside = f"then {again[:1].lower()}{again[1:]}", "See the table of ranks below for the one that"
    lost = f"{again} once its workers report and their hosts reach each other" if run.between else ""
    return {
        "out_of_memory": f"{again} on free devices.",
        "user_code": f"{again} once what the traceback names is mended; the log below has the lines before it.",
        "worker_lost": f"{lost or f'{again} once its worker reports'}.",
        "timed_out": f"{beside} did not start, {then}.",
        "no_progress": f"{beside} stood still, {then}.",
        "refused": f"Bring worker and dashboard to the same version, {then}.",
    }.get(run.cause, f"{again}; the log below says more.")


def _retries(run: Run) -> str:
    return "more retries" if retries_at_first(run) else "a retry"


def _of_loss(run: Run) -> str:
    """What its finding asks for, from a checkpoint that is sound; a checkpoint keeps its precision."""
    change = change_of(run, "divergence")
    said = in_form_words(f"{change[:1].lower()}{change[1:]}")
    if change == IN_BF16:
        return f"Clone it and {said.removesuffix('.')}; its checkpoints are of fp16."
    again = _again(run, _before_it_rose(run))
    return f"{again} and {said}" if said else f"{again} at a lower learning rate, or one that {_warms_up(run)}."


def _warms_up(run: Run) -> str:
    warmed = RunSpec.stored(run.spec).train.lr_warmup_steps
    over = f" over more than {plural_text(warmed, 'step')}" if warmed else ""
    return f"warms up{over} (“{short_label(WARM_UP)}”)"


def _injected(run: Run) -> str:
    """The title of a fault in its spec that can have ended it; "" without one."""
    kinds = ("flipped_bit",) if "ReplicasDiffer" in run.detail else BREAKS.get(run.cause, ())
    return next((fault.title for fault in RunSpec.stored(run.spec).inject if fault.kind in kinds), "")


def _of_its_checkpoint(run: Run) -> bool:
    """Whether it failed because the checkpoint it was to begin from is gone, damaged or of another model."""
    return "CheckpointError" in run.detail or (run.cause == "refused" and "checkpoint" in run.detail.lower())


def _elsewhere(source: Run, step: int | None, *, generates: bool) -> str:
    """What to begin from instead of the source's checkpoint of `step`: the newest other one, or nothing."""
    do = "Generate" if generates else "Resume it"
    if others := [own for own in resuming.sound(source) if own != step]:
        return f"{do} from another checkpoint of run {source.pk}: {step_text(others[-1])}."
    what = f"Clone run {source.pk}, which makes new ones" if generates else "Clone it with nothing in Resume from"
    return f"Run {source.pk} has no other checkpoint. {what}."


def _again(run: Run, until: int | None = None) -> str:
    """How to do the rest of the run, from a checkpoint of so many steps at most."""
    if run.between:
        return "Time the links again on Fleet"
    if run.generates:
        return "Generate again"
    steps = [step for step in resuming.sound(run) if until is None or step <= until]
    return f"Resume it from {step_text(steps[-1])}" if steps else "Clone it"


def _before_it_rose(run: Run) -> int:
    """How many steps were done at the least of the MEAN losses that are lowest together: what was saved later had
    diverged already."""
    loss = selectors.series(run, "loss")
    finite = np.isfinite(loss.value)
    values, over = loss.value[finite], min(MEAN, int(finite.sum()))
    if not over:
        return 0
    begin = int(np.convolve(values, np.ones(over), "valid").argmin())
    return int(loss.step[finite][begin + values[begin : begin + over].argmin()]) + 1


def _less_memory(run: Run) -> str:
    """The cheapest change by which it is predicted to fit. Without a cap the limit is not known here, so 10 % less than
    predicted is aimed at; nothing is named where that takes too long to count."""
    spec, fleet = RunSpec.stored(run.spec), FleetSnapshot.now().narrowed(run.chosen_devices)
    if not spec.trace.memory_cap and not counted(spec):
        return f"Clone it with a smaller model or batch. {NOT_COUNTED}"
    limit = spec.trace.memory_cap or round(0.9 * worst_stage(spec).total)
    begins = run.resumes_from
    alone, _, offered = offered_to(spec, fleet, Files.of(fleet), begins=begins, host_count=run.host_count)
    here = offered.most(alone)
    fixes = tried_fixes(spec, limit, here)[0] if here else ()
    beyond = "" if fixes or not here else f" That takes more devices than one run can have here: {here}."
    if beyond and alone:
        beyond += f" All its ranks must be on one host, because {alone}."
    fixes, all_tried = (fixes, True) if fixes else tried_fixes(spec, limit)
    if not fixes:
        cap = "larger cap on memory, or a " if spec.trace.memory_cap else ""
        return f"{none_fits(all_tried)}: clone it with a {cap}smaller model or batch."
    first = fixes[0]
    return f"Clone it and {first.text}: the worst rank is then predicted to need {bytes_text(first.total)}.{beyond}"
