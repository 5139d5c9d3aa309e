from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from snugfit.errors import SettingError
from snugfit.planner import target
from snugfit.planner.devices.calibrations import store
from snugfit.planner.devices.data_sheets import LINKS, SHEETS
from snugfit.planner.devices.device import interpolated
from snugfit.planner.devices.hardware import (
    find_device,
    find_link,
    sheet_of,
    this_device,
    usual_host,
    usual_host_bytes,
)
from snugfit.planner.target import Target, machine_of


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", list(SHEETS))
def test_every_device_of_the_catalogue_has_figures_that_agree_with_each_other(name):
    device = find_device(name)
    assert device.flops["float16"] > device.flops["float32"] > device.flops["float64"] > 0
    assert device.flops.get("float8", 1e20) > device.flops["float16"]
    assert 0 < device.reserved < device.memory_bytes < 200 * 2**30
    assert 1e11 < device.bandwidth < 1e13
    assert device.host_link.bandwidth < device.bandwidth
    assert set(device.efficiency) == {"matmul", "convolution", "attention", "other"}


@pytest.mark.parametrize("name", list(SHEETS))
def test_a_usual_host_has_room_for_a_process_beside_each_device(name):
    assert 12 * 2**30 < usual_host_bytes(name) < 300 * 2**30


@pytest.mark.parametrize("name", ["t4", "v100", "v100-32"])
def test_cards_before_ampere_have_neither_bfloat16_nor_tf32(name):
    assert {"bfloat16", "tf32"}.isdisjoint(find_device(name).flops)


@pytest.mark.parametrize(
    "name", ["rtx3060-12", "rtx3090", "rtx4060ti-16", "rtx4080", "rtx4090", "rtx5090", "rtx3050-laptop"]
)
def test_geforce_tensor_cores_do_twice_the_float32_rate_with_float32_accumulation(name):
    flops = find_device(name).flops
    assert flops["bfloat16"] == pytest.approx(2 * flops["float32"], rel=0.01)


def test_a_device_takes_the_memory_and_links_it_is_given():
    device = find_device("RTX4090", 2**34, host_link="pcie3", peer_link="ethernet-100")
    assert (device.memory_bytes, device.host_link.name, device.peer_link.name) == (
        2**34,
        "pcie3",
        "ethernet-100",
    )
    assert device.bandwidth == 1008e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rtx4091",), "device: there is no 'rtx4091' in the catalogue. Did you mean 'rtx4090'?"),
        (("t4", None, "pcie6"), "host_link: there is no link 'pcie6'. Did you mean 'pcie5'?"),
        (("t4", 2**28), "memory: of 256.00 MiB nothing is left, .* 520.00 MiB"),
        (("mps",), "device: there is no 'mps' device here"),
    ],
)
def test_what_is_not_known_or_too_small_is_refused_with_a_hint(arguments, message):
    with pytest.raises(SettingError, match=message):
        find_device(*arguments)


def test_faster_links_of_a_family_have_more_bandwidth():
    families = [
        ("pcie3", "pcie4", "pcie5"),
        ("nvlink2", "nvlink3", "nvlink4"),
        ("ethernet-10", "ethernet-25"),
    ]
    for family in families:
        rates = [find_link(name).bandwidth for name in family]
        assert rates == sorted(set(rates))
    assert all(gigabytes > 0 and latency >= 0 for gigabytes, latency in LINKS.values())


@pytest.mark.parametrize(
    ("name", "gib", "capability", "sheet"),
    [
        ("Tesla T4", 15, (7, 5), "t4"),
        ("NVIDIA GeForce RTX 3090", 24, (8, 6), "rtx3090"),
        ("NVIDIA A100-SXM4-40GB", 40, (8, 0), "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 80, (8, 0), "a100-80"),
        ("NVIDIA H100 80GB HBM3", 80, (9, 0), "h100"),
        ("NVIDIA H100 PCIe", 80, (9, 0), "h100-pcie"),
        ("NVIDIA A10G", 22, (8, 6), "a10g"),
        ("NVIDIA GeForce RTX 4060 Ti", 8, (8, 9), "rtx4060ti-16"),
        (
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            16,
            (8, 9),
            "rtx4060ti-16",
        ),  # not the desktop's: the slowest alike
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 4, (8, 6), "rtx3050-laptop"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 6, (8, 6), "rtx3050-laptop"),
        ("NVIDIA GeForce RTX 3060 Ti", 8, (8, 6), "rtx3060-12"),  # a desktop's is no slower than a desktop's
        ("Tesla V100-SXM2-16GB", 16, (7, 0), "v100"),
        ("Tesla V100-SXM2-32GB", 32, (7, 0), "v100-32"),
        ("NVIDIA Unheard Of", 100, (11, 0), "b200"),  # the nearest before
    ],
)
def test_a_card_is_found_by_its_drivers_name_and_an_unknown_one_by_the_slowest_alike(
    name, gib, capability, sheet
):
    assert sheet_of(name, gib * 2**30, capability) is SHEETS[sheet]


def test_rates_lie_on_a_line_in_logarithms_and_stay_level_beyond_the_ends():
    curve = ((10.0, 1.0), (1000.0, 100.0))
    assert [interpolated(curve, size) for size in (1, 10, 100, 1000, 5000)] == pytest.approx(
        [1, 1, 10, 100, 100]
    )


def test_the_cpu_at_hand_has_this_processes_threads(cache, monkeypatch):
    one = this_device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = find_device("cpu")
    assert three.flops["float32"] == pytest.approx(
        3 * one.flops["float32"], rel=0.2
    )  # the clock may have changed
    assert one.memory_bytes == three.memory_bytes > 2**28
    assert not one.calibrated


def test_a_stored_calibration_is_loaded_for_the_same_number_of_threads_only(cache, monkeypatch):
    device = this_device("cpu")
    store(replace(device, rates={"gelu": ((1.0, 2.0), (3.0, 4.0))}, host=1.25e-5, update=0.5))
    found = this_device("cpu")
    assert found.calibrated and found.rates == {"gelu": ((1.0, 2.0), (3.0, 4.0))}
    assert (found.host, found.update, found.host_link) == (1.25e-5, 0.5, device.host_link)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert not this_device("cpu").calibrated


@pytest.mark.parametrize("broken", [lambda text: text[:-20], lambda text: text.replace('"rates"', '"wares"')])
def test_a_stored_calibration_that_cannot_be_used_is_named(cache, broken):
    path = store(this_device("cpu"))
    path.write_text(broken(path.read_text()))
    with pytest.raises(SettingError, match=r"calibration .* Delete the file\."):
        this_device("cpu")


def test_the_host_of_a_device_elsewhere_is_the_one_that_is_usual_there_and_not_this_machine(
    monkeypatch,
) -> None:
    before = usual_host("a100-80")
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 64)
        now = usual_host("a100-80")
    assert (now.flops, now.bandwidth, now.memory_bytes) == (
        before.flops,
        before.bandwidth,
        before.memory_bytes,
    )
    # a device is pretended in a process of its own alone
    monkeypatch.setattr(target, "pretending_gpu", lambda *device: nullcontext())
    with machine_of(Target(device="a100-80")) as machine:
        assert machine.host.name == "a host of a100-80"
    with machine_of(Target(device="cpu")) as machine:
        assert machine.host == machine.device
