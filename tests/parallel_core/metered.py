"""Compares the predicted memory with what real ranks measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.local import LocalRunner
from parallel_core.plan.peak import predict
from parallel_core.spec import RunSpec

TRIES = 12


def no_kernel(kind: str, precision: str) -> bool:
    """Whether this CPU runs a model of that kind with other kernels than the prediction assumes."""
    return kind == "gnmt" and precision == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def assert_predicted(
    runner: LocalRunner,
    tmp_path: Path,
    model: dict[str, Any],
    split: dict[str, Any],
    precision: str,
    within: float = 0.03,
    batch: int = 16,
    exact: Sequence[str] = ("params", "grads", "optimizer"),
) -> None:
    """Asserts that each rank's peak is `within` a fraction of the prediction, and that the `exact` categories match to
    the byte.
    """
    spec = RunSpec.model_validate(
        {
            "model": model,
            "parallel": split,
            "train": {"steps": 3, "warmup_steps": 2, "global_batch": batch, "precision": precision},
        }
    )
    expected = predict(spec)
    measured = metered(runner, tmp_path, spec, [(1 + within) * one.total for one in expected])
    for predicted, seen in zip(expected, measured, strict=True):
        for category in exact:
            assert seen["peak"][category] == predicted.as_dict()[category]
        assert seen["peak_total"] == pytest.approx(predicted.total, rel=within)


def metered(runner: LocalRunner, folder: Path, spec: RunSpec, most: Sequence[float]) -> list[dict[str, Any]]:
    """The memory record of each rank. With `fully_shard`, the smallest of three runs or, while any exceeds its `most`,
    of up to TRIES: gloo's thread releases a bucket some time after its collective has ended, late on a busy host, and
    torch does not wait for that. This can only make a measurement larger.
    """
    fewest = 3 if spec.parallel.zero_backend == "fully_shard" else 1
    found: list[list[dict[str, Any]]] = [[] for _ in most]
    for i in range(TRIES if fewest > 1 else 1):
        outcome = runner.run(spec, folder / str(i))
        assert outcome.ok, outcome.failure()
        for rank, of in enumerate(found):
            of += [one] if (one := outcome.last(rank, "memory")) else []
        least = [min(of, key=lambda one: int(one["peak_total"])) for of in found]
        if i + 1 >= fewest and all(one["peak_total"] <= up for one, up in zip(least, most, strict=True)):
            break
    return least
