"""What an operator costs, from its arguments alone: operations, bytes, the type of number it computes in.

All of it works on fake tensors, inside a `TorchDispatchMode`, for operators as they are dispatched (`aten.mm.default`, …).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

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

_OVERWRITE = frozenset(
    {
        "copy_",
        "zero_",
        "fill_",
        "normal_",
        "uniform_",
        "bernoulli_",
        "random_",
        "exponential_",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "_foreach_copy_",
        "_foreach_zero_",
    }
)
"""In-place operators that do not read what they write over."""

_SELECT = {"embedding": 0, "index": 0, "index_select": 0, "gather": 0, "take": 0, "nll_loss_forward": 0}
"""Operators that read of one argument, at this position, only what they put out."""

_SHAPE_ONLY = {"nll_loss_backward": 1, "max_pool2d_with_indices_backward": 1, "avg_pool2d_backward": 1}
"""Operators that need of one argument, at this position, only its shape."""

_SCATTER = {"index_put_": 2, "_index_put_impl_": 2, "index_add_": 3, "scatter_add_": 3, "scatter_": 3}
"""In-place operators that touch only as much of what they write to as the argument at this position has."""

_NOTHING = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "lift_fresh",
    }
)
"""Operators that move no bytes although they put out a tensor."""


_FLASH = "_scaled_dot_product_flash_attention"
_SAME_AS = {
    f"{_FLASH}_for_cpu": _FLASH,
    f"{_FLASH}_for_cpu_backward": f"{_FLASH}_backward",
    "_scaled_dot_product_fused_attention_overrideable": _FLASH,
    "_scaled_dot_product_fused_attention_overrideable_backward": f"{_FLASH}_backward",
}
"""Kernels that torch's registry lacks, and those that take the same shapes."""


def operator(name: str) -> str:
    """The bare name of an operator.

    >>> operator("aten.add_.Tensor")
    'add_'
    """
    return name.split(".")[1] if "." in name else name


def op_class(name: str) -> str:
    """Which kind of kernel an operator is: "matmul", "convolution", "attention" or "other".

    >>> [op_class(f"aten.{name}.default") for name in ("addmm", "convolution_backward", "gelu")]
    ['matmul', 'convolution', 'other']
    """
    bare = operator(name).removesuffix("_")
    if bare in _MATMULS:
        return "matmul"
    if "convolution" in bare or bare.startswith("_slow_conv"):
        return "convolution"
    if "_attention" in bare:
        return "attention"
    return "other"


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Floating-point operations of matrix products, convolutions and attention, a multiply-add as two; 0 for all else.

    Causal attention counts half of the full one. Source: torch's registry, which ignores causality, counts the weights'
    gradient of a grouped convolution as if it had no groups, and has no recurrent layers.
    """
    kind = op_class(str(func))
    if kind == "other" or func.namespace != "aten":
        return 0
    bare = operator(str(func)).removesuffix("_")
    if bare in _FORMULAS:
        return _FORMULAS[bare](args, out)
    formula = flop_registry.get(getattr(torch.ops.aten, _SAME_AS.get(bare, bare)))
    if formula is None:
        return 0
    count = int(formula(*args, **kwargs, out_val=out))
    return count // 2 if kind == "attention" and _is_causal(func, args, kwargs) else count


def _is_causal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Also memory-efficient attention's `custom_mask_type`, which is 0 for no mask and 1 and 2 for causal ones."""
    named = _named(func, args, kwargs)
    return bool(named.get("is_causal") or named.get("custom_mask_type"))


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _convolution_backward(args: Sequence[Any], out: Any) -> int:
    """The gradient of the input and that of the weight each cost what the forward did."""
    gradient, inputs, weight, _, *settings = args
    forward = flop_registry[torch.ops.aten.convolution](
        inputs, weight, None, *settings[:-1], out_val=gradient
    )
    return int(forward) * int(sum(settings[-1][:2]))


def _per_output(args: Sequence[Any], out: Any) -> int:
    """A product over the last dimension of the first argument."""
    return 2 * int(out.numel()) * int(args[0].shape[-1])


def _plain_int_mm(args: Sequence[Any], out: Any) -> int:
    return 2 * int(args[0].numel()) * int(args[1].shape[-1])


def _addmv(args: Sequence[Any], out: Any) -> int:
    return 2 * int(args[1].numel())


def _batched_sum(args: Sequence[Any], out: Any) -> int:
    return 2 * int(args[1].numel()) * int(args[2].shape[-1])


def _dot(args: Sequence[Any], out: Any) -> int:
    return 2 * int(args[0].numel())


def _recurrent(inputs: torch.Tensor, weights: Iterable[Any]) -> int:
    """Each element of each matrix once per element of the sequences (steps, examples, features)."""
    matrices = sum(w.numel() for w in weights if isinstance(w, torch.Tensor) and w.dim() == 2)
    return 2 * int(inputs.shape[0] * inputs.shape[1]) * int(matrices)


