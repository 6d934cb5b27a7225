"""Which fields of a RunSpec a worker of an older version knows, and specs without those that it does not.

A worker refuses a spec with a field that its version lacks, even at its default, and stored specs contain all fields.
So a worker announces the fields that were added after EARLIEST; a run that needs no others is sent to it without the
rest, and any other run waits for a newer worker. This is exact because a new field's default is what versions without
the field do. One is not (`ABSENT`): a run with either value is sent, and there has that of those versions. A word that
is new among those of a choice that workers know (`WORDS`), such as a schedule, is announced, too, as `<field>=<word>`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from parallel_core.faults import KINDS
from parallel_core.field_names import sections
from parallel_core.outline import BUILT_IN_CORPORA, FILE_CORPORA
from parallel_core.spec import RunSpec

_FIRST = {
    "model": "kind layers hidden heads kv_heads ffn seq vocab positions rope_base activation norm attention bias tied "
    "dropout width image",
    "parallel": "dp tp pp schedule micro_batches chunks program early_gradients tensor_split sequence recompute "
    "recompute_layers zero zero_backend cuts replicas widths",
    "train": "steps warmup_steps global_batch lr weight_decay beta1 beta2 eps clip_norm clip seed precision loss_scale "
    "loss_scale_window loss_scale_growth loss_scale_backoff corpus device deterministic checkpoint_every keep",
    "trace": "trace_every fingerprint_every memory memory_cap reference profile_steps profile_ranks",
    "inject": "straggler straggler.rank straggler.factor slow_link slow_link.rank slow_link.peer slow_link.ms "
    "slow_group slow_group.axis slow_group.ms unbalanced_cut unbalanced_cut.stage unbalanced_cut.units slow_data "
    "slow_data.ms tiny_kernels tiny_kernels.rank tiny_kernels.count memory_hog memory_hog.rank memory_hog.mib high_lr "
    "high_lr.factor high_lr.step high_scale high_scale.scale flipped_bit flipped_bit.rank flipped_bit.step",
}
CORPUS = "train.corpus"
WORDS = {
    "model.kind": "gpt mlp vgg16 resnet50 gnmt",
    "model.positions": "learned rope",
    "model.activation": "gelu swiglu",
    "model.norm": "layernorm rmsnorm",
    "model.attention": "fused plain",
    "parallel.schedule": "naive gpipe 1f1b interleaved looped-bfs zb-h1 zb-h2 zb-v v-half v-min dualpipe-v 1f1b-naive "
    "1f1b-stash 1f1b-vertical 1f1b-2bw custom",
    "parallel.tensor_split": "pairs columns",
    "parallel.recompute": "none selective full",
    "parallel.zero_backend": "own fully_shard",
    "train.lr_schedule": "constant linear cosine",
    "train.optimizer": "adamw sgd",
    "train.clip": "global stage",
    "train.precision": "fp32 fp64 bf16 fp16",
    CORPUS: "stdlib digits django blob tokens",
    "train.device": "cpu cuda",
}
"""Dotted name of each choice -> the words that every worker takes which knows the field; of a corpus, what stands
before the colon. A word that is added to a choice is not added here: workers without it refuse a spec that has it."""
_PLACES = tuple((field, *field.split(".")) for field in WORDS)
"""(choice, its section, its name in that) of each."""
EARLIEST = frozenset(
    {f"{section}.{name}" for section, names in _FIRST.items() for name in names.split()}
    | {f"{field}={word}" for field, words in WORDS.items() for word in words.split()}
)
"""Dotted names of the fields, and of the kinds of faults with theirs, when workers began to announce later ones, and
the words of choices. What is added to a spec is not added here."""


ABSENT: dict[str, Any] = {"train.stop_on_nan": False}
"""Dotted names of fields whose default is another value than what versions without them do, with that value."""


def later() -> list[str]:
    """Dotted names of this version's fields, kinds of faults, and words of choices, beyond EARLIEST: what a worker
    announces."""
    found = {f"{at}.{name}" for at, kind in sections(RunSpec).items() if at for name in kind.model_fields}
    found |= {f"inject.{kind}" for kind in KINDS}
    found |= {f"inject.{kind}.{name}" for kind, made in KINDS.items() for name in made.fields()}
    found |= {f"{field}={word}" for field in WORDS for word in words_of(field)}
    return sorted(found - EARLIEST)


def words_of(choice: str) -> tuple[str, ...]:
    """The words that this version takes as the choice with this dotted name."""
    if choice == CORPUS:
        return (*BUILT_IN_CORPORA, "blob", *FILE_CORPORA)
    section, name = choice.split(".")
    return get_args(sections(RunSpec)[section].model_fields[name].annotation)


def needs_later(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Dotted names beyond EARLIEST that a worker must know for this dumped spec: those of fields that do not have their
    default, of kinds of faults, and words of choices."""
    used = {name for name, is_default in _later_leaves(spec) if not is_default}
    return tuple(sorted(used | (_chosen(spec) - EARLIEST)))


