from __future__ import annotations

import itertools

import bitsandbytes  # noqa: F401 - it names its operators
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from snugfit.planner.cost import flops, traffic
from snugfit.planner.cost.flops import flops_of, op_class, operator
from snugfit.planner.cost.operator_costs import compute_dtype, op_costs, op_device
from snugfit.planner.cost.traffic import read_written


class Seen(TorchDispatchMode):
    """All operators that are dispatched within, as (bare name, FLOPs, (read, written), type, device)."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.ops.append(
            (
                operator(str(func)),
                flops_of(func, args, kwargs, out),
                read_written(func, args, kwargs, out),
                compute_dtype(func, args, kwargs, out),
                op_device(args, kwargs, out),
            )
        )
        return out

    def named(self, name):
        return [each for each in self.ops if each[0] == name]


def seen(function):
    with Seen() as mode:
        function()
    return mode


def moved(function):
    """Bytes read and written by all operators within."""
    pairs = [each[2] for each in seen(function).ops]
    return tuple(map(sum, zip(*pairs, strict=True)))


def test_a_fake_matrix_product_has_two_operations_per_multiply_add():
    with FakeTensorMode():
        mode = seen(lambda: torch.empty(3, 5) @ torch.empty(5, 7))
    (product,) = mode.named("mm")
    assert product[1] == 2 * 3 * 5 * 7
    assert product[2] == (4 * (3 * 5 + 5 * 7), 4 * 3 * 7)


def test_an_update_of_a_linear_network_has_the_operations_that_torch_counts():
    model, inputs = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(4, 6)
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    assert (
        sum(each[1] for each in seen(lambda: model(inputs).sum().backward()).ops) == counter.get_total_flops()
    )


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_backward_of_a_convolution_costs_twice_its_forward_with_any_groups(groups, transposed):
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(8, 8, 3, padding=1, groups=groups, bias=False)
    inputs = torch.randn(2, 8, 10, 10, requires_grad=True)
    mode = seen(lambda: layer(inputs).sum().backward())
    by_hand = (
        2 * (2 * 10 * 10) * 8 * (8 // groups) * 9
    )  # examples and pixels, channels out, channels in, kernel
    assert [each[1] for each in mode.named("convolution")] == [by_hand]
    assert [each[1] for each in mode.named("convolution_backward")] == [2 * by_hand]


@pytest.mark.parametrize(("causal", "share"), [(False, 1.0), (True, 0.5)])
def test_causal_attention_counts_half_forward_and_backward(causal, share):
    query, key, value = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    mode = seen(
        lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=causal).sum().backward()
    )
    product = 2 * 2 * 4 * 16 * 16 * 8
    counted = [each[1] for each in mode.ops if op_class(f"aten.{each[0]}.default") == "attention"]
    assert counted == [2 * product * share, 5 * product * share]


def test_attention_with_fewer_heads_of_keys_counts_all_heads_of_the_queries(monkeypatch):
    asked = []

    def as_torch_2_11(name, formula):
        def strict(*args, **kwargs):
            shapes = [tuple(getattr(each, "shape", each)) for each in args[:4] if each is not None]
            shapes = [shape for shape in shapes if len(shape) == 4]
            assert len({shape[1] for shape in shapes}) == 1, "query/key/value shapes are incompatible"
            asked.append(name)
            return formula(*args, **kwargs)

        return strict

    for name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"):
        packet = getattr(torch.ops.aten, name)
        monkeypatch.setitem(flops.flop_registry, packet, as_torch_2_11(name, flops.flop_registry[packet]))
    query, key = torch.randn(2, 4, 16, 8, requires_grad=True), torch.randn(2, 2, 16, 8, requires_grad=True)
    mode = seen(
        lambda: functional.scaled_dot_product_attention(query, key, key, enable_gqa=True).sum().backward()
    )
    product = 2 * 2 * 4 * 16 * 16 * 8
    counted = [each[1] for each in mode.ops if op_class(f"aten.{each[0]}.default") == "attention"]
    assert counted == [2 * product, 5 * product] and len(asked) == 2


def test_an_lstm_costs_each_weight_once_per_step_and_example():
    layer, inputs = nn.LSTM(5, 6), torch.randn(7, 3, 5)
    mode = seen(lambda: layer(inputs)[0].sum().backward())
    matrices = 4 * 6 * 5 + 4 * 6 * 6
    assert sum(each[1] for each in mode.ops) == 3 * (2 * 7 * 3 * matrices)


def test_experts_cost_each_token_one_product_forward_and_two_backward():
    tokens, inputs, outputs, experts = 32, 16, 24, 4
    rows = torch.randn(tokens, inputs, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(experts, inputs, outputs, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([8, 8, 24, 32], dtype=torch.int32)
    mode = seen(lambda: functional.grouped_mm(rows, weights, offs=ends).square().sum().backward())
    assert [each[1] for each in mode.named("_grouped_mm")] == [2 * tokens * inputs * outputs] * 3


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.view(-1),
        lambda x: x[1:],
        lambda x: x.expand(2, 4, 6),
        lambda x: x.detach(),
        lambda x: torch.ops.aten._unsafe_view(x, [24]),
        lambda x: torch.empty_like(x),
    ],
)
def test_views_and_empty_tensors_move_nothing(view):
    x = torch.zeros(4, 6)
    assert moved(lambda: view(x)) == (0, 0)


def test_asking_a_fake_tensor_for_its_device_moves_nothing():
    with FakeTensorMode():
        x = torch.empty(8)
        assert read_written(torch.ops.prim.device.default, (x,), {}, x.device) == (0, 0)


def moves(x, y):
    big, rows = torch.zeros(100, 6), torch.tensor([1, 2])
    return {
        "a sum reads both and writes one": (lambda: x + y, (2 * 96, 96)),
        "a tensor given twice is read once": (lambda: x * x, (96, 96)),
        "in place it reads and writes itself": (lambda: x.add_(y), (2 * 96, 96)),
        "a copy does not read what it overwrites": (lambda: x.copy_(y), (96, 96)),
        "filling reads nothing": (lambda: x.zero_(), (0, 96)),
        "out is written and not read": (lambda: torch.add(x, y, out=torch.empty(0)), (2 * 96, 96)),
        "like another does not read it": (lambda: torch.zeros_like(x), (0, 96)),
        "an expanded row has the bytes of one": (lambda: x + y[:1].expand(4, 6), (96 + 24, 96)),
        "embedding reads its rows and not the table": (
            lambda: functional.embedding(rows, big),
            (48 + 16, 48),
        ),
        "indexing reads what it selects": (lambda: big[rows], (48 + 16, 48)),
        "indexed writing touches what it writes": (
            lambda: big.index_put_((rows,), x[:2]),
            (3 * 48 - 48 + 16, 48),
        ),
        "several at once": (lambda: torch._foreach_mul_([x, y], 2.0), (2 * 96, 2 * 96)),
    }


@pytest.mark.parametrize("case", list(moves(torch.zeros(1), torch.zeros(1))))
def test_bytes_are_those_that_an_operator_touches(case):
    work, expected = moves(torch.zeros(4, 6), torch.ones(4, 6))[case]
    assert moved(work) == expected


def test_products_compute_in_the_type_of_their_operands():
    x = torch.zeros(8, 8, dtype=torch.int8)
    (product,) = seen(lambda: torch._int_mm(x.repeat(4, 1), x)).named("_int_mm")
    assert product[3] == torch.int8
    assert product[1] == 2 * 32 * 8 * 8


def test_a_look_up_computes_in_the_type_of_its_result():
    weight, rows = torch.zeros(5, 2, dtype=torch.bfloat16), torch.tensor([1])
    (found,) = seen(lambda: functional.embedding(rows, weight)).ops
    assert found[3] == torch.bfloat16


def test_a_conversion_counts_as_the_wider_type_there_and_back():
    x = torch.zeros(3)
    mode = seen(lambda: x.to(torch.bfloat16).to(torch.float32))
    assert [each[3] for each in mode.named("_to_copy")] == [torch.float32, torch.float32]


def test_a_copy_between_devices_names_both():
    x, there = torch.zeros(3), torch.empty(3, device="meta")
    assert op_device((x,), {"device": "meta"}, there) == "cpu>meta"
    assert op_device((there, x), {}, there) == "cpu>meta"


def test_a_number_on_the_host_makes_no_copy():
    there = torch.empty(3, device="meta")
    assert op_device((there, torch.tensor(2.0)), {}, there) == "meta"


def test_every_operator_that_is_told_apart_by_name_exists():
    names = {
        *traffic._OVERWRITE,
        *traffic._SELECT,
        *traffic._SHAPE_ONLY,
        *traffic._SCATTER,
        *traffic._NOTHING,
        *flops._FORMULAS,
    }
    names |= {*flops._SAME_AS.values(), *flops._MATMULS}
    assert [name for name in sorted(names) if not hasattr(torch.ops.aten, name)] == []


def test_what_a_kernel_of_a_device_writes_to_in_the_hosts_memory_comes_in_pages():
    """Two moments of one byte each, which bitsandbytes has CUDA move; maps and scales are on the device."""
    with FakeTensorMode():
        states = [torch.empty(512, dtype=torch.uint8) for _ in range(2)]
        weight, gradient, *maps = (torch.empty(512, device="meta") for _ in range(6))
    update = torch.ops.bitsandbytes.optimizer_update_8bit_blockwise.default
    numbers = (0.9, 0.999, 0.0, 0.0, 1e-8, 1, 1e-3, *maps, 0.0, 1.0, False)
    arguments = ("adam", gradient, weight, *states, *numbers)
    assert op_costs(update, arguments, {}, None).page_bytes == 2 * 512


def test_what_is_copied_between_devices_comes_in_no_pages():
    with FakeTensorMode():
        host, device = torch.empty(512), torch.empty(512, device="meta")
    for there, here in ((host, device), (device, host)):
        assert op_costs(torch.ops.aten.copy_.default, (there, here), {}, there).page_bytes == 0
    assert op_costs(torch.ops.aten.add_.Tensor, (host, 1.0), {}, host).page_bytes == 0


@pytest.mark.parametrize(("window", "part"), [((-1, -1), 1.0), ((-1, 0), 0.5)])
def test_attention_that_is_told_where_examples_begin_costs_that_of_each_example(window, part):
    def run(tokens, *lengths):
        offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        longest = max(lengths)
        varlen_attn(
            tokens, tokens, tokens, offsets, offsets, longest, longest, window_size=window
        ).sum().backward()

    with FakeTensorMode(), Seen() as mode:
        tokens = torch.empty(24, 2, 16, dtype=torch.bfloat16, requires_grad=True)
        run(tokens, 8, 8, 8)
    (forward,), (backward,) = (mode.named(name) for name in ("_varlen_attn", "_varlen_attn_backward"))
    # scores and outputs of three examples of 8 tokens, in 2 heads of 16; backward has five such products
    assert forward[1] == part * 3 * 2 * (2 * 2 * 8 * 8 * 16)
    assert backward[1] == 2.5 * forward[1]
    assert op_class("torch_attn._varlen_attn.default") == "attention"
