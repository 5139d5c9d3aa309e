from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from snugfit.errors import SettingError
from snugfit.planner.cost.records import Op, Phase, Place
from snugfit.planner.cost.roofline import combined, costs_of, number_type, peak_rate, pricing, seconds
from snugfit.planner.devices.device import Device, Link

PLACE = Place(update=0, phase=Phase.FORWARD, turn=0, micro_batch=0, module="", block=-1)
LINK = Link("link", bandwidth=1e9, latency=1e-3)
GPU = Device(
    name="made up",
    kind="cuda",
    memory_bytes=2**30,
    flops={"float32": 1e12, "tf32": 4e12, "bfloat16": 8e12},
    bandwidth=1e11,
    efficiency={"matmul": 0.5, "convolution": 0.25, "attention": 0.1, "other": 0.1},
    reach=0.5,
    launch=1e-6,
    host=1e-5,
    view=2e-6,
    mode=5e-6,
    hook=3e-6,
    update=3e-4,
    reserved=0,
    host_link=LINK,
    peer_link=LINK,
)
CPU = replace(GPU, kind="cpu", flops={"float32": 1e11}, bandwidth=1e10, launch=0.0)


def op(name="mm", flops=0, read=0, written=0, dtype=torch.float32, device="cuda:0"):
    return Op(f"aten.{name}.default", PLACE, device, dtype, flops, read, written, 0)


def update_seconds(ops, device, host=None, overlap=False):
    """As a prediction adds them up."""
    costs = np.sum([costs_of(each, device, host) for each in ops], axis=0)
    return device.update + combined(costs, device, overlap)


@pytest.mark.parametrize("changed", [each.name for each in fields(Op) if each.name not in ("event", "times")])
def test_operators_that_differ_in_anything_have_their_own_costs(changed: str) -> None:
    one = op(flops=10**12, read=10**9, written=10**9)
    others = {
        "name": "aten.convolution.default",
        "device": "cuda:0>cpu",
        "dtype": torch.bfloat16,
        "place": PLACE._replace(block=3),
    }
    costs = pricing(GPU, CPU)
    costs(one)
    other = replace(one, **{changed: others.get(changed, 7)})
    assert (costs(other) == costs_of(other, GPU, CPU)).all()
    assert costs(one) is costs(replace(one)), "not worked out once"


def test_costs_are_of_the_machine_and_the_numbers_that_they_were_asked_for() -> None:
    one = op(flops=10**12, read=8, written=8)
    assert pricing(GPU)(one)[0] == 2.0
    assert pricing(GPU, tf32=True)(one)[0] == 0.5
    assert pricing(replace(GPU, flops={"float32": 2e12}))(one)[0] == 1.0


@pytest.mark.parametrize(
    ("what", "taken"),
    [
        (op(flops=10**12, read=8, written=8), 2.0),  # at half of 1e12
        (op(flops=10**12, read=8, written=8, dtype=torch.bfloat16), 0.25),  # at half of 8e12
        (op("convolution", flops=10**12, read=8), 4.0),  # at a quarter of 1e12
        (op(flops=10**6, read=10**11), 2.0),  # a skinny product waits for its 1e11 bytes at half of 1e11
        (op("add", read=5 * 10**10, written=5 * 10**10), 2.0),
        (op("add", read=8, written=8), 1e-6),  # no kernel is shorter
        (op("view"), 0.0),
    ],
)
def test_an_operator_takes_the_longest_of_arithmetic_traffic_and_launch(what, taken):
    assert seconds(what, GPU) == pytest.approx(taken)


def test_work_is_compared_with_the_peak_of_the_numbers_that_it_is_done_in():
    half, full = op(flops=10**12, dtype=torch.bfloat16), op(flops=10**12)
    assert peak_rate([half], GPU) == 8e12  # whatever else it could compute in
    assert peak_rate([full, op("add", read=8)], GPU) == 1e12
    assert peak_rate([full], GPU, tf32=True) == 4e12
    assert peak_rate([half, full], GPU) == pytest.approx(2e12 / (1 / 8 + 1))


