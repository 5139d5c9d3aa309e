"""What kernels take within an operator: the prediction beside the profiler's allocations of the real kernel, on this CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.planner.cost.records import Op, Phase, Place
from snugfit.planner.cost.workspace import doubt, hidden_result_bytes, workspace_bytes

aten = torch.ops.aten
SCALARS = 64
"""Bytes of numbers that are wrapped to tensors, which no rule counts."""

wide = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the layouts are those of AVX-512"
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.disable()  # tensors of other tests, let go of in an operator, would be taken for its own
    yield
    gc.enable()
    torch.set_num_threads(threads)


class Asked(TorchDispatchMode):
    """Marks each operator in the profile, and keeps it, to ask for its workspace when the profile is done."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with record_function(f"operator {len(self.seen)}"):
            out = func(*args, **(kwargs or {}))
        self.seen.append((func, args, kwargs or {}, out))
        return out


def measured(run: Callable[[], object]) -> dict[str, tuple[int, int]]:
    """By operator: bytes that it took at most at a time less those that it left, and what is predicted."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, Asked() as asked:
        run()

    def sizes(event: Any) -> Iterator[tuple[int, int]]:
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size
        for child in event.children:
            yield from sizes(child)

    found: dict[str, tuple[int, int]] = {}

    def walk(event: Any) -> None:
        if event.name.startswith("operator "):
            func, *rest = asked.seen[int(event.name.removeprefix("operator "))]
            name, predicted = func.name(), workspace_bytes(func, *rest)
            now = peak = 0
            for _, size in sorted(sizes(event)):
                now += size
                peak = max(peak, now)
            found[name] = max(found.get(name, (0, 0)), (peak - now, predicted))
            return
        for child in event.children:
            walk(child)

    assert profiled.profiler is not None
    for root in profiled.profiler.kineto_results.experimental_event_tree():
        walk(root)
    return found


def backward(run: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Callable[[], None]:
    """A forward and backward pass over normal numbers of these shapes; images want no gradient."""
    tensors = [
        torch.randn(shape).requires_grad_(len(shape) < 4 or shape[1] > 3 or shape[2] < 8) for shape in shapes
    ]
    gradient = torch.randn_like(run(*tensors))
    return lambda: run(*tensors).backward(gradient)


@wide
@pytest.mark.parametrize(
    ("batch", "inside", "outside", "kernel", "stride", "side"),
    [
        (16, 32, 32, 3, 1, 28),
        (4, 64, 128, 3, 2, 28),  # the input's gradient goes through one layout more
        (4, 20, 24, 3, 1, 15),  # channels are padded to 32
        (16, 64, 64, 1, 1, 8),
        (16, 256, 256, 1, 2, 28),  # every second place is gathered first
        (4, 64, 64, 1, 1, 28),  # a product
        (4, 1, 16, 5, 1, 28),
        (4, 3, 64, 7, 2, 112),
    ],
)
def test_a_convolution_takes_what_its_layouts_take(
    batch: int, inside: int, outside: int, kernel: int, stride: int, side: int
) -> None:
    def convolve(given: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(given, weight, stride=stride, padding=kernel // 2)

    found = measured(backward(convolve, (batch, inside, side, side), (outside, inside, kernel, kernel)))
    for name in ("aten::convolution", "aten::convolution_backward"):
        taken, predicted = found[name]
        assert predicted == pytest.approx(taken, rel=0.001, abs=256)


@wide
def test_a_convolution_whose_channels_are_last_takes_its_weight_in_another_layout() -> None:
    def convolve(given: Tensor, weight: Tensor) -> Tensor:
        last = torch.channels_last
        return F.conv2d(
            given.contiguous(memory_format=last), weight.contiguous(memory_format=last), padding=1
        )

    taken, predicted = measured(backward(convolve, (8, 128, 16, 16), (128, 128, 3, 3)))["aten::convolution"]
    assert predicted == 128 * 128 * 9 * 4
    assert predicted == pytest.approx(taken, rel=0.02)


CASES = {
    "batch norm": (
        "aten::native_batch_norm_backward",
        backward(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (8, 32, 16, 16), (32,), (32,)),
    ),
    "layer norm": (
        "aten::native_layer_norm_backward",
        backward(lambda x, w, b: F.layer_norm(x, (96,), w, b), (8, 65, 96), (96,), (96,)),
    ),
    "group norm": (
        "aten::native_group_norm_backward",
        backward(lambda x, w, b: F.group_norm(x, 4, w, b), (8, 32, 16, 16), (32,), (32,)),
    ),
    "softmax of a transposed tensor": (
        "aten::_softmax",
        backward(lambda x: x.transpose(1, 2).softmax(-1), (8, 64, 32)),
    ),
    "safe softmax": ("aten::_safe_softmax", lambda: aten._safe_softmax(torch.zeros(4, 4, 48, 48), -1)),
    "attention of one block": (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        backward(F.scaled_dot_product_attention, *[(8, 4, 65, 24)] * 3),
    ),
    "attention of many blocks": (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        backward(F.scaled_dot_product_attention, *[(2, 4, 800, 32)] * 3),
    ),
    "attention's gradient": (
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        backward(F.scaled_dot_product_attention, *[(2, 4, 800, 32)] * 3),
    ),
    "embedding of a transposed batch": (
        "aten::embedding_dense_backward",
        backward(lambda w: F.embedding(torch.arange(40).view(8, 5), w).transpose(0, 1), (100, 64)),
    ),
    "absolute complex numbers": ("aten::abs", lambda: torch.ones(64, 65, dtype=torch.complex64).abs()),
    "logarithm of a sum": ("aten::logsumexp", lambda: torch.randn(64, 128).logsumexp(-1)),
    "k-th value": ("aten::kthvalue", lambda: torch.randn(64, 128).kthvalue(3)),
    "mean squared error": ("aten::mse_loss", lambda: F.mse_loss(torch.ones(64, 128), torch.zeros(64, 128))),
    "squared errors": (
        "aten::mse_loss",
        lambda: F.mse_loss(torch.ones(64, 128), torch.zeros(64, 128), reduction="none"),
    ),
    "binary cross-entropy": (
        "aten::binary_cross_entropy_with_logits",
        lambda: F.binary_cross_entropy_with_logits(torch.ones(64, 128), torch.ones(64, 128)),
    ),
    "binary cross-entropy of each": (
        "aten::binary_cross_entropy_with_logits",
        lambda: F.binary_cross_entropy_with_logits(
            torch.ones(64, 128), torch.ones(64, 128), pos_weight=torch.ones(128), reduction="none"
        ),
    ),
    "sum of truths": ("aten::sum.dim_IntList", lambda: (torch.randn(64, 128) > 0).sum(1)),
    "mean in a wider type": (
        "aten::mean.dim",
        lambda: torch.ones(64, 128).bfloat16().mean(1, dtype=torch.float32),
    ),
    "what a mask scatters": (
        "aten::masked_scatter_backward",
        lambda: aten.masked_scatter_backward(torch.ones(64, 128), torch.ones(64, 128) > 0, [64, 128]),
    ),
    "windows of an image": ("aten::im2col", lambda: F.unfold(torch.randn(4, 3, 32, 32), 5, padding=2)),
    "distances": (
        "aten::_cdist_forward",
        lambda: torch.cdist(torch.randn(4, 16, 8), torch.randn(1, 24, 8).expand(4, -1, -1)),
    ),
    "distances by a product": (
        "aten::_euclidean_dist",
        lambda: torch.cdist(torch.randn(64, 8), torch.randn(72, 8)),
    ),
    "an image made larger": (
        "aten::upsample_bilinear2d",
        lambda: F.interpolate(torch.randn(4, 16, 16, 16), scale_factor=2, mode="bilinear"),
    ),
    "convolution in half precision": (
        "aten::convolution_backward",
        backward(
            lambda x, w: F.conv2d(x.bfloat16(), w.bfloat16(), padding=1), (4, 16, 16, 16), (10, 16, 3, 3)
        ),
    ),
    "dilated convolution": (
        "aten::convolution_backward",
        backward(lambda x, w: F.conv2d(x, w, padding=2, dilation=2), (4, 256, 4, 4), (64, 256, 3, 3)),
    ),
    "product whose gradient is laid out anew": (
        "aten::convolution_backward",
        backward(lambda x, w: F.conv2d(x, w).sum((0, 2, 3)), (4, 32, 32, 32), (4, 32, 1, 1)),
    ),
    "transposed convolution": (
        "aten::convolution",
        lambda: F.conv_transpose1d(torch.randn(4, 32, 64), torch.randn(32, 16, 4), stride=2),
    ),
    "sort": ("aten::sort", lambda: torch.randn(64, 128).sort(-1)),
    "norm in a wider type": (
        "aten::linalg_vector_norm",
        lambda: torch.linalg.vector_norm(torch.ones(64, 128, dtype=torch.bfloat16), dtype=torch.float32),
    ),
    "cumulative sum of truths": ("aten::cumsum", lambda: torch.ones(64, 128, dtype=torch.bool).cumsum(1)),
    "two types": ("aten::mul.Tensor", lambda: torch.ones(64, 128).bfloat16() * torch.ones(64, 128)),
    "choice": (
        "aten::where.self",
        lambda: torch.where(torch.ones(64, 128) > 0, torch.ones(64, 128), torch.zeros(())),
    ),
    "mean in half precision": ("aten::mean.dim", lambda: torch.ones(64, 128).bfloat16().mean(-1)),
    "product with an expanded factor": (
        "aten::mm",
        lambda: torch.randn(64, 1).expand(64, 32) @ torch.randn(32, 16),
    ),
    "convolution in double precision": (
        "aten::convolution",
        lambda: F.conv2d(torch.randn(8, 32, 16, 16).double(), torch.randn(64, 32, 3, 3).double(), padding=1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_prediction_is_what_the_kernel_takes(case: str) -> None:
    name, run = CASES[case]
    found = measured(run)
    taken, predicted = next(value for key, value in found.items() if key.split(".")[0] == name.split(".")[0])
    assert predicted == pytest.approx(taken, rel=0.001, abs=SCALARS)


@wide
def test_a_recurrent_layer_takes_its_weights_and_gates_and_keeps_what_fake_results_lack() -> None:
    layer = torch.nn.LSTM(96, 160)
    given = torch.randn(16, 64, 96, requires_grad=True)
    found = measured(lambda: layer(given)[0].sum().backward())
    taken, predicted = found["aten::mkldnn_rnn_layer"]
    assert predicted == pytest.approx(taken, rel=0.05)
    taken, predicted = found["aten::mkldnn_rnn_layer_backward"]
    assert predicted == pytest.approx(taken, rel=0.12)
    weights = [each.detach() for each in layer.parameters()]
    state = torch.zeros(64, 160)
    args = (given.detach(), *weights, state, state, False, [], 2, 160, 1, True, False, False, True)
    kept = aten.mkldnn_rnn_layer.default(*args)[3]
    assert hidden_result_bytes(aten.mkldnn_rnn_layer.default, args) == pytest.approx(kept.nbytes, rel=0.03)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert aten.mkldnn_rnn_layer.default(*args)[3].nbytes == 0  # else there is nothing to be added


@pytest.mark.parametrize(("rows", "inner", "columns"), [(512, 256, 1024), (1024, 1024, 256), (100, 60, 3000)])
@pytest.mark.parametrize("layout", ["both as they lie", "left transposed", "right transposed"])
def test_a_product_in_bfloat16_takes_on_this_processor_what_was_measured(
    layout: str, rows: int, inner: int, columns: int
) -> None:
    left, right = torch.randn(rows, inner).bfloat16(), torch.randn(inner, columns).bfloat16()
    if layout == "left transposed":
        left = left.t().contiguous().t()
    if layout == "right transposed":
        right = right.t().contiguous().t()
    taken, predicted = measured(lambda: left @ right)["aten::mm"]
    assert predicted == pytest.approx(taken, rel=0.01, abs=SCALARS)


def test_a_stack_of_products_in_bfloat16_takes_what_was_measured() -> None:
    left, right = torch.randn(12, 128, 48).bfloat16(), torch.randn(12, 128, 48).bfloat16()
    taken, predicted = measured(lambda: torch.bmm(left, right.mT))["aten::bmm"]
    assert predicted == pytest.approx(taken, rel=0.01, abs=SCALARS)


def test_fake_tensors_are_told_the_same_as_real_ones() -> None:
    shapes = (8, 32, 16, 16), (64, 32, 3, 3)
    real = [torch.randn(shape) for shape in shapes]
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    func = aten.convolution.default
    said = workspace_bytes(func, (*real, *rest), {}, func(*real, *rest))
    with FakeTensorMode():
        fake = [torch.randn(shape) for shape in shapes]
        assert workspace_bytes(func, (*fake, *rest), {}, func(*fake, *rest)) == said > 0
        there = [each.to("meta") for each in fake]
    assert workspace_bytes(func, (*there, *rest), {}, there[0]) == 0  # on another device


def of(name: str, dtype: torch.dtype, device: str = "cpu") -> Op:
    return Op(f"aten.{name}.default", Place(0, Phase.FORWARD, 0, 0, "", -1), device, dtype, 1, 8, 8, 0)


def test_only_kernels_of_half_precision_on_a_cpu_leave_a_doubt() -> None:
    assert doubt([of("mm", torch.float32), of("convolution", torch.float32)]) == 0.0
    assert doubt([of("add", torch.bfloat16), of("mm", torch.bfloat16, "cuda:0")]) == 0.0
    assert doubt([of("mm", torch.bfloat16)]) == doubt([of("convolution", torch.float16)]) > 0.0
    assert doubt([]) == 0.0


def test_a_doubt_covers_what_predictions_were_short_of() -> None:
    assert doubt([of("convolution_backward", torch.bfloat16)]) > 0.0005
    assert doubt([of("addmm", torch.bfloat16)]) > 0.00153


def test_an_operator_of_a_device_that_reads_from_the_host_takes_nothing_of_the_cpus() -> None:
    here, there = torch.ones(64, dtype=torch.bfloat16), torch.ones(64, device="meta")
    product = torch.ops.aten.mul.Tensor
    assert workspace_bytes(product, (here, there.new_ones(64, device="cpu")), {}, torch.ones(64)) > 0
    assert workspace_bytes(product, (here, there), {}, there) == 0
