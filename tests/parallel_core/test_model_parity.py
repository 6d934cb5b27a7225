"""Every kind of model computes under every layout what one process computes, within the bounds of `parity`.

All cases with the same number of ranks train in one launch; outside of the full suite, only the cases that combine
several features run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from parallel_core.spec import RunSpec
from tests.parallel_core.parity import TRAIN, Launches, assert_equal, spec_of

LLAMA = {"kv_heads": 2, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "dropout": 0.1},
    "gpt-dropout": {"dropout": 0.2},
    "shared-keys": {"kv_heads": 2},
    "rope": {"positions": "rope"},
    "swiglu": {"activation": "swiglu", "ffn": 48},
    "rmsnorm": {"norm": "rmsnorm", "tied": True},
    "unbiased": {"bias": False},
    "mlp": {"kind": "mlp", "layers": 3, "hidden": 24, "dropout": 0.3},
    "vgg16": {"kind": "vgg16", "width": 2, "dropout": 0.5},
    "resnet50": {"kind": "resnet50", "width": 2, "image": 64},
    "gnmt": {"kind": "gnmt", "layers": 2, "hidden": 8, "seq": 12, "vocab": 50, "dropout": 0.2},
}
SPLITS: dict[str, dict[str, Any]] = {
    "dp-pp-ar": {"dp": 2, "pp": 2, "micro_batches": 2, "recompute": "full", "cuts": (4,)},
    "tp-pp": {"tp": 2, "pp": 2, "micro_batches": 4},
    "tp-ar": {"tp": 2, "micro_batches": 2, "recompute": "full"},
    "dp": {"dp": 2},
}
WHOLE_SPLITS: dict[str, dict[str, Any]] = {
    "dp-pp-ar": {"dp": 2, "pp": 2, "micro_batches": 2, "recompute": "full"},
    "pp-gpipe": {"pp": 2, "micro_batches": 2, "schedule": "gpipe"},
    "dp-accumulated": {"dp": 2, "micro_batches": 2},
}
"""Splits for models whose tensors are not divided. Batch norms see micro-batches, so the reference must use the
same.
"""
ALWAYS = {("llama", "dp-pp-ar"), ("llama", "tp-pp"), ("gpt-dropout", "dp-pp-ar")} | {
    (name, "dp-pp-ar") for name, model in MODELS.items() if "kind" in model
}


def _splits(model: str) -> dict[str, dict[str, Any]]:
    return WHOLE_SPLITS if "kind" in MODELS[model] else SPLITS


def _spec(model: str, **parallel: Any) -> RunSpec:
    if "kind" not in MODELS[model]:
        return spec_of(MODELS[model], **parallel)
    # A small learning rate: over 50 normalised layers, one of 1e-2 turns a difference of 1e-13 into 1e-9.
    return RunSpec.model_validate({"model": MODELS[model], "train": TRAIN | {"lr": 1e-4}, "parallel": parallel})


class Case(NamedTuple):
    model: str
    split: str

    def spec(self) -> RunSpec:
        return _spec(self.model, **_splits(self.model)[self.split])

    @property
    def always(self) -> bool:
        return self in ALWAYS


CASES = [Case(model, split) for model in MODELS for split in _splits(model)]


TRAINED = Launches(CASES, Case.spec, lambda case: case.always)
REFERENCES = Launches(
    MODELS, lambda name: _spec(name, micro_batches=2), lambda name: any(name == model for model, _ in ALWAYS)
)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id="-".join(c), marks=[] if c.always else pytest.mark.full) for c in CASES]
)
def test_equals_one_process(case: Case) -> None:
    assert_equal(TRAINED[case], REFERENCES[case.model])
