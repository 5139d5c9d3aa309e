"""What kernels on a CPU take and give back within one operator, beside their results.

Such memory is in no tensor that a recorder sees, and counts at the peak. Where a kernel's way is known the number follows from its
shapes. oneDNN's products in bfloat16 choose among many ways: they are looked up in `workspace.json`, measured by
`benchmarks/planner/workspace.py`. All of it holds for torch 2.11 to 2.13 on x86-64 with AVX-512, the products for AMX too; kernels for
other processors pad to fewer channels, and take less.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import torch
from torch import Tensor

Arguments: TypeAlias = Sequence[Any]
Rule: TypeAlias = Callable[[Arguments, Mapping[str, Any], Any], int]

BLOCK = 16
"""Channels that oneDNN keeps together, float32 in a register of 512 bits; fewer channels are padded to as many."""

SCRATCH = 64 * 1024
"""Bytes, about, that a thread of oneDNN's bfloat16 convolutions takes for a tile."""


def workspace_bytes(func: Any, args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """The most that `func` has allocated on the CPU at a time within itself, less what of it is in `out`, in bytes.

    Args:
        func: an operator as it is dispatched, such as `torch.ops.aten.convolution.default`.
        args: what it takes; tensors may be fake.
        out: what it gave.

    Returns:
        0 for an operator of which nothing is known, or on another device. Scalars that are wrapped to tensors do not count.
    """
    name = func.name().split(".")[0].removeprefix("aten::")
    if not any(
        isinstance(each, Tensor) and each.device.type == "cpu" for each in args
    ):  # a list of them takes nothing
        return 0
    rule = RULES.get(name)
    if rule is not None:
        return rule(args, kwargs, out)
    if torch.Tag.pointwise in func.tags:
        return _promoted(args)
    return 0


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copied(tensor: Tensor | None) -> int:
    """Of a tensor that a kernel wants contiguous."""
    return 0 if tensor is None or tensor.is_contiguous() else _bytes(tensor)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# ---- elementwise and reductions


def _promoted(args: Arguments) -> int:
    """Copies of tensors whose type is not the one that an elementwise kernel computes in."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    common = tensors[0].dtype
    for each in tensors[1:]:
        common = torch.promote_types(common, each.dtype)
    return sum(each.numel() * common.itemsize for each in tensors if each.dim() and each.dtype != common)


def _where(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """The condition is read as it is."""
    return _promoted(args[1:])


def _nothing(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    return 0


def _mean(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
    """Half precision is summed in float32: a copy, and the sums."""
    half = args[0].dtype in (torch.bfloat16, torch.float16)
    return 4 * (args[0].numel() + out.numel()) if half else 0


def _cumsum(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
    return args[0].numel() * out.element_size() if args[0].dtype != out.dtype else 0


def _softmax(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
    return _copied(args[0])


def _safe_softmax(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
    """Which elements are minus infinity, which rows have nothing else, and a zero for these."""
    rows = out.numel() // max(out.shape[args[1]], 1)
    return _copied(args[0]) + out.numel() + rows + 4


def _sort(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """The order of one row."""
    dim = next((each for each in args[1:] if type(each) is int), kwargs.get("dim", -1))
    return args[0].shape[dim] * 8 if args[0].dim() else 0


# ---- lookups and pools


def _copies_of(*places: int) -> Rule:
    """Contiguous copies of some arguments."""

    def rule(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
        return sum(_copied(args[place]) for place in places if place < len(args))

    return rule


def _max_pool_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    return 0 if _channels_last(args[1]) and _channels_last(args[0]) else _copied(args[0])


# ---- norms


def _batch_norm(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Two numbers for each channel."""
    return 8 * args[0].shape[1]


def _batch_norm_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """The gradient of the input once more, except where the channels are last."""
    gradient, given = args[:2]
    last = _channels_last(given) and (_channels_last(gradient) or gradient.is_contiguous())
    return 0 if last else _bytes(given) + _copied(gradient)


def _layer_norm_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Each thread sums up the gradients of weight and bias for itself."""
    return 8 * torch.get_num_threads() * math.prod(args[2]) + _copied(args[0]) + _copied(args[1])


def _group_norm_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Two sums for each example and channel."""
    return 8 * args[1].shape[0] * args[1].shape[1] + _copied_as(args[0], args[1])


def _copied_as(tensor: Tensor, other: Tensor) -> int:
    """Of a tensor that a kernel wants laid out as another."""
    return 0 if tensor.stride() == other.stride() else _bytes(tensor)


# ---- products


def _blas(tensor: Tensor) -> int:
    """Of a matrix, or one of a stack of them, that BLAS cannot read where it lies."""
    rows, columns = tensor.shape[-2:]
    down, along = tensor.stride()[-2:]
    fine = (along == 1 and down >= max(1, columns)) or (down == 1 and along >= max(1, rows))
    return 0 if fine else rows * columns * tensor.element_size()


def _product(first: int) -> Rule:
    """A product of the two arguments from `first` on."""

    def rule(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
        left, right = args[first], args[first + 1]
        copied = _blas(left) + _blas(right)
        if left.dtype == torch.bfloat16 and left.dim() == 2:
            layout = "tn" if left.stride(-1) != 1 else "nt" if right.stride(-1) != 1 else "nn"
            return copied + _packed(layout, (*left.shape, right.shape[1]))
        return copied

    return rule


def _packed(layout: str, sizes: Sequence[int]) -> int:
    """What a product in bfloat16 takes, between the nearest that were measured.

    Args:
        layout: of the factors: "nn", "nt" with the second one transposed, "tn" with the first.
        sizes: rows, inner dimension and columns.
    """
    table = _table()
    axis, threads = table["sizes"], min(torch.get_num_threads(), len(table["threads"]))
    found = table["threads"][threads - 1][layout]
    corners = [(0, 1.0)]
    for size in sizes:
        place = min(max(bisect_right(axis, size) - 1, 0), len(axis) - 2)
        share = math.log(size / axis[place]) / math.log(axis[place + 1] / axis[place])
        share = min(max(share, 0.0), 1.0)
        corners = [
            (len(axis) * number + place + step, weight * part)
            for number, weight in corners
            for step, part in ((0, 1 - share), (1, share))
        ]
    return round(math.exp(sum(weight * math.log(found[number] + 1) for number, weight in corners))) - 1


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files(__package__) / "workspace.json").read_text())
    return found


