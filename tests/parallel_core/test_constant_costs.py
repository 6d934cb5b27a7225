"""What of an operation does not shrink with its micro-batch, and what is advised on numbers of micro-batches then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallel_core.analysis.diagnosis import few_micro_batches, tiny_kernels
from parallel_core.layout import Layout
from parallel_core.plan.memory import worst_stage
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from parallel_core.simulate.constant_costs import Constant, constant_costs
from parallel_core.simulate.measured import measure
from parallel_core.simulate.replay import FREE, Change, replay
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import healthy, spec, with_children
from tests.parallel_core.test_replay import step

SMALL = {"layers": 4, "hidden": 64, "heads": 4, "seq": 32, "vocab": 256}
LARGE = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 256}
US = 1_000


def two_stages(model: dict[str, Any], micro_batches: int = 2, device: str = "cpu", batch: int = 16) -> RunSpec:
    split = {"pp": 2, "micro_batches": micro_batches}
    return RunSpec.model_validate(
        {"model": model, "parallel": split, "train": {"global_batch": batch, "steps": 40, "device": device}}
    )


def taking(forward: float, backward: float) -> Costs:
    """Both stages take so many microseconds."""
    ns = {Kind.F: forward, Kind.BW: backward, Kind.ALLREDUCE: 0, Kind.OPT_STEP: 300}
    table = {(stage, kind): round(us * US) for stage in (0, 1) for kind, us in ns.items()}
    return Costs(table, message=100 * US, norm=True)


MLP: dict[str, Any] = {"kind": "mlp", "layers": 6, "hidden": 512}
RESNET, VGG = {"kind": "resnet50"}, {"kind": "vgg16"}


@pytest.mark.parametrize(
    ("model", "batch", "stage", "kind", "measured"),
    [
        (SMALL, 16, 0, Kind.F, {2: 1_760, 4: 1_180, 8: 860}),
        (SMALL, 16, 0, Kind.BW, {2: 3_100, 4: 1_840, 8: 1_290}),
        (LARGE, 16, 0, Kind.F, {2: 14_970, 4: 7_650, 8: 4_070}),
        (MLP, 64, 1, Kind.BW, {2: 1_940, 4: 1_430, 8: 1_210}),
        (VGG, 32, 1, Kind.F, {2: 5_580, 4: 3_690, 8: 2_720}),
        (VGG, 32, 1, Kind.BW, {2: 9_810, 4: 6_750, 8: 5_230}),
        (RESNET, 32, 0, Kind.F, {2: 7_700, 4: 4_630, 8: 3_520}),
    ],
)
def test_operations_of_other_micro_batches_take_what_was_measured(
    model: dict[str, Any], batch: int, stage: int, kind: Kind, measured: dict[int, int]
) -> None:
    for many, took in measured.items():
        made = two_stages(model, many, batch=batch)
        costs = taking(took, 2 * took) if kind is Kind.F else taking(took / 2, took)
        found = measure(build(made), step(made, costs), Layout.of(made))
        for other in set(measured) - {many}:
            rows = replay(made, found, Change(micro_batches=other, same_messages=True)).spans[stage]
            lasted = (rows["end"] - rows["start"])[rows["kind"] == kind]
            assert lasted == pytest.approx(measured[other] * US, rel=0.15)


@pytest.mark.parametrize(("device", "taken"), [("cpu", {4: 176, 8: 167}), ("cuda", {4: 108, 8: 54})])
def test_of_a_message_a_part_stays_however_small(device: str, taken: dict[int, int]) -> None:
    """Of an MLP 6 x 512 they took 217, 176 and 167 us with 2, 4 and 8 micro-batches between two cores. Of GPUs it was
    not measured: there half the size takes half the time."""
    made = two_stages(MLP, device=device, batch=64)
    found = measure(build(made), step(made, replace(taking(1_000, 2_000), message=217 * US)), Layout.of(made))
    for many, us in taken.items():
        after = replay(made, found, Change(micro_batches=many)).spans
        first, second = (rows[rows["kind"] == Kind.F] for rows in after.values())
        assert second["start"].min() - first["end"].min() == pytest.approx(us * US, rel=0.15)


MORE = "Raise parallel.micro_batches to"


@pytest.mark.parametrize(
    ("model", "batch", "forward", "backward", "words"),
    [
        (LARGE, 16, 14_970, 31_800, f"{MORE} 8."),
        (SMALL, 16, 1_870, 2_900, ""),
        ({"kind": "mlp", "layers": 4, "hidden": 512}, 64, 774, 1_290, ""),
        ({"kind": "resnet50"}, 32, 7_300, 11_000, ""),
        ({"kind": "vgg16"}, 32, 7_440, 11_900, ""),
        ({"kind": "gnmt", "layers": 2, "hidden": 128, "seq": 24, "vocab": 2048}, 32, 5_580, 9_800, ""),
    ],
    ids=["gpt", "small gpt", "mlp", "resnet", "vgg", "gnmt"],
)
def test_more_micro_batches_are_advised_where_they_were_faster(
    model: dict[str, Any], batch: int, forward: int, backward: int, words: str
) -> None:
    """With as much as one stage of it took with two micro-batches; with eight the first took 0.8, the others 1.2 to 2
    times as long."""
    made = two_stages(model, batch=batch)
    told = few_micro_batches.check(healthy(made, traced=[step(made, taking(forward, backward))] * 3))
    advised = told.change if told is not None and told.change.startswith(MORE) else ""
    assert advised == words


@pytest.mark.parametrize(
    ("split", "batch", "forward", "backward", "words"),
    [
        ({"pp": 2, "micro_batches": 16}, 16, 690, 1_020, "Lower parallel.micro_batches to 2."),
        ({"micro_batches": 16}, 16, 1_350, 2_080, "Lower parallel.micro_batches to 1."),
        ({"dp": 2, "zero": 2, "micro_batches": 16}, 32, 1_350, 2_080, "Lower parallel.micro_batches to 1."),
        ({"pp": 2, "micro_batches": 2}, 16, 1_870, 2_900, ""),
        ({"pp": 2, "micro_batches": 16}, 1024, 14_970, 31_800, ""),
    ],
    ids=["pipeline", "alone", "zero", "two", "large"],
)
def test_fewer_micro_batches_are_advised_where_they_are_too_small(
    split: dict[str, Any], batch: int, forward: int, backward: int, words: str
) -> None:
    """As a GPT 4 x 64 took: 33.0 ms with 16 micro-batches of a sample on two stages, 15.5 with 2; alone 55 and 16."""
    made = RunSpec.model_validate(
        {"model": SMALL, "parallel": split, "train": {"global_batch": batch, "steps": 40, "device": "cpu"}}
    )
    case = healthy(made, traced=[step(made, taking(forward, backward))] * 3)
    told = tiny_kernels.check(case)
    assert (told.change if told else "") == words
    if told is not None:
        tight = replace(case, limit=worst_stage(made).total)
        assert tiny_kernels.check(tight) is None, "larger micro-batches may not fit"


@pytest.mark.parametrize(("split", "as_much"), [({"dp": 2, "zero": 2}, True), ({"tp": 2}, False)], ids=["zero", "tp"])
def test_collectives_of_parameters_do_not_shrink_with_a_micro_batch(split: dict[str, Any], as_much: bool) -> None:
    made = spec(pp=2, micro_batches=2, **split)
    inner = with_children(made, Kind.BUCKET_WAIT if as_much else Kind.TP_COLLECTIVE, 0.5)[0]
    found = measure(build(made), inner, Layout.of(made))
    alone, more = (replay(made, found, Change(micro_batches=4, links=links)).step for links in (FREE, 1.0))
    kept = replay(made, found, Change(links=FREE, schedule="1f1b")).step
    of_two, of_four = found.step - kept, more - alone
    assert of_four / of_two == pytest.approx(10 / 6 if as_much else 5 / 6, rel=0.03)


@pytest.mark.parametrize(
    ("model", "forward", "backward", "weights"),
    [
        ({"kind": "resnet50"}, 7_300, 14_100, 140),
        ({"kind": "vgg16"}, 6_110, 11_220, 650),
        ({"kind": "gnmt", "layers": 2, "hidden": 128, "seq": 24, "vocab": 2048}, 5_470, 10_000, 2_850),
    ],
    ids=["resnet", "vgg", "gnmt"],
)
def test_weight_gradients_of_convolutions_and_lstms_stay_in_the_first_half_of_a_backward(
    model: dict[str, Any], forward: int, backward: int, weights: int
) -> None:
    """What W of the last stage took in ZB-H1, where its whole backward took so long in 1F1B."""
    made = two_stages(model, batch=32)
    found = measure(build(made), step(made, taking(forward, backward)), Layout.of(made))
    rows = replay(made, found, Change(schedule="zb-h1")).spans[1]
    took = (rows["end"] - rows["start"])[rows["kind"] == Kind.W]
    assert took == pytest.approx(weights * US, rel=0.1, abs=200 * US)


def test_what_a_backward_costs_however_small_stays_in_the_half_that_does_it() -> None:
    """What B and W of the last stage of a ResNet-50 took with 8 samples in ZB-H1, where F and the backward took so long
    with 4 in 1F1B."""
    made = two_stages({"kind": "resnet50"}, micro_batches=8, batch=32)
    found = measure(build(made), step(made, taking(4_190, 6_150)), Layout.of(made))
    rows = replay(made, found, Change(schedule="zb-h1", micro_batches=4)).spans[1]
    for kind, us in {Kind.B: 8_270, Kind.W: 100}.items():
        took = (rows["end"] - rows["start"])[rows["kind"] == kind]
        assert took == pytest.approx(us * US, rel=0.15, abs=100 * US)


def test_launches_of_a_gpu_are_ahead_of_it() -> None:
    cpu, cuda = (constant_costs(two_stages(SMALL, device=device)) for device in ("cpu", "cuda"))
    assert all(min(stage) > 0 for stage in cpu) and cuda == [Constant(), Constant()]
