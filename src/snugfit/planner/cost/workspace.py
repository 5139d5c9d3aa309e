"""The workspace of kernels within one operator, beside their results: those on a CPU, cuDNN's recurrent layers, and a GPU's sums over rows.

Such memory is in no tensor that a recorder sees, and counts at the peak. Where a kernel's way is known the number follows from its
shapes; where it depends on the processor the kernel is measured at its first use. What is of a CPU holds for torch 2.11 to 2.13 on x86-64
with AVX-512; kernels for other processors pad to fewer channels, and take less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from snugfit.planner.cost import recurrent
from snugfit.planner.cost.convolution_workspace import (
    Arguments,
    Rule,
    bytes_of,
    channels_last,
    convolution,
    convolution_backward,
    copied,
    follows_rule,
    round_up,
)
from snugfit.planner.cost.flops import op_class
from snugfit.planner.cost.kernel_memory import measured_bytes
from snugfit.planner.cost.products import product
from snugfit.planner.cost.records import Op
from snugfit.planner.cost.staged_sums import staged_sums
from snugfit.system.threads import threads_of_run


def workspace_bytes(func: Any, args: Arguments, kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the most that `func` has allocated on its device at a time within itself, less what of it is in `out`, in bytes.

    Args:
        func: an operator as it is dispatched, such as `torch.ops.aten.convolution.default`.
        args: what it takes; tensors may be fake.
        out: what it gave.

    Returns:
        0 for an operator of which nothing is known. Scalars that are wrapped to tensors do not count.
    """
    name = func.name().split(".")[0].removeprefix("aten::")
    if name in _CUDNN:
        return _CUDNN[name](args, kwargs, out)
    if name == "sum" and args[0].device.type == "cuda":
        return staged_sums(args[0], out)
    if {each.device.type for each in args if isinstance(each, Tensor)} != {"cpu"}:
        return 0
    if name in _MEASURED or (name in _CONVOLUTIONS and not follows_rule(name, args)):
        return measured_bytes(func, args, kwargs)
    rule = RULES.get(name)
    if rule is not None:
        return rule(args, kwargs, out)
    if torch.Tag.pointwise in func.tags:
        return _promoted(args)
    return 0


_HALF = (torch.bfloat16, torch.float16)
_DOUBTFUL = ("convolution", "matmul")
_DOUBT = 0.005


def doubt(ops: Iterable[Op]) -> float:
    """Return the share of a run's bytes by which it may need more, as products of half precision take within themselves what is only about known.

    Source: benchmarks/planner/memory.md. Predictions of runs with such products were short by up to 0.15%, with such convolutions, which
    are measured one by one, by up to 0.05%; of all other runs by a few kilobytes, which a process's overhead has room for.
    """
    half = any(op.dtype in _HALF and op.device == "cpu" and op_class(op.name) in _DOUBTFUL for op in ops)
    return _DOUBT if half else 0.0


# ---- elementwise and reductions


def _promoted(args: Arguments) -> int:
    """Return copies of tensors whose type is not the one that an elementwise kernel computes in."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    if not tensors:
        return 0
    common = tensors[0].dtype
    for each in tensors[1:]:
        common = torch.promote_types(common, each.dtype)
    return sum(each.numel() * common.itemsize for each in tensors if each.dim() and each.dtype != common)


def _where(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the condition is read as it is."""
    return _promoted(args[1:])