def _chosen(spec: Mapping[str, Any]) -> set[str]:
    """`<field>=<word>` of every choice that the dumped spec has."""
    found = {(field, spec[at][name]) for field, at, name in _PLACES if at in spec and name in spec[at]}
    return {f"{field}={value if field != CORPUS else str(value).partition(':')[0]}" for field, value in found}


def without_unknown(spec: Mapping[str, Any], announced: Collection[str]) -> dict[str, Any]:
    """A dumped spec without those fields at their default that a worker with these later fields does not know."""
    return _without(spec, {name for name, is_default in _later_leaves(spec) if is_default} - set(announced))


def without_later(spec: Mapping[str, Any], needs: Callable[[str], bool]) -> dict[str, Any]:
    """A dumped spec without faults, and without those fields beyond EARLIEST, whatever their values, for whose dotted
    names `needs` is False: for a worker that does something else with it than train."""
    sound = {**spec, "inject": []}
    return _without(sound, {name for name, _ in _later_leaves(sound) if not needs(name)})


def _without(spec: Mapping[str, Any], unknown: set[str]) -> dict[str, Any]:
    if not unknown:
        return dict(spec)
    out: dict[str, Any] = {}
    for at, value in spec.items():
        if isinstance(value, Mapping):
            kept = _kept(at, value, unknown)
            if kept or not value:  # a section of which nothing is known has to go, too
                out[at] = kept
        else:
            out[at] = [_kept(f"inject.{fault['kind']}", fault, unknown) for fault in value] if at == "inject" else value
    return out


def _kept(at: str, values: Mapping[str, Any], unknown: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if f"{at}.{name}" not in unknown}


def _later_leaves(spec: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether the value is the default, or what versions without the field do) of all fields of a dumped
    spec beyond EARLIEST; a fault's kind is none."""
    kinds = sections(RunSpec)
    for at, values in spec.items():
        if at in kinds:
            defaults = _defaults(kinds[at])
            for name, value in values.items():  # plain, because it is done for each field of each queued run of a page
                if (path := f"{at}.{name}") not in EARLIEST:
                    yield path, value in (defaults.get(name, ...), ABSENT.get(path, ...))
    for fault in spec.get("inject", ()):
        at, made = f"inject.{fault['kind']}", KINDS.get(fault["kind"])
        defaults = _defaults(made) if made else {}
        named = ((f"{at}.{name}", defaults.get(name, ...) == value) for name, value in fault.items() if name != "kind")
        yield from (leaf for leaf in ((at, False), *named) if leaf[0] not in EARLIEST)


@lru_cache(maxsize=64)
def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """Name -> default, as in a dumped spec; only of fields that have one."""
    fields = {name: info for name, info in kind.model_fields.items() if not info.is_required()}
    return {name: to_jsonable_python(info.get_default(call_default_factory=True)) for name, info in fields.items()}
