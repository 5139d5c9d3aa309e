from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from snugfit.errors import SettingError
from snugfit.kit.precision.product_rounding import Switches
from snugfit.planner.calibration import calibrate as calibration
from snugfit.planner.calibration import disk, host_seconds, microbenchmarks, timing
from snugfit.planner.cost.flops import op_class
from snugfit.planner.cost.roofline import traffic_seconds
from snugfit.planner.devices.device import Link
from snugfit.planner.devices.hardware import find_device, this_device, uncalibrated
from snugfit.techniques import discover

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
        patch.setattr(disk, "FILE_BYTES", 2**20)
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


@pytest.mark.slow
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
        "dequantize_4bit",
    }
    assert named | {"traffic", "new"} <= set(calibrated.rates)
    assert {"mul", "mul_"}.isdisjoint(calibrated.rates)


def test_a_calibration_leaves_the_random_numbers_as_they_were(calibrated, random_states):
    assert torch.equal(*random_states)


def test_whatever_is_measured_draws_none_of_the_random_numbers_that_follow(monkeypatch):
    before = torch.get_rng_state()
    monkeypatch.setattr(calibration, "_measured", lambda device: torch.rand(1))
    monkeypatch.setattr(calibration, "store", lambda measured: None)
    calibration.calibrate(CPU)
    assert torch.equal(torch.get_rng_state(), before)


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


def test_every_type_that_a_technique_computes_in_is_measured_where_the_device_has_it():
    needed = {kind.card.needs for kind in discover().values() if kind.card.needs}
    for name, there in (
        ("h200", {"float8", "int8", "tf32", "bfloat16", "float16"}),
        ("t4", {"float16", "int8"}),
    ):
        measured = {(probe.__name__, number) for probe, number, _, _ in calibration._plan(find_device(name))}
        products = {
            number for probe, number in measured if probe in ("product", "scaled_product", "integer_product")
        }
        assert products == {"float32"} | there and needed & set(find_device(name).flops) <= products
        assert ("attention", "tf32") not in measured, "attention of float32 does not round to it"
        assert (("convolution", "tf32") in measured) == ("tf32" in there)
    assert {number for _, number, _, _ in calibration._plan(uncalibrated("cpu"))} <= {"float32", "bfloat16"}


@pytest.mark.parametrize(
    ("probe", "number", "dtype", "keys"),
    [
        (microbenchmarks.product, "tf32", torch.float32, {"matmul.tf32", "addmm.tf32"}),
        (
            microbenchmarks.convolution,
            "tf32",
            torch.float32,
            {"convolution.tf32", "convolution_backward.tf32"},
        ),
        (microbenchmarks.product, "float32", torch.float32, {"matmul.float32", "addmm.float32"}),
        (microbenchmarks.scaled_product, "float8", torch.float8_e4m3fn, {"matmul.float8"}),
        (microbenchmarks.integer_product, "int8", torch.int8, {"matmul.int8"}),
    ],
)
def test_what_is_measured_is_found_under_the_numbers_that_it_is_computed_in(probe, number, dtype, keys):
    assert {calibration._look(work, number).key for work in probe(CPU, dtype, 32)} == keys


def test_float32_is_measured_in_float32_and_tf32_in_tf32_whatever_torch_convolves_in(monkeypatch):
    seen = {}

    def taken(works, device):
        switches = Switches.now()
        seen[calibration._look(works[0], number_now[-1]).key] = (switches.matmul, switches.conv)
        return 1e-3

    number_now = []
    plan = [
        (microbenchmarks.traffic, "float32", torch.float32, 8192),
        (microbenchmarks.convolution, "float32", torch.float32, 1),
        (microbenchmarks.convolution, "tf32", torch.float32, 1),
    ]

    def planned(known):
        for each in plan:
            number_now.append(each[1])
            yield each

    monkeypatch.setattr(calibration, "_plan", planned)
    monkeypatch.setattr(calibration, "seconds_of", taken)
    before = Switches.now()
    rates = calibration._rates(find_device("h200"), CPU)
    assert {"convolution.float32", "convolution.tf32", "traffic"} <= set(rates)
    assert seen["convolution.float32"] == ("ieee", "ieee") and seen["convolution.tf32"] == ("tf32", "tf32")
    assert Switches.now() == before


def test_numbers_that_were_not_measured_reach_what_is_taken_for_granted_and_not_the_whole_data_sheet():
    sheet = find_device("h200")
    measured = {f"matmul.{name}": ((1.0, 5e14),) for name in ("float32", "tf32", "float8")}  # int8 is not
    others = {f"{kind}.float32": ((1.0, 1e14),) for kind in ("convolution", "attention")}
    device = replace(sheet, rates={**measured, **others, "traffic": ((1.0, 1e12),)})
    flops = calibration._summary(device)["flops"]
    assert flops["tf32"] == flops["float8"] == 5e14
    assert flops["int8"] == sheet.flops["int8"] * sheet.efficiency["matmul"] < sheet.flops["int8"]


