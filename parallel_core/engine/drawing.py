"""Draws the next token of each sample from the logits of a model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parallel_core.launch import GenerationRequest


def draw(logits: Tensor, number: int, request: GenerationRequest, samples: range) -> list[int]:
    """Returns one token for each of the `samples` with these logits [samples, vocabulary]: a function of the logits and
    of (seed, number of the token, sample).

    Raises FloatingPointError where no token is the likeliest: a logit is not a number, or infinite.
    """
    top = logits.amax(-1, keepdim=True)  # not a number if any is none
    if wrong := torch.isfinite(top).logical_not().flatten().nonzero().flatten().tolist():
        raise FloatingPointError(
            f"Token {number + 1} of text {samples[wrong[0]] + 1} cannot be chosen: the model's logits are not finite."
        )
    if request["temperature"] == 0:
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest
    below = _keep_top_k(logits, request.get("top_k", 0)).double() - top.double()
    key = np.array([request["seed"], number], np.uint64)
    every = np.random.Generator(np.random.Philox(key=key)).random(request["samples"])
    at = torch.from_numpy(every[samples])[:, None]
    # Divided after the subtraction: the largest one is 0 at any temperature, where a quotient may overflow.
    sums = torch.softmax(below.cpu() / request["temperature"], -1).cumsum(-1)
    found: list[int] = torch.searchsorted(sums, at * sums[:, -1:], right=True).squeeze(1).tolist()
    return [min(token, logits.shape[1] - 1) for token in found]


def _keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Sets all but the k largest logits of each row to minus infinity; k = 0 keeps all."""
    if not 0 < k < logits.shape[1]:
        return logits
    least = logits.topk(k, -1).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)