def test_on_a_cpu_arithmetic_and_traffic_add():
    assert seconds(op(flops=10**11, read=5 * 10**9, written=5 * 10**9), CPU) == pytest.approx(2.0 + 2.0)


def test_float32_products_use_tf32_only_where_asked_and_where_there_is_any():
    product = op(flops=10**12, read=8)
    assert seconds(product, GPU, tf32=True) == pytest.approx(0.5)
    without = replace(GPU, flops={"float32": 1e12})
    assert seconds(product, without, tf32=True) == pytest.approx(2.0)
    assert seconds(op("_fused_attention", flops=10**12, read=8), GPU, tf32=True) == pytest.approx(10.0)


def test_arithmetic_that_a_device_lacks_is_refused():
    with pytest.raises(
        SettingError, match=r"numerics: made up has no float16 arithmetic.*bfloat16, float32, tf32"
    ):
        seconds(op(flops=1, read=8, dtype=torch.float16), GPU)


def test_measured_rates_stand_before_the_sheet():
    rates = {"matmul.float32": ((1e6, 1e9), (1e8, 1e11)), "gelu": ((100.0, 50.0),), "traffic": ((1.0, 1e3),)}
    device = replace(GPU, rates=rates)
    assert seconds(op(flops=10**7, read=1), device) == pytest.approx(1e7 / 1e10)
    assert seconds(op("gelu", read=200, written=200), device) == pytest.approx(100 / 50)  # numbers of 4 bytes
    assert seconds(op("gelu", read=100, written=100, dtype=torch.bfloat16), device) == pytest.approx(100 / 50)
    assert seconds(op("tan", read=500, written=500), device) == pytest.approx(1.0)


def test_a_new_result_costs_its_pages_and_one_in_place_does_not():
    device = replace(CPU, rates={"traffic": ((1.0, 100.0),), "new": ((1.0, 10.0),)})
    assert seconds(op("add", read=60, written=40), device) == pytest.approx(1.0 + 4.0)
    assert seconds(op("add_", read=60, written=40), device) == pytest.approx(1.0)


def test_what_a_kernel_copies_within_itself_is_moved_twice_and_lies_in_new_pages():
    device = replace(CPU, rates={"traffic": ((1.0, 100.0),), "new": ((1.0, 10.0),)})
    copying = replace(op("add_", read=60, written=40), workspace=50)
    assert seconds(copying, device) == pytest.approx((60 + 40 + 2 * 50) / 100 + 50 / 10)
    product = replace(op(flops=10**11, read=60, written=40), workspace=50)
    assert seconds(product, device) == pytest.approx(2.0 + 1.0 + 4.0), "whose rate was measured with it"


def test_a_copy_between_devices_goes_over_the_link():
    copy = op("_to_copy", read=10**9, written=10**9, device="cpu>cuda:0")
    assert seconds(copy, GPU) == pytest.approx(1.0 + 1e-3)


def test_what_comes_from_a_file_takes_the_slower_of_link_and_disk_and_nothing_goes_back_to_it():
    there, back = (
        op("copy_", read=10**9, written=10**9, device=device) for device in ("cpu>cuda:0", "cuda:0>cpu")
    )
    device = replace(GPU, disk=1e8)
    assert costs_of(there, device, from_disk=True)[1] == pytest.approx(10.0)
    assert costs_of(there, replace(GPU, disk=1e12), from_disk=True)[1] == pytest.approx(1.001)
    assert costs_of(back, device, from_disk=True)[1] == costs_of(there, device)[1] == pytest.approx(1.001)


