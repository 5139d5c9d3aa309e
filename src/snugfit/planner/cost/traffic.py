"""The bytes that an operator reads and writes, from its arguments alone.

As in `flops`, tensors may be fake, and operators are as they are dispatched (`aten.mm.default`, …).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from snugfit.planner.cost.flops import named_arguments, operator

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


def read_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> tuple[int, int]:
    """Return bytes that an operator reads and writes of tensors.

    Views, and operators that answer about a tensor, move none. What is updated in place is both; a tensor given twice is
    read once; an expanded one has the bytes it really has; a look-up reads what it selects and not the table.
    """
    bare = operator(str(func))
    if func.namespace == "prim" or bare in _NOTHING:
        return 0, 0
    changed = written_to(func, args, kwargs)
    given = distinct((args, kwargs))
    made = [t for t in distinct(out) if not _aliases(t, given)]
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


def written_to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that the operator's schema says are written to."""
    named = named_arguments(func, args, kwargs)
    writes = (a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return list(distinct([named.get(name) for name in writes]))


def distinct(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in it, each once."""
    return list({id(t): t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)}.values())


def _aliases(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    if tensor.layout != torch.strided:
        return any(tensor is other for other in others)
    storage = tensor.untyped_storage()._cdata
    return any(o.layout == torch.strided and o.untyped_storage()._cdata == storage for o in others)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return bytes that a tensor has elements for, an expanded dimension once.

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
