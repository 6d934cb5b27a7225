"""Which models are Llamas, so that their weights can be written as Hugging Face's; without torch, for pages."""

from __future__ import annotations

from parallel_core.model_spec import ModelSpec

LLAMA = {"kind": "gpt", "positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
"""What makes a GPT of this engine a Llama (LlamaForCausalLM of transformers): field of its ModelSpec -> value."""


def no_llama(model: ModelSpec) -> str:
    """What makes the model none, `model.norm=layernorm, not rmsnorm`; '' if it is one."""
    wrong = [name for name, value in LLAMA.items() if getattr(model, name) != value]
    return f"model.{wrong[0]}={getattr(model, wrong[0])}, not {LLAMA[wrong[0]]}" if wrong else ""
