"""The type of a worker's devices, for runs over several hosts: their model, whatever their number."""

from __future__ import annotations

import pytest

from dashboard.fleet.selectors import idle_host
from dashboard.fleet.words import model_name
from tests.dashboard import factory
from workers import devices

pytestmark = pytest.mark.django_db


def test_cores_of_one_processor_are_of_one_type() -> None:
    names = devices.core_names(range(4)).values()
    assert len(set(names)) == 4 and {model_name(name) for name in names} == {devices.cpu_name()}
    host = factory.worker(devices=2)
    host.devices = [{**one, "name": name} for one, name in zip(host.devices, names, strict=False)]
    assert idle_host(host).types == {"cpu": devices.cpu_name()}


def test_shares_of_a_gpu_are_of_one_type_but_not_that_of_whole_ones() -> None:
    whole, half, third = "NVIDIA H100, 80 GB", "NVIDIA H100, 80 GB, share {} of 2", "NVIDIA H100, 80 GB, share 1 of 3"
    assert model_name(half.format(1)) == model_name(half.format(2))
    assert len({model_name(name) for name in (whole, half.format(1), third)}) == 3
    assert model_name(half.format(1)) == "NVIDIA H100, 80 GB, a share of 2"
    assert model_name("AMD EPYC, core 12 (shares core 3)") == "AMD EPYC"