def test_an_accelerator_hides_the_host_or_waits_for_it_and_a_cpu_adds_it():
    large, small = [op("add", read=5 * 10**10)] * 2, [op("add", read=8)] * 100
    assert update_seconds(large, GPU) == pytest.approx(3e-4 + 2.0)
    assert update_seconds(small, GPU) == pytest.approx(3e-4 + 100 * 1e-5)
    assert update_seconds([op("add", read=5 * 10**9), op("view")], CPU) == pytest.approx(
        3e-4 + 1.0 + 1e-5 + 2e-6
    )


def test_copies_beside_the_operators_take_the_longer_of_both():
    ops = [op("add", read=5 * 10**10), op("copy_", read=10**9, written=10**9, device="cpu>cuda:0")]
    assert update_seconds(ops, GPU) == pytest.approx(3e-4 + 1.0 + 1.001)
    assert update_seconds(ops, GPU, overlap=True) == pytest.approx(3e-4 + 1.001)


def test_pages_come_over_the_link_and_leave_before_the_device_goes_on():
    kernel = replace(op("optimizer_update", read=5 * 10**10), page_bytes=10**9)
    assert update_seconds([kernel], GPU, overlap=True) == pytest.approx(3e-4 + 1.0 + 2 * 1.0)


def test_an_operator_on_the_host_takes_the_hosts_time():
    ops = [op("add_", read=5 * 10**9, device="cpu")]
    assert update_seconds(ops, GPU, host=CPU) == pytest.approx(3e-4 + 1.0 + 1e-5)
    with pytest.raises(SettingError, match=r"host: 'aten.add_.default' runs on the CPU beside made up"):
        update_seconds(ops, GPU)


def test_modes_of_python_cost_the_host_at_every_operator_views_too_and_hooks_at_every_tensor():
    around = [replace(op("add_", read=8, device="cpu"), modes=2), replace(op("view", device="cpu"), packed=1)]
    assert update_seconds(around, replace(CPU, bandwidth=1e30)) == pytest.approx(
        3e-4 + (1e-5 + 2 * 5e-6) + (2e-6 + 3e-6)
    )


def test_costs_add_up_over_operators():
    ops = [op("add", read=5 * 10**10), op("view"), op("add_", read=5 * 10**9, device="cpu")]
    costs = np.sum([costs_of(each, GPU, CPU) for each in ops], axis=0)
    assert costs == pytest.approx([1.0, 0.0, 1.0, 2.2e-5, 0.0])
    assert combined(costs, GPU) == pytest.approx(2.0)


def test_eight_bit_floats_of_any_kind_are_one_type():
    assert {number_type(kind) for kind in (torch.float8_e4m3fn, torch.float8_e5m2)} == {"float8"}


def test_each_way_over_the_link_takes_what_was_measured_of_it():
    device = replace(GPU, host_link=replace(LINK, latency=0.0, back=5e8))
    there, back = (
        op("_to_copy", read=10**9, written=10**9, device=way) for way in ("cpu>cuda:0", "cuda:0>cpu")
    )
    assert (seconds(there, device), seconds(back, device)) == (1.0, 2.0)
    assert seconds(back, GPU) == 1.001, "where it was not measured, it is the other way's"


def test_less_than_was_measured_takes_as_long_as_the_least_that_was_but_on_a_cpu() -> None:
    rates = {"optimizer_update_8bit_blockwise": ((1000.0, 1e7), (1e6, 1e9))}
    small = replace(op(read=400, written=400), name="bitsandbytes.optimizer_update_8bit_blockwise.default")
    unmeasured = replace(small, name="bitsandbytes.optimizer_update_32bit.default")
    there = replace(GPU, rates=rates, launch=1e-6)
    assert costs_of(small, there)[0] == costs_of(unmeasured, there)[0] == pytest.approx(1e-4)
    assert costs_of(replace(small, device="cpu"), replace(CPU, rates=rates))[0] == pytest.approx(2e-5)


def test_the_memory_that_a_gpus_kernel_takes_is_not_all_written() -> None:
    one = op("sum", read=800, written=200)
    assert costs_of(replace(one, workspace=10**12), GPU)[0] == costs_of(one, GPU)[0]
