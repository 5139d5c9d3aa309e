"""The cost of an operator, from its arguments alone: where it runs, in which numbers, its operations and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from snugfit.planner.cost.flops import flops_of, op_class, operator
from snugfit.planner.cost.traffic import distinct, read_written, tensor_bytes, written_to
from snugfit.planner.cost.workspace import workspace_bytes


class OpCosts(NamedTuple):
    """The costs of an `Op`, which says what each is."""

    device: str
    dtype: torch.dtype
    flops: int
    read: int
    written: int
    workspace: int
    page_bytes: int = 0


def op_costs(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> OpCosts:
    """Return what an operator costs that took `args` and `kwargs`, and gave `result`."""
    read, written = read_written(func, args, kwargs, result)
    device = op_device(args, kwargs, result)
    return OpCosts(
        device,
        compute_dtype(func, args, kwargs, result),
        flops_of(func, args, kwargs, result),
        read,
        written,
        workspace_bytes(func, args, kwargs, result),
        page_bytes(func, args, kwargs, device),
    )


def page_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> int:
    """Return the bytes of the host's memory that a kernel of another device writes to: memory that both have, which comes to it in pages.

    A copy between two devices is no kernel of either.
    """
    if ">" in device or device.startswith("cpu"):
        return 0
    return sum(
        tensor_bytes(each)
        for each in written_to(func, args, kwargs)
        if each.device.type == "cpu" and each.dim()
    )


def compute_dtype(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> torch.dtype:
    """Return the type of number an operator computes in: of its operands where it multiplies matrices, otherwise of its result.

    A conversion counts as the wider of both types, since it costs the same there and back.
    """
    given = distinct((args, kwargs))
    if operator(str(func)) == "_to_copy":
        types: list[torch.dtype] = [given[0].dtype, out.dtype]
        return max(types, key=lambda dtype: dtype.itemsize)
    if op_class(str(func)) != "other" and given:
        return given[0].dtype
    tensors = distinct(out) or given
    floating = (t.dtype for t in tensors if t.dtype.is_floating_point)
    computed_in: torch.dtype = next(floating, tensors[0].dtype if tensors else torch.float32)
    return computed_in


def op_device(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> str:
    """Return the device that an operator runs on; of a copy between two, both: "cpu>cuda:0".

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