def test_the_link_is_measured_each_way_and_both_at_once(monkeypatch):
    copies = []

    class Stream:
        def __init__(self, *_):
            self.waits = []

        def wait_stream(self, other):
            self.waits.append(other)

    current = Stream()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda to, given, non_blocking: copies.append((id(to), id(given))) or to
    )
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    taken = iter((2.0, 4.0, 8.0))

    def seconds_of(works, device):
        works[0]()
        return next(taken)

    monkeypatch.setattr(calibration, "seconds_of", seconds_of)
    link = calibration._link(CPU, Link("pcie", 1.0, 1e-5))
    assert (link.bandwidth, link.back, link.each_of_both) == (2**25, 2**24, 2**23)
    there, back, *both = copies
    assert both == [there, back] and not set(there) & set(back), (
        "four buffers, of which no copy waits for another"
    )
    assert len(current.waits) == 2


def test_the_disk_is_read_by_pages_that_no_memory_has_and_its_rate_is_kept(calibrated, tmp_path, monkeypatch):
    assert this_device("cpu").disk == calibrated.disk != uncalibrated("cpu").disk
    forgotten, clock = [], itertools.count(0, 2)  # two seconds a reading
    monkeypatch.setattr(disk, "FILE_BYTES", 2**14)
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(disk.os, "posix_fadvise", lambda *call: forgotten.append(call[1:]), raising=False)
    assert disk.disk_rate(tmp_path) == 2**13 and [*tmp_path.iterdir()] == []
    assert forgotten == [(0, 0, disk.os.POSIX_FADV_DONTNEED)] * 3

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(
        SettingError, match=r"calibrate: the disk of '.*' cannot be measured by a file of 16.*: No space"
    ):
        disk.disk_rate(tmp_path)
    assert [*tmp_path.iterdir()] == []

    def refused(*_call):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(disk.os, "fsync", lambda _: None)
    monkeypatch.setattr(disk.os, "posix_fadvise", refused)
    assert disk.disk_rate(tmp_path) is None, "a sandbox without the call has a disk all the same"
    monkeypatch.delattr(disk.os, "posix_fadvise")
    assert disk.disk_rate(tmp_path) is None, "memory would be measured"


def test_a_disk_without_room_is_said_before_anything_is_measured(monkeypatch):
    def full():
        raise SettingError("calibrate", "no room", "Free space.")

    monkeypatch.setattr(calibration, "disk_rate", full)
    monkeypatch.setattr(calibration, "_rates", lambda *_: pytest.fail("20 seconds would be lost"))
    with pytest.raises(SettingError, match="no room"):
        calibration.calibrate(CPU)


def test_bitsandbytes_is_measured_on_no_device_that_it_is_refused_on(monkeypatch):
    monkeypatch.setattr(microbenchmarks, "find_spec", lambda name: name)
    there = {kind: microbenchmarks._has_bitsandbytes(torch.device(kind)) for kind in ("cpu", "cuda", "mps")}
    assert there == {"cpu": True, "cuda": True, "mps": False}
    monkeypatch.setattr(microbenchmarks, "_has_bitsandbytes", lambda device: False)
    kinds = {calibration._look(work).key for work in microbenchmarks.operators(CPU, torch.float32, 8192)}
    assert kinds.isdisjoint({"dequantize_4bit", "optimizer_update_8bit_blockwise"}) and "gelu" in kinds


def test_each_layer_of_a_small_step_has_three_operators_forward_and_five_backward(quick):
    three, two, one = (host_seconds._step_seconds(CPU, layers, view=0.0)[0] for layers in (3, 2, 1))
    assert three - two == two - one == 8


def test_what_recompute_takes_beyond_its_operators_is_of_the_hooks_and_the_modes_around_them(monkeypatch):
    device = replace(uncalibrated("cpu"), host=7e-6, view=1e-6)

    def told(step, _):
        found = host_seconds.counted(step)
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
        host_seconds.counted(microbenchmarks.recomputed_step(CPU, 2, keep))
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


def test_what_a_block_of_a_transformer_takes_beside_its_operators_is_of_the_calls_of_its_modules(monkeypatch):
    device, clock, steps = replace(uncalibrated("cpu"), host=7e-6, view=1e-6), [0.0], []

    def made(at, layers):
        step = microbenchmarks.transformer_step(at, layers)
        found = host_seconds.counted(step)
        taken = 3e-3 + 7e-6 * found.operators + 1e-6 * found.views + 9e-5 * found.calls
        steps.append(found)

        def timed():
            step()
            clock[0] += taken

        return timed

    monkeypatch.setattr(host_seconds, "_DEPTHS", (1, 2))
    monkeypatch.setattr(host_seconds, "_STEP_TIMES", 2)
    monkeypatch.setattr(host_seconds, "transformer_step", made)
    monkeypatch.setattr(host_seconds.time, "perf_counter", lambda: clock[0])
    assert host_seconds.call_seconds(CPU, device) == pytest.approx(9e-5)
    # the block, attention, two products, two norms, three dropouts
    assert steps[1].calls - steps[0].calls == 9


def test_what_a_process_has_beside_its_tensors_is_not_read_where_others_use_the_device(monkeypatch):
    sheet, used = find_device("h100"), [0]
    monkeypatch.setattr(calibration, "transformer_step", lambda device, layers: lambda: None)
    for name, answer in {
        "mem_get_info": lambda device: (sheet.memory_bytes - used[0], sheet.memory_bytes),
        "memory_reserved": lambda device: 100,
        "memory_allocated": lambda device: 30,
        "empty_cache": lambda: None,
        "synchronize": lambda device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    used[0] = 900_000_100
    assert calibration._reserved(sheet, torch.device("cuda")) == 900_000_030
    used[0] = 20 * 2**30
    assert calibration._reserved(sheet, torch.device("cuda")) == sheet.reserved
