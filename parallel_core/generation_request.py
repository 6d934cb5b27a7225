"""Requests to generate text: what to generate on which devices, with the rules shared by command line, form, API and
worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parallel_core import limits
from parallel_core.analysis.quantities import plural_text
from parallel_core.launch import GenerationRequest
from parallel_core.plan.partition import generation_weights, min_max_cut
from parallel_core.rules import field_errors
from parallel_core.spec import DeviceKind, RunSpec

MAX_SAMPLES = 64
Token = Annotated[int, Field(ge=0, le=limits.MAX_VOCAB)]


class TextRequest(BaseModel):
    """A request for `samples` texts of `new` tokens that continue `prompt` (token ids; bytes for a vocabulary of at
    most 256).

    `temperature` 0 takes the most likely token, otherwise tokens are drawn from the softmax of logits / temperature;
    `top_k` restricts that to the k most likely ones, 0 = all. `cached` False computes every token from the whole text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    prompt: Annotated[tuple[Token, ...], Field(max_length=limits.MAX_PROMPT)]
    new: Annotated[int, Field(ge=1, le=limits.MAX_SEQ)] = 64
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0, le=limits.MAX_VOCAB)] = 0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 7
    cached: bool = True

    def to_dict(self) -> GenerationRequest:
        """Returns the request as the fork server takes it."""
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
    """A valid request, or error messages by field."""

    request: GenerationRequest | None
    errors: dict[str, str]


def read_request(raw: Mapping[str, Any], spec: RunSpec) -> Read:
    """Validates a request for text from the model of `spec`."""
    try:
        found = TextRequest.model_validate(dict(raw))
    except ValidationError as error:
        return Read(None, field_errors(error))
    wrong = _room(found, spec)
    return Read(None, wrong) if wrong else Read(found.to_dict(), {})


def texts_of(samples: int, replicas: int, replica: int) -> range:
    """Returns which of `samples` texts a replica generates; the first replicas may have one more than the others."""
    each, more = divmod(samples, replicas)
    first = replica * each + min(replica, more)
    return range(first, first + each + (replica < more))


def _room(request: TextRequest, spec: RunSpec) -> dict[str, str]:
    vocab, seq, size = spec.model.vocab, spec.model.seq, len(request.prompt)
    if not size:
        return {"prompt": "the prompt is empty; give at least one token to go on from."}
    if max(request.prompt) >= vocab:
        return {"prompt": f"the model knows tokens 0 to {vocab - 1}; the prompt has {max(request.prompt)}."}
    if size >= seq:
        return {"prompt": f"the model's sequence is {seq} tokens and the prompt has {size}; use at most {seq - 1}."}
    if size + request.new > seq:
        room = f"the model's sequence is {seq} tokens and the prompt has {size}"
        return {"new": f"{room}; at most {seq - size} can be generated."}
    if spec.parallel.dp > request.samples:
        shared = f"dp={spec.parallel.dp} replicas share {plural_text(request.samples, 'text')}"
        most = f"dp={request.samples}" + (" or less" if request.samples > 1 else "")
        return {"dp": f"{shared}, and each needs one; use {most}, or more texts."}
    return {}


def inference(
    saved: Mapping[str, Any], tp: int, pp: int = 1, dp: int = 1, device: DeviceKind | None = None, weights: str = ""
) -> RunSpec:
    """Returns the spec to generate with a checkpoint's model on `dp` replicas of `pp` stages of `tp` devices, without
    dropout. Stages are balanced by memory, as more of them make room and not speed: one stage works at a time.

    `saved`: the spec of the checkpoint's run, whose kind of device is used unless `device` is given. `weights`: the
    name of weights to read instead of a checkpoint. Raises ValidationError where the model cannot be split in this way,
    ValueError where it does not generate text.
    """
    model, train = dict(saved["model"]), saved["train"]
    if model.get("kind", "gpt") != "gpt":
        raise ValueError(f"only kind=gpt generates text, and this checkpoint has kind={model['kind']}")
    kept = {
        "precision": train["precision"],
        "device": device or train["device"],
        "global_batch": dp,
        "weights": weights,
    }
    split = {"dp": dp, "tp": tp, "pp": pp}
    spec = RunSpec.model_validate({"model": {**model, "dropout": 0.0}, "parallel": split, "train": kept})
    if pp == 1:
        return spec
    cuts = min_max_cut(generation_weights(spec.model), pp)
    return RunSpec.model_validate({**spec.model_dump(mode="json"), "parallel": {**split, "cuts": cuts}})