_FORMULAS: dict[str, Callable[[Sequence[Any], Any], int]] = {
    "convolution_backward": _convolution_backward,
    "linear": _per_output,
    "mkldnn_linear": _per_output,
    "matmul": _per_output,
    "_grouped_mm": _per_output,
    "_scaled_grouped_mm": _per_output,
    "_int_mm": _plain_int_mm,
    "_weight_int8pack_mm": _per_output,
    "_weight_int4pack_mm": _per_output,
    "mv": _per_output,
    "addmv": _addmv,
    "addbmm": _batched_sum,
    "dot": _dot,
    "vdot": _dot,
    "mkldnn_rnn_layer": lambda args, out: _recurrent(args[0], args[1:3]),
    "mkldnn_rnn_layer_backward": lambda args, out: 2 * _recurrent(args[0], args[1:3]),
    "_cudnn_rnn": lambda args, out: _recurrent(args[0], args[1]),
    "_cudnn_rnn_backward": lambda args, out: 2 * _recurrent(args[0], args[1]),
}


def read_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> tuple[int, int]:
    """Bytes that an operator reads and writes of tensors.

    Views, and operators that answer about a tensor, move none. What is updated in place is both; a tensor given twice is
    read once; an expanded one has the bytes it really has; a look-up reads what it selects and not the table.
    """
    bare = operator(str(func))
    if func.namespace == "prim" or bare in _NOTHING:
        return 0, 0
    changed = _changed(func, args, kwargs)
    given = _distinct((args, kwargs))
    made = [t for t in _distinct(out) if not _aliases(t, given)]
    if not changed and not made:
        return 0, 0
    if bare in _SCATTER:
        touched = tensor_bytes(args[_SCATTER[bare]]) if isinstance(args[_SCATTER[bare]], torch.Tensor) else 0
        rest = sum(tensor_bytes(t) for t in given if t is not args[0])
        return rest + touched, touched
    written = sum(map(tensor_bytes, made)) + sum(map(tensor_bytes, changed))
    if bare.endswith("_like") or bare.startswith("new_"):
        return 0, written
    unread = _unread(bare, args, changed, func, kwargs)
    read = sum(tensor_bytes(t) for t in given if id(t) not in unread)
    if bare in _SELECT:
        read += min(written, tensor_bytes(args[_SELECT[bare]]))
    return read, written


def _unread(
    bare: str, args: Sequence[Any], changed: list[torch.Tensor], func: Any, kwargs: Mapping[str, Any]
) -> set[int]:
    unread = {id(args[places[bare]]) for places in (_SELECT, _SHAPE_ONLY) if bare in places}
    if bare in _OVERWRITE:
        unread |= set(map(id, changed))
    outs = [argument.name for argument in func._schema.arguments if argument.is_out]
    return unread | {id(t) for name in outs for t in tree_leaves(kwargs.get(name))}


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The arguments that the operator's schema says are written to."""
    named = _named(func, args, kwargs)
    writes = (a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return list(_distinct([named.get(name) for name in writes]))


def _distinct(tree: Any) -> list[torch.Tensor]:
    return list({id(t): t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)}.values())


def _aliases(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    if tensor.layout != torch.strided:
        return any(tensor is other for other in others)
    storage = tensor.untyped_storage()._cdata
    return any(o.layout == torch.strided and o.untyped_storage()._cdata == storage for o in others)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor has elements for, an expanded dimension once.

    >>> tensor_bytes(torch.zeros(3, 1).expand(3, 5))
    12
    """
    if tensor.layout == torch.strided:
        sizes = (
            size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size
        )
        return int(math.prod(sizes)) * tensor.itemsize
    if tensor.layout == torch.sparse_coo:
        row = math.prod(tensor.shape[tensor.sparse_dim() :]) * tensor.itemsize
        return int(tensor._nnz()) * (row + 8 * tensor.sparse_dim())
    return int(tensor.numel()) * tensor.itemsize


def compute_dtype(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> torch.dtype:
    """The type of number an operator computes in: of its operands where it multiplies matrices, otherwise of its result.

    A conversion counts as the wider of both types, since it costs the same there and back.
    """
    given = _distinct((args, kwargs))
    if operator(str(func)) == "_to_copy":
        types: list[torch.dtype] = [given[0].dtype, out.dtype]
        return max(types, key=lambda dtype: dtype.itemsize)
    if op_class(str(func)) != "other" and given:
        return given[0].dtype
    tensors = _distinct(out) or given
    floating = (t.dtype for t in tensors if t.dtype.is_floating_point)
    found: torch.dtype = next(floating, tensors[0].dtype if tensors else torch.float32)
    return found


def op_device(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> str:
    """The device that an operator runs on; of a copy between two, both: "cpu>cuda:0".

    A number on the host that an operator on an accelerator takes, such as a 0-dimensional tensor, is no copy.
    """
    to = next(_devices(out), None)
    given = list(
        _devices([t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()])
    )
    if to is None:
        return given[0] if given else next(_devices((args, kwargs)), "cpu")
    source = next((device for device in given if device != to), to)
    return to if source == to else f"{source}>{to}"


def _devices(tree: Any) -> Iterator[str]:
    return (str(t.device) for t in tree_leaves(tree) if isinstance(t, torch.Tensor))
