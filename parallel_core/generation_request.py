"""What text is to be generated, and on which devices: the rules that command line, form, API and worker share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parallel_core import limits
from parallel_core.analysis.quantities import plural_text
from parallel_core.launch import Wish
from parallel_core.rules import field_errors
from parallel_core.spec import RunSpec

MAX_SAMPLES = 64
Token = Annotated[int, Field(ge=0, le=limits.MAX_VOCAB)]


class TextRequest(BaseModel):
    """`new` tokens behind `prompt` (numbers of tokens; of a vocabulary of at most 256, bytes), `samples` times.

    `temperature` 0 takes the likeliest token, else the softmax of logits / temperature is drawn from; `top_k` leaves
    the k likeliest alone to it, 0 all. `cached` False makes every token from the whole text again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    prompt: Annotated[tuple[Token, ...], Field(max_length=limits.MAX_PROMPT)]
    new: Annotated[int, Field(ge=1, le=limits.MAX_SEQ)] = 64
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0, le=limits.MAX_VOCAB)] = 0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 7
    cached: bool = True

    def wish(self) -> Wish:
        """As the fork server takes it."""
        return {
            "prompt": list(self.prompt),
            "new": self.new,
            "samples": self.samples,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "seed": self.seed,
            "cached": self.cached,
        }


class Read(NamedTuple):
    """A wish, or messages by field."""

    wish: Wish | None
    errors: dict[str, str]


def read_request(raw: Mapping[str, Any], spec: RunSpec) -> Read:
    """The wish for text of the model of `spec`, checked."""
    try:
        found = TextRequest.model_validate(dict(raw))
    except ValidationError as error:
        return Read(None, field_errors(error))
    wrong = _room(found, spec)
    return Read(None, wrong) if wrong else Read(found.wish(), {})


def texts_of(samples: int, replicas: int, replica: int) -> range:
    """Which of `samples` texts one of `replicas` generates: as many as the others, the first ones maybe one more."""
    each, more = divmod(samples, replicas)
    first = replica * each + min(replica, more)
    return range(first, first + each + (replica < more))


def _room(wish: TextRequest, spec: RunSpec) -> dict[str, str]:
    vocab, seq, size = spec.model.vocab, spec.model.seq, len(wish.prompt)
    if not size:
        return {"prompt": "the prompt is empty; give at least one token to go on from."}
    if max(wish.prompt) >= vocab:
        return {"prompt": f"the model knows tokens 0 to {vocab - 1}; the prompt has {max(wish.prompt)}."}
    if size >= seq:
        return {"prompt": f"the model's sequence is {seq} tokens and the prompt has {size}; use at most {seq - 1}."}
    if size + wish.new > seq:
        room = f"the model's sequence is {seq} tokens and the prompt has {size}"
        return {"new": f"{room}; at most {seq - size} can be generated."}
    if spec.parallel.dp > wish.samples:
        shared = f"data={spec.parallel.dp} replicas share {plural_text(wish.samples, 'text')}"
        return {"dp": f"{shared}, and each needs one; use data={wish.samples} or less, or more texts."}
    return {}


def inference(saved: Mapping[str, Any], tp: int, pp: int = 1, dp: int = 1) -> RunSpec:
    """The spec of a checkpoint's model (its run's spec is `saved`) on `dp` replicas of `pp` stages of `tp` devices,
    without dropout.

    Raises ValidationError where it cannot be split so, ValueError where the model makes no text.
    """
    model, train = dict(saved["model"]), saved["train"]
    if model.get("kind", "gpt") != "gpt":
        raise ValueError(f"only a GPT generates text; this checkpoint is a {model['kind']} model")
    kept = {"precision": train["precision"], "device": train["device"], "global_batch": dp}
    split = {"dp": dp, "tp": tp, "pp": pp}
    return RunSpec.model_validate({"model": {**model, "dropout": 0.0}, "parallel": split, "train": kept})
