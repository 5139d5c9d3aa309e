"""The kind of kernel that an operator is, and its operations, from its arguments alone.

All of it works on fake tensors, inside a `TorchDispatchMode`, for operators as they are dispatched (`aten.mm.default`, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from snugfit.planner.cost import recurrent

_MATMULS = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "matmul",
        "linear",
        "_scaled_mm",
        "_int_mm",
        "_grouped_mm",
        "_scaled_grouped_mm",
        "mkldnn_linear",
        "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
        "_cudnn_rnn",
        "_cudnn_rnn_backward",
        "_weight_int8pack_mm",
        "_weight_int4pack_mm",
    }
)

_FLASH = "_scaled_dot_product_flash_attention"
_SAME_AS = {
    f"{_FLASH}_for_cpu": _FLASH,
    f"{_FLASH}_for_cpu_backward": f"{_FLASH}_backward",
    "_scaled_dot_product_fused_attention_overrideable": _FLASH,
    "_scaled_dot_product_fused_attention_overrideable_backward": f"{_FLASH}_backward",
}
"""Kernels that torch's registry lacks, and those that take the same shapes."""


_BY_EXAMPLE = {"_varlen_attn": 2, "_varlen_attn_backward": 5}
"""Attention of packed rows that is told where each example begins, and its products of tokens with tokens."""


def operator(name: str) -> str:
    """Return the bare name of an operator.

    >>> operator("aten.add_.Tensor")
    'add_'
    """
    return name.split(".")[1] if "." in name else name


def op_class(name: str) -> str:
    """Return which kind of kernel an operator is: "matmul", "convolution", "attention" or "other".

    >>> [op_class(f"aten.{name}.default") for name in ("addmm", "convolution_backward", "gelu")]
    ['matmul', 'convolution', 'other']
    """
    bare = operator(name).removesuffix("_")
    if bare in _MATMULS:
        return "matmul"
    if "convolution" in bare or bare.startswith("_slow_conv"):
        return "convolution"
    if "_attention" in bare or bare in _BY_EXAMPLE:
        return "attention"
    return "other"


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Floating-point operations of matrix products, convolutions and attention, a multiply-add as two; 0 for all else.

    Causal attention counts half of the full one. Source: torch's registry, which ignores causality, counts the weights'
    gradient of a grouped convolution as if it had no groups, and has no recurrent layers.
    """
    kind = op_class(str(func))
    bare = operator(str(func)).removesuffix("_")
    if bare in _BY_EXAMPLE:
        return _by_example(_BY_EXAMPLE[bare], named_arguments(func, args, kwargs))
    if kind == "other" or func.namespace != "aten":
        return 0
    if bare in _FORMULAS:
        return _FORMULAS[bare](args, out)
    formula = flop_registry.get(getattr(torch.ops.aten, _SAME_AS.get(bare, bare)))
    if formula is None:
        return 0
    if bare.startswith("_scaled_dot_product"):
        args = _with_all_heads(func, args)
    count = int(formula(*args, **kwargs, out_val=out))
    return count // 2 if kind == "attention" and _is_causal(func, args, kwargs) else count


def _with_all_heads(func: Any, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of an attention with keys and values as the shapes they have for all heads of the queries.

    Needed by torch 2.11, whose formulas refuse fewer heads of keys; those of torch 2.13 count the same by themselves.
    """
    names = [argument.name for argument in func._schema.arguments]
    query, *places = (names.index(name) for name in ("query", "key", "value"))
    shapes = list(args)
    for place in places:
        batch, _, *rest = args[place].shape
        shapes[place] = torch.Size((batch, args[query].shape[1], *rest))
    return shapes


def _is_causal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Also memory-efficient attention's `custom_mask_type`, which is 0 for no mask and 1 and 2 for causal ones."""
    named = named_arguments(func, args, kwargs)
    return bool(named.get("is_causal") or named.get("custom_mask_type"))


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an operator is given, by the names of its schema."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _by_example(products: int, given: Mapping[str, Any]) -> int:
    """Return the operations of attention within examples, each taken to be as long as the others: their lengths are no shapes."""
    query, examples = given["query"], given["cu_seq_q"].numel() - 1
    tokens, heads, dim = query.shape
    count = 2 * products * tokens * (tokens / examples) * heads * dim
    return int(count / 2 if given["is_causal"] else count)


def _convolution_backward(args: Sequence[Any], _out: Any) -> int:
    """Return the gradient of the input and that of the weight each cost what the forward did."""
    gradient, inputs, weight, _, *settings = args
    forward = flop_registry[torch.ops.aten.convolution](
        inputs, weight, None, *settings[:-1], out_val=gradient
    )
    return int(forward) * int(sum(settings[-1][:2]))


def _per_output(args: Sequence[Any], out: Any) -> int:
    """Return a product over the last dimension of the first argument."""
    return 2 * int(out.numel()) * int(args[0].shape[-1])


def _grouped(args: Sequence[Any], out: Any) -> int:
    """Return products of groups: the weights' gradient, of two matrices cut along what is summed, has a group's rows in each product."""
    left, right = args[:2]
    if left.dim() == right.dim() == 2:
        return 2 * int(left.numel()) * int(right.shape[-1])
    return _per_output(args, out)


def _plain_int_mm(args: Sequence[Any], _out: Any) -> int:
    return 2 * int(args[0].numel()) * int(args[1].shape[-1])


def _addmv(args: Sequence[Any], _out: Any) -> int:
    return 2 * int(args[1].numel())


def _batched_sum(args: Sequence[Any], _out: Any) -> int:
    return 2 * int(args[1].numel()) * int(args[2].shape[-1])


def _dot(args: Sequence[Any], _out: Any) -> int:
    return 2 * int(args[0].numel())


def _recurrent(inputs: torch.Tensor, weights: Iterable[Any]) -> int:
    """Return each element of each matrix once per element of the sequences (steps, examples, features)."""
    matrices = sum(w.numel() for w in weights if isinstance(w, torch.Tensor) and w.dim() == 2)
    return 2 * int(inputs.shape[0] * inputs.shape[1]) * int(matrices)


_FORMULAS: dict[str, Callable[[Sequence[Any], Any], int]] = {
    "convolution_backward": _convolution_backward,
    "linear": _per_output,
    "mkldnn_linear": _per_output,
    "matmul": _per_output,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "_int_mm": _plain_int_mm,
    "_weight_int8pack_mm": _per_output,
    "_weight_int4pack_mm": _per_output,
    "mv": _per_output,
    "addmv": _addmv,
    "addbmm": _batched_sum,
    "dot": _dot,
    "vdot": _dot,
    "mkldnn_rnn_layer": lambda args, _out: _recurrent(args[0], args[1:3]),
    "mkldnn_rnn_layer_backward": lambda args, _out: 2 * _recurrent(args[0], args[1:3]),
    "_cudnn_rnn": lambda args, _out: recurrent.flops(args),
    "_cudnn_rnn_backward": lambda args, _out: 2 * recurrent.flops(args),
}