# ---- attention


def _attention_blocks(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Rows of queries and of keys that a thread looks at at once."""
    rows = query.shape[-2]
    return min(256 if rows >= 768 else 64 if rows >= 192 else 32, rows), min(512, key.shape[-2])


def _attention(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Scores, their maxima and sums, and the output of one block, for each thread, in float32.

    Half precision needs the scores once more, and keys and values packed.

    Source: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
    """
    query, key, value = args[:3]
    rows, columns = _attention_blocks(query, key)
    width = value.shape[-1]
    each = 4 * (rows * columns + 2 * rows + rows * width)
    if query.dtype == torch.float32:
        return torch.get_num_threads() * each
    each += 2 * rows * _up(columns, 2)
    if key.shape[-2] < 64:
        return torch.get_num_threads() * each
    return torch.get_num_threads() * (each + 2 * columns * width) + _bytes(key) + _bytes(value)


def _attention_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Scores and their gradients of one block, for each thread; half precision has both twice."""
    gradient, query, key = args[:3]
    rows, columns = _attention_blocks(query, key)
    size = 4 if query.dtype == torch.float32 else 6
    dense = _bytes(gradient) if 0 in gradient.stride() else 0
    return torch.get_num_threads() * (2 * rows * columns * size + 4 * rows) + dense


# ---- convolutions


class _Convolution:
    """Bytes of a convolution's tensors as oneDNN lays them out, and what it takes beside them.

    Source: aten/src/ATen/native/mkldnn/Conv.cpp, and measurements for the choices that oneDNN makes.
    """

    def __init__(
        self,
        given: Tensor,
        weight: Tensor,
        result: Sequence[int],
        stride: Sequence[int],
        groups: int,
        transposed: bool,
    ) -> None:
        size, kernel, threads = given.element_size(), math.prod(weight.shape[2:]), torch.get_num_threads()
        outside, inside = weight.shape[:2]
        if transposed:
            outside, inside = inside * groups, outside // groups
        self.strided = any(each != 1 for each in stride)
        self.channels_last = _channels_last(given) or _channels_last(weight)
        # of a window of one, not strided, the layout is that of a product already
        self.is_product = (
            kernel == 1 and not self.strided and given.shape[0] < 16 and threads == 1 and groups == 1
        )
        few = groups == 1 and inside < BLOCK and kernel > 1
        rows = inside if few or groups > 1 else _up(inside, BLOCK)
        self.given = 0 if few else size * _laid_out(given.shape)
        self.result = size * _laid_out(result)
        self.weight = size * kernel * rows * _up(outside, BLOCK)
        self.subsampled = 0
        if kernel == 1 and self.strided:
            self.subsampled = threads * size * _up(inside, BLOCK) * math.prod(result[2:])
        # gradients of the weight that threads sum up for themselves, where it is small
        parts = min(threads, (self.given + self.result) // (10 * self.weight))
        self.partial = max(parts - 1, 0) * self.weight


def _laid_out(shape: Sequence[int]) -> int:
    return shape[0] * _up(shape[1], BLOCK) * math.prod(shape[2:])


def _channels_last(tensor: Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _convolution(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
    given, weight, transposed, groups = args[0], args[1], args[6], args[8]
    if given.dtype == torch.float64:
        return _columns(given, weight, out)
    if given.dtype != torch.float32:  # both in another layout, and the result once more
        taken = _bytes(given) + _bytes(weight) + _bytes(out) + SCRATCH * torch.get_num_threads()
        return max(taken, _bytes(given) + 2 * _bytes(out)) - _bytes(out)
    sizes = _Convolution(given, weight, out.shape, args[3], groups, transposed)
    if sizes.is_product:
        return 0
    if sizes.channels_last:
        return sizes.weight + _copied_as_last(weight)
    peak = max(sizes.given + sizes.subsampled + sizes.weight + sizes.result, sizes.result + _bytes(out))
    return _copied(given) + peak - _bytes(out)


def _convolution_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    gradient, given, weight, transposed, groups, wanted = (
        args[0],
        args[1],
        args[2],
        args[7],
        args[9],
        args[10],
    )
    if given.dtype == torch.float64:
        return _columns(given, weight, gradient)
    if given.dtype != torch.float32:  # all in another layout; the gradient of the weight in float32
        turned = _bytes(given) + _bytes(gradient) * (2 if weight.shape[1] < BLOCK else 1)
        return turned + 2 * _bytes(weight) + SCRATCH * torch.get_num_threads()
    sizes = _Convolution(given, weight, gradient.shape, args[4], groups, transposed)
    if sizes.is_product:
        return 0
    if sizes.channels_last:
        return 2 * sizes.weight + _copied_as_last(weight) + _copied_as_last(gradient)
    peak = live = 0
    if wanted[0]:
        # a strided one goes through one layout more
        peak = max(sizes.result + sizes.weight + sizes.given, (2 + sizes.strided) * sizes.given)
        live = _bytes(given)
    if wanted[1]:
        taken = sizes.given + sizes.subsampled + sizes.result + sizes.weight + sizes.partial
        peak = max(peak, live + taken, live + sizes.weight + _bytes(weight))
        live += _bytes(weight)
    return _copied(gradient) + _copied(given) + max(peak - live, 0)


def _copied_as_last(tensor: Tensor) -> int:
    return 0 if tensor.is_contiguous(memory_format=torch.channels_last) else _bytes(tensor)


def _columns(given: Tensor, weight: Tensor, result: Tensor) -> int:
    """Each window of the input in a row of its own, where oneDNN does not compute."""
    return (
        given.element_size()
        * given.shape[0]
        * given.shape[1]
        * math.prod(weight.shape[2:])
        * math.prod(result.shape[2:])
    )


# ---- recurrent layers


def _recurrent(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Both weights in another layout, and in float32 the gates of every step."""
    gates = 4 * _states(args) if args[0].dtype == torch.float32 else 0
    return _bytes(args[1]) + _bytes(args[2]) + gates


def _recurrent_backward(args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """As forward, or the weights and their gradients in another layout; the latter was fitted, and is right within a tenth."""
    weights = _bytes(args[1]) + _bytes(args[2])
    return max(weights + 4 * _states(args), 2 * weights + round(1.3 * _bytes(args[0])) + _states(args))


def _states(args: Arguments) -> int:
    """Bytes of a hidden state at every step."""
    steps, examples = args[0].shape[:2]
    return 4 * steps * examples * args[2].shape[1]


def hidden_result_bytes(func: Any, args: Arguments) -> int:
    """Bytes that the real results of `func` have and fake ones lack: what oneDNN's LSTM keeps for its backward pass, to be
    counted from the operator until that pass.

    Source: measured; the gates, and eleven states for each step and ten besides.
    """
    if func is not torch.ops.aten.mkldnn_rnn_layer.default or not args[15]:
        return 0
    steps, examples = args[0].shape[:2]
    width = args[2].shape[1]
    gates = 4 * width + (16 if 4 * width % 256 == 0 else 0)  # so that rows do not share lines of the cache
    return 4 * examples * (steps * gates + (11 * steps + 10) * width)


RULES: Mapping[str, Rule] = {
    "_log_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_softmax": _softmax,
    "addmm": _product(1),
    "avg_pool2d_backward": _copies_of(0),
    "bmm": _product(0),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "cumsum": _cumsum,
    "embedding": _copies_of(1),
    "embedding_dense_backward": _copies_of(0, 1),
    "masked_fill": _nothing,
    "masked_fill_": _nothing,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "mean": _mean,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
    "mm": _product(0),
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_group_norm_backward": _group_norm_backward,
    "native_layer_norm": _copies_of(0),
    "native_layer_norm_backward": _layer_norm_backward,
    "sort": _sort,
    "where": _where,
}
"""By the operator's name, without its overload."""