def _nothing(_args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    return 0


def _mean(args: Arguments, kwargs: Mapping[str, Any], out: Tensor) -> int:
    """Half precision is summed in float32: a copy, and the sums."""
    if args[0].dtype != out.dtype:
        return _widened(args, kwargs, out)
    half = args[0].dtype in _HALF
    return 4 * (args[0].numel() + out.numel()) if half else 0


def _widened(args: Arguments, _kwargs: Mapping[str, Any], out: Tensor) -> int:
    return args[0].numel() * out.element_size() if args[0].dtype != out.dtype else 0


def _complex(args: Arguments, _kwargs: Mapping[str, Any], _out: Tensor) -> int:
    """Complex numbers give complex results first, whose real parts are kept."""
    return bytes_of(args[0]) if args[0].is_complex() else 0


def _log_sum_exp(args: Arguments, _kwargs: Mapping[str, Any], out: Tensor) -> int:
    """Return the exponentials, and the maxima that are subtracted."""
    return bytes_of(args[0]) + bytes_of(out)


def _loss_terms(args: Arguments, _kwargs: Mapping[str, Any], _out: Tensor) -> int:
    """Return the terms, where they are added up within the operator."""
    return _terms(args[0], args[1]) if _reduced(args, 2) else 0


def _binary_cross_entropy(args: Arguments, _kwargs: Mapping[str, Any], _out: Tensor) -> int:
    """Return the logarithms of the sigmoids beside the terms, and the weights of positives less one."""
    terms = _terms(args[0], args[1])
    positives = args[3] if len(args) > 3 else None
    return terms * (2 if _reduced(args, 4) else 1) + (0 if positives is None else bytes_of(positives))


def _reduced(args: Arguments, place: int) -> bool:
    """Return whether a loss is added up within; the mean is what it does by default."""
    return len(args) <= place or args[place] != 0


def _terms(given: Tensor, target: Tensor) -> int:
    common = torch.promote_types(given.dtype, target.dtype)
    return given.numel() * common.itemsize


def _copied_with_places(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the numbers once more, each with its place."""
    return int(args[0].numel() * (args[0].element_size() + 8))


def _copied_once(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the numbers once more, or as many of them as a mask selects."""
    return bytes_of(args[0])


def _softmax(args: Arguments, _kwargs: Mapping[str, Any], _out: Tensor) -> int:
    return copied(args[0])


def _safe_softmax(args: Arguments, _kwargs: Mapping[str, Any], out: Tensor) -> int:
    """Return which elements are minus infinity, which rows have nothing else, and a zero for these."""
    rows = out.numel() // max(out.shape[args[1]], 1)
    return copied(args[0]) + out.numel() + rows + 4


def _sort(args: Arguments, kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the order of one row."""
    dim = next((each for each in args[1:] if type(each) is int), kwargs.get("dim", -1))
    return args[0].shape[dim] * 8 if args[0].dim() else 0


# ---- lookups and pools


def _copies_of(*places: int) -> Rule:
    """Contiguous copies of some arguments."""

    def rule(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
        return sum(copied(args[place]) for place in places if place < len(args))

    return rule


def _max_pool_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    return 0 if channels_last(args[1]) and channels_last(args[0]) else copied(args[0])


# ---- norms


def _batch_norm(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return two numbers for each channel."""
    return int(8 * args[0].shape[1])


def _batch_norm_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the gradient of the input once more, where input and gradient are laid out alike; else a slower kernel does without."""
    gradient, given = args[:2]
    dense = given.is_contiguous() or channels_last(given)
    return bytes_of(given) if dense and gradient.stride() == given.stride() else 0


def _layer_norm_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return each thread sums up the gradients of weight and bias for itself."""
    return 8 * threads_of_run() * math.prod(args[2]) + copied(args[0]) + copied(args[1])


def _group_norm_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return two sums for each example and channel."""
    return int(8 * args[1].shape[0] * args[1].shape[1] + _copied_as(args[0], args[1]))


def _copied_as(tensor: Tensor, other: Tensor) -> int:
    """Return bytes of the copy of a tensor that a kernel wants laid out as another."""
    return 0 if tensor.stride() == other.stride() else bytes_of(tensor)


# ---- attention


def _attention_blocks(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Return rows of queries and of keys that a thread looks at at once."""
    rows = query.shape[-2]
    return min(256 if rows >= 768 else 64 if rows >= 192 else 32, rows), min(512, key.shape[-2])


def _attention(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Scores, their maxima and sums, and the output of one block, for each thread, in float32.

    Half precision needs the scores once more, and keys and values packed.

    Source: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
    """
    query, key, value = args[:3]
    rows, columns = _attention_blocks(query, key)
    width = value.shape[-1]
    each = 4 * (rows * columns + 2 * rows + rows * width)
    if query.dtype == torch.float32:
        return int(threads_of_run() * each)
    each += 2 * rows * round_up(columns, 2)
    if key.shape[-2] < 64:
        return int(threads_of_run() * each)
    return int(threads_of_run() * (each + 2 * columns * width) + bytes_of(key) + bytes_of(value))


def _attention_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Scores and their gradients of one block, for each thread; half precision has both twice."""
    gradient, query, key = args[:3]
    rows, columns = _attention_blocks(query, key)
    size = 4 if query.dtype == torch.float32 else 6
    dense = bytes_of(gradient) if query.is_contiguous() or 0 in gradient.stride() else 0
    return threads_of_run() * (2 * rows * columns * size + 4 * rows) + dense


# ---- recurrent layers


def _recurrent(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return both weights in another layout, and in float32 the gates of every step."""
    gates = 4 * _states(args) if args[0].dtype == torch.float32 else 0
    return bytes_of(args[1]) + bytes_of(args[2]) + gates


def _recurrent_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return that of forward, or the weights and their gradients in another layout; the latter was fitted, and is right within a tenth."""
    weights = bytes_of(args[1]) + bytes_of(args[2])
    taken = max(weights + 4 * _states(args), 2 * weights + round(1.3 * bytes_of(args[0])) + _states(args))
    return taken + copied(args[10])


def _states(args: Arguments) -> int:
    """Return bytes of a hidden state at every step."""
    steps, examples = args[0].shape[:2]
    return int(4 * steps * examples * args[2].shape[1])


_LSTM: Any = torch.ops.aten.mkldnn_rnn_layer.default


def hidden_result_bytes(func: Any, args: Arguments) -> int:
    """Return bytes that the real results of `func` have and fake ones lack.

    It is what oneDNN's LSTM keeps for its backward pass, to be counted from the operator until that pass.

    Source: measured; the gates, and eleven states for each step and ten besides.
    """
    if func is not _LSTM or not args[15]:
        return 0
    steps, examples = args[0].shape[:2]
    width = args[2].shape[1]
    gates = 4 * width + (16 if 4 * width % 256 == 0 else 0)  # so that rows do not share lines of the cache
    return int(4 * examples * (steps * gates + (11 * steps + 10) * width))


# ---- quantisation


def _quantised_rows(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Twice the scaled weight in float32, and two scales for each row; what is kept has one byte for each number.

    Source: bitsandbytes/backends/default/ops.py, as is that of blocks.
    """
    numbers: int = args[0].numel()
    rows: int = numbers // args[0].shape[-1]
    return 8 * numbers + 8 * rows - (numbers + 4 * rows)


def _quantised_blocks(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the scaled weight in float32, the places of its numbers among the levels, these in bytes, and both halves of the pairs."""
    numbers: int = args[0].numel()
    whole = 0 if args[0].dtype == torch.float32 else 4 * numbers
    return whole + 9 * numbers + numbers // 2


def _low_bit_states(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return, in float32, both moments, the gradient, the root of the second moment and what it is divided to, and a weight of another type.

    Source: bitsandbytes/backends/cpu/ops.py.
    """
    weight = args[2]
    return int(4 * weight.numel() * (5 if weight.dtype == torch.float32 else 6))


RULES: Mapping[str, Rule] = {
    "_log_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_softmax": _softmax,
    "abs": _complex,
    "addmm": product(1),
    "all": _widened,
    "angle": _complex,
    "any": _widened,
    "avg_pool2d_backward": _copies_of(0),
    "binary_cross_entropy_with_logits": _binary_cross_entropy,
    "bitsandbytes::int8_vectorwise_quant": _quantised_rows,
    "bitsandbytes::optimizer_update_8bit_blockwise": _low_bit_states,
    "bitsandbytes::quantize_4bit": _quantised_blocks,
    "bmm": product(0),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "cumsum": _widened,
    "embedding": _copies_of(1),
    "embedding_dense_backward": _copies_of(0, 1),
    "huber_loss": _loss_terms,
    "kthvalue": _copied_with_places,
    "linalg_vector_norm": _widened,
    "logsumexp": _log_sum_exp,
    "masked_fill": _nothing,
    "masked_fill_": _nothing,
    "masked_scatter_backward": _copied_once,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "mean": _mean,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
    "mm": product(0),
    "mse_loss": _loss_terms,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_group_norm_backward": _group_norm_backward,
    "native_layer_norm": _copies_of(0),
    "native_layer_norm_backward": _layer_norm_backward,
    "prod": _widened,
    "smooth_l1_loss": _loss_terms,
    "sort": _sort,
    "sum": _widened,
    "where": _where,
}
"""By the operator's name, without its overload."""

_CUDNN: dict[str, Rule] = {
    "_cudnn_rnn": recurrent.forward_workspace,
    "_cudnn_rnn_backward": recurrent.backward_workspace,
}

_CONVOLUTIONS = ("convolution", "convolution_backward")

_MEASURED = frozenset(
    {
        "_cdist_backward",
        "_cdist_forward",
        "_euclidean_dist",
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_upsample_nearest_exact2d",
        "col2im",
        "im2col",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_nearest2d",
    }
)
"""Operators whose kernels choose a layout by shape and processor; they cost little to run once."""
