"""What a replayed step is said to gain or lose, the same for runs and imported traces. Times in ns."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.runs.form.choice_labels import CHOICE_LABELS
from parallel_core.analysis.quantities import ns_text, percent_text, ratio_text, significant
from parallel_core.simulate.replay import FREE, Change, Replay, recut
from parallel_core.spec import RunSpec

LEAST_GAIN = 0.005
"""As a part of the step: a smaller effect is called no change."""
MATTERS = 0.05
"""From this part of a prediction on, what its messages are taken to need is said to decide it."""


def speedup(measured: float, took: float) -> float:
    """How many times as fast a step of `took` ns is; 1 where nothing that takes time is left."""
    return measured / took if took else 1.0


def gain_text(gain: float) -> str:
    """A speedup in a table."""
    return "no change" if abs(gain - 1) < LEAST_GAIN else ratio_text(gain)


def effect(changes: Sequence[str], measured: float, took: float) -> str:
    """What the `changes`, in words, do to a step, in a sentence."""
    if not changes:
        whole = "the step as it was measured, from its first instant on any rank to its last"
        return f"{ns_text(measured)} is {whole}. Change something, or take a line of the table."
    gain = speedup(measured, took)
    if abs(gain - 1) < LEAST_GAIN:
        return f"{ns_text(took)} a step, as measured: {', '.join(changes)} would change nothing."
    word = "faster" if gain > 1 else "slower"
    times = ratio_text(gain if gain > 1 else 1 / gain)
    return f"{ns_text(took)} instead of {ns_text(measured)}, {times} {word}: {', '.join(changes)}."


def check(again: float, measured: float) -> str:
    """How far the unchanged replay `again` is from the measured step, in a sentence; '' for a step without length."""
    if not measured:
        return ""
    off = percent_text(abs(again / measured - 1))
    return f"Replayed unchanged: {ns_text(again)}, measured {ns_text(measured)} ({off} off)."


def sentence(change: Change, made: Replay, measured: float, before: RunSpec | None = None) -> str:
    """What the change does to a step of `measured` ns; `before`: its spec, where its layers are known."""
    return effect(_words(change, before), measured, made.step)


def if_messages_stay(late: float, proportional: float) -> str:
    """A sentence on a step of `late` ns where messages take as long whatever their size, with a space before it; ''
    where that is nearly the step of `proportional` ns, or nothing is known (0)."""
    if not late or not proportional or abs(late / proportional - 1) < MATTERS:
        return ""
    return f" If messages take as long as before whatever their size: {ns_text(late)}."


def schedule_words(name: str, before: RunSpec | None) -> str:
    """A schedule as a change of the spec `before`; says so where its cuts could not stay."""
    words = f"schedule {CHOICE_LABELS.get(name, name)}"
    return f"{words} with stages cut by FLOPs" if before is not None and recut(before, name) else words


def _words(change: Change, before: RunSpec | None) -> list[str]:
    plain = Change()
    parts = [
        (change.links != 1, "free communication" if change.links == FREE else f"links {change.links:g} times as fast"),
        (change.device != 1, f"a device {significant(change.device)} times as fast"),
        (change.no_recompute, "no recomputation"),
        (change.balanced, "balanced stages"),
        (bool(change.schedule), schedule_words(change.schedule, before)),
        (bool(change.micro_batches), f"{change.micro_batches} micro-batches"),
        (change.early_gradients, "early gradients"),
    ]
    return [] if change == plain else [words for here, words in parts if here]
