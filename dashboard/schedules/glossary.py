"""Explains the short names of strategies on pages that show runs of them: one line each, from the cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dashboard.schedules.cards import CARDS, Card
from parallel_core.outline.recompute import recompute_label
from parallel_core.rules.stages import dashed_text
from parallel_core.schedule.traits import CUSTOM, TRAITS
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


OWN = Word(
    TRAITS[CUSTOM].label,
    "Own schedule",
    "A person wrote, as CSV or JSON, which operations each rank does, and in which order.",
)
REPLICAS = "Replicas of each stage"
WIDTHS = "Tensor ranks of each stage"
SOME = "Some layers alone"
BY_STAGE = {
    REPLICAS: "The first stage is there as often as the first number says; micro-batches go to its replicas in turn.",
    WIDTHS: "Each matrix of the first stage is cut for as many ranks as the first number says, and so on.",
    SOME: "Of the blocks, counted from 0, only these recompute; the others keep their activations.",
}
"""Meanings of what a label has numbers for; they are said once, however many such labels there are."""


MEANINGS = {
    "looped-bfs": "GPipe over the v smaller stages of each device: all micro-batches pass one of them, then the next.",
    "zb-h2": "Zero bubble with more forwards ahead: the fill is not idle, but 2 p − 1 micro-batches are kept.",
    "zb-v": "Zero bubble over two stages a device, laid out as a V: least idle time, and the memory of 1F1B.",
    "v-half": "Zero bubble over a V of stages, in an order that keeps about half of the activations of 1F1B.",
    "v-min": "Zero bubble over a V of stages, in an order that keeps about a third of the activations of 1F1B.",
    "dualpipe-v": "Zero bubble over a V of stages; forward of one micro-batch and backward of another go as a pair.",
    "1f1b-naive": "1F1B without a flush that keeps no older weights: forward and backward of a micro-batch see others.",
    "1f1b-vertical": "PipeDream with one version for each micro-batch: the newest that all stages have.",
    "1f1b-2bw": "PipeDream-2BW: each stage updates once for all micro-batches of a step, so that two versions do.",
}
"""Meanings of schedules whose card describes another one: interleaved 1F1B, ZB-H1, or PipeDream with stashes."""


def words_of(specs: Iterable[RunSpec]) -> list[Word]:
    """Each name that the labels and charts of these runs use, once, in order of first use."""
    found: dict[str | Word, Word] = {}
    for word in (word for spec in specs for word in _words(spec)):
        found.setdefault(word.title if word.title in BY_STAGE else word, word)
    return list(found.values())


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
        card = _pipeline(label)
        yield Word(label, card.title, MEANINGS.get(split.schedule, card.idea), card.key) if card else OWN
    if split.replicas is not None:
        yield Word(dashed_text(split.replicas), REPLICAS, BY_STAGE[REPLICAS])
    if split.widths is not None:
        yield Word(f"TP {dashed_text(split.widths)}", WIDTHS, BY_STAGE[WIDTHS])
    if split.early_gradients:
        yield EARLY
    if split.recompute != "none":
        yield _from("ar", "AR")
        if split.recompute_layers is not None:
            yield Word(recompute_label(split), SOME, BY_STAGE[SOME])
    if split.micro_batches > 1:
        yield PARTS
    if split.pp > 1:
        yield BUBBLE


def _from(key: str, name: str) -> Word:
    card = next(card for card in CARDS if card.key == key)
    return Word(name, card.title, card.idea, card.key)


def _pipeline(label: str) -> Card | None:
    """The card whose `seen` has the label of a schedule; None for a user's own schedule."""
    return next((card for card in CARDS if label in card.seen), None)
