"""Explains the short names of strategies on pages that show runs of them: one line each, from the cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dashboard.schedules.cards import CARDS, Card
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec


class Word(NamedTuple):
    """A name with its meaning; `place` = its card on the Strategies page, "" if it has none."""

    name: str
    title: str
    meaning: str
    place: str = ""


SINGLE = Word("Single", "One device", "The whole model and the whole batch on one device.")
PARTS = Word("Micro-batches", "Parts of the batch", "They go through one by one; their gradients are added up.")
BUBBLE = Word("Bubble", "Idle time", "A device waits because what it needs is not there yet.")


EARLY = Word(
    "Early gradients",
    "Sent before W",
    "A stage sends the gradient that the one before it waits for, then makes those of its own weights.",
)


STREAMED = {
    "1f1b-naive": "1F1B without a flush that keeps no older weights: forward and backward of a micro-batch see others.",
    "1f1b-vertical": "PipeDream with one version for each micro-batch: the newest that all stages have.",
    "1f1b-2bw": "PipeDream-2BW: each stage updates once for all micro-batches of a step, so that two versions do.",
}
"""Meanings of schedules that share PipeDream's card, which describes the one with stashed weights."""


def words_of(specs: Iterable[RunSpec]) -> list[Word]:
    """Each name that the labels and charts of these runs use, once, in order of first use."""
    return list(dict.fromkeys(word for spec in specs for word in _words(spec)))


def _words(spec: RunSpec) -> Iterator[Word]:
    split = spec.parallel
    if split.world == 1:
        yield SINGLE
    if max(split.copies) > 1:
        yield _from("dp", "DP")
    if split.zero:
        yield _from("zero3" if split.zero == 3 else "zero", f"ZeRO-{split.zero}")
    if max(split.tensor_ranks) > 1:
        yield _from("tp-columns" if split.tensor_split == "columns" else "tp", "TP")
    if split.sequence:
        yield _from("sp", "SP")
    if split.pp > 1:
        label = TRAITS[split.schedule].label
        if card := _pipeline(label):
            yield Word(label, card.title, STREAMED.get(split.schedule, card.idea), card.key)
    if split.early_gradients:
        yield EARLY
    if split.recompute != "none":
        yield _from("ar", "AR")
    if split.micro_batches > 1:
        yield PARTS
    if split.pp > 1:
        yield BUBBLE


def _from(key: str, name: str) -> Word:
    card = next(card for card in CARDS if card.key == key)
    return Word(name, card.title, card.idea, card.key)


def _pipeline(label: str) -> Card | None:
    """The card whose `seen` matches the label longest; None for a user's own schedule."""
    fitting = [(len(start), card) for card in CARDS for start in card.seen if label.startswith(start)]
    return max(fitting, key=lambda found: found[0])[1] if fitting else None
