"""The planner's catalogue of devices, clusters and models is complete. A row that lacks a field is named here alone:
whatever else reads the catalogue ends at the first one.
"""

from __future__ import annotations

import pytest

from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.store import table

DRIVER = {"words", "fp64_tflops", "source"}


@pytest.mark.parametrize(("name", "part"), [("hardware", "rows"), ("hardware", "clusters"), ("models", "rows")])
def test_every_row_has_a_name_of_its_own_and_all_fields(name: str, part: str) -> None:
    rows = table(name)[part]
    keys = [row.get("key", row.get("name")) for row in rows]
    assert len(set(keys)) == len(keys), f"{part} of data/{name}.json: one replaces another of the same name"
    every = {field for row in rows for field in row} - {"driver"}  # whose peaks are another row's has none
    lacking = {key: sorted(every - set(row)) for key, row in zip(keys, rows, strict=True) if every - set(row)}
    assert not lacking, f"{part} of data/{name}.json lack {lacking}; see docs/extend.md"


def test_devices_that_drivers_name_have_their_words_and_rates() -> None:
    for row in table("hardware")["rows"]:
        assert set(row.get("driver", DRIVER)) == DRIVER, row["name"]


def test_models_are_listed_smallest_first_and_can_be() -> None:
    sizes = [model.parameters for model in presets().values()]
    assert sizes == sorted(sizes)
    assert [model.problems() for model in presets().values()] == [{}] * len(sizes)


def test_single_precision_is_not_that_of_tensor_cores() -> None:
    """The engine and Megatron-LM do not round fp32 to TF32: each of a multiprocessor's cores does one
    multiplication and addition a cycle, at 1 to 3 GHz.
    """
    cores = {"Volta": 64, "Turing": 64, "Ampere": 64, "Ada": 128, "Hopper": 128, "Blackwell": 128}
    clocks = {
        row["name"]: row["single_tflops"] * 1e3 / (2 * row["units"] * cores[row["arch"]])
        for row in table("hardware")["rows"]
    }
    assert {name: ghz for name, ghz in clocks.items() if not 1 < ghz < 3} == {}
