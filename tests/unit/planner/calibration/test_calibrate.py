from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from snugfit.planner.calibration import calibrate as calibration
from snugfit.planner.calibration import host_seconds, microbenchmarks, timing
from snugfit.planner.cost.flops import op_class
from snugfit.planner.cost.roofline import traffic_seconds
from snugfit.planner.devices.hardware import this_device, uncalibrated

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The same calibration with fewer and smaller points, in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(timing, "POINT_SECONDS", 1e-4)
        patch.setattr(calibration, "_TURNS", 3)
        smaller = [(probe, sizes[:2], large) for probe, sizes, large in calibration._PROBES]
        patch.setattr(calibration, "_PROBES", smaller)
        patch.setattr(calibration, "_SIZES", ((2**13, 2**14), ()))
        yield


@pytest.fixture(scope="module")
def random_states():
    """The state of random numbers before the calibration, and after it."""
    return []


@pytest.fixture(scope="module")
def calibrated(quick, random_states):
    random_states.append(torch.get_rng_state())
    found = calibration.calibrate(CPU)
    random_states.append(torch.get_rng_state())
    return found


@pytest.mark.slow
def test_a_calibration_is_what_this_device_answers_from_then_on(calibrated):
    assert this_device("cpu") == calibrated
    assert calibrated.calibrated and not uncalibrated("cpu").calibrated


def test_every_rate_is_positive_and_lies_on_rising_sizes(calibrated):
    for name, curve in calibrated.rates.items():
        sizes, rates = zip(*curve, strict=True)
        assert list(sizes) == sorted(set(sizes)), name
        assert min(sizes) > 0 and min(rates) > 0, name


def test_products_convolutions_and_attention_are_measured_in_both_types(calibrated):
    kinds = ("matmul", "convolution", "convolution_backward", "attention", "bmm", "mkldnn_rnn_layer")
    rates = {f"{kind}.{dtype}" for kind in kinds for dtype in ("float32", "bfloat16")}
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # then torch runs a recurrent layer as its products
        rates.remove("mkldnn_rnn_layer.bfloat16")
    assert rates <= set(calibrated.rates)
    assert calibrated.flops["float32"] == calibrated.rates["matmul.float32"][-1][1]


def test_operators_of_training_steps_are_measured_by_name_and_plain_products_as_traffic(calibrated):
    named = {
        "gelu",
        "gelu_backward",
        "_softmax",
        "native_layer_norm",
        "_foreach_addcdiv_",
        "_fused_adamw_",
        "bernoulli_",
    }
    assert named | {"traffic", "new"} <= set(calibrated.rates)
    assert {"mul", "mul_"}.isdisjoint(calibrated.rates)


def test_a_calibration_leaves_the_random_numbers_as_they_were(calibrated, random_states):
    assert torch.equal(*random_states)


def test_equal_works_have_operands_of_their_own(monkeypatch):
    monkeypatch.setattr(calibration, "_TURNS", 3)
    (in_place,) = itertools.islice(
        calibration._alike(microbenchmarks.traffic, CPU, torch.float32, 8192), 1, 2
    )
    places = {work().data_ptr() for work in in_place}
    assert len(places) == 3


def point(key, read, written, seconds, flops=0):
    return calibration._Point(
        key, f"aten.{key}.default", float(flops or read + written), flops, read, written, seconds
    )


def test_what_a_new_result_adds_is_the_difference_to_the_same_in_place():
    points = [point("mul", 200, 100, 5.0), point("mul_", 200, 100, 3.0)]
    assert calibration._traffic(points) == {"traffic": ((300.0, 100.0),), "new": ((100.0, 50.0),)}


def test_on_a_cpu_a_products_rate_leaves_out_the_traffic_that_roofline_adds(monkeypatch):
    device = calibration.replace(
        uncalibrated("cpu"), rates={"traffic": ((1.0, 100.0),), "new": ((1.0, 50.0),)}
    )
    assert traffic_seconds("aten.mm.default", 200, 100, device) == 5.0
    assert point("mm", 200, 100, 20.0, flops=1000).net(device) == 15.0
    assert point("mm", 200, 100, 6.0, flops=1000).net(device) == 3.0  # never less than half
    assert point("mm", 200, 100, 20.0, flops=1000).net(calibration.replace(device, kind="cuda")) == 20.0


def test_backward_stands_for_itself_and_plain_kernels_for_their_class():
    keys = [
        calibration._key(f"aten.{name}.default", torch.float32)
        for name in ("mm", "convolution_backward", "bmm")
    ]
    assert keys == ["matmul.float32", "convolution_backward.float32", "bmm.float32"]


def test_each_layer_of_a_small_step_has_three_operators_forward_and_five_backward(quick):
    three, two, one = (host_seconds._step_seconds(CPU, layers, view=0.0)[0] for layers in (3, 2, 1))
    assert three - two == two - one == 8


def test_what_recompute_takes_beyond_its_operators_is_of_the_hooks_and_the_modes_around_them(monkeypatch):
    device = replace(uncalibrated("cpu"), host=7e-6, view=1e-6)

    def told(step, _):
        found = host_seconds._counted(step)
        return (
            5e-4
            + 7e-6 * found.operators
            + 1e-6 * found.views
            + 2e-6 * found.around.packed
            + 3e-6 * found.modes
        )

    monkeypatch.setattr(host_seconds, "_scattering", told)
    assert host_seconds.around_seconds(CPU, device) == pytest.approx((2e-6, 3e-6))


def test_hooks_are_given_what_each_layer_saves_in_forward_and_again_in_backward_and_modes_are_there_where_some_is_kept():
    counts = [
        host_seconds._counted(microbenchmarks.recomputed_step(CPU, 2, keep))
        for keep in (None, (), ("matmul",))
    ]
    # of two layers: products, norms with their statistics, activations; what is given to the first needs no gradient, and so no weight
    saved = 2 * (2 + 5 + 1) - 1
    assert [each.around.packed for each in counts] == [0, 2 * saved, 2 * saved]
    assert [each.modes > 0 for each in counts] == [False, False, True]


@pytest.mark.parametrize(
    ("probe", "size"),
    [(microbenchmarks.attention, 32), (microbenchmarks.recurrence, 2), (microbenchmarks.convolution, 1)],
)
def test_every_second_piece_of_a_probe_is_the_backward_of_the_one_before(probe, size):
    pieces = [calibration._look(work) for work in probe(CPU, torch.float32, size)]
    for forward, backward in zip(pieces[::2], pieces[1::2], strict=True):
        assert "backward" not in forward.name and "backward" in backward.name
        assert op_class(forward.name) == op_class(backward.name)
        assert backward.flops in (2 * forward.flops, 5 * forward.flops // 2)
