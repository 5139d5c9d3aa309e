"""The workspace of convolutions on a CPU, and the layout of tensors in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from snugfit.system.threads import threads_of_run

Arguments: TypeAlias = Sequence[Any]
Rule: TypeAlias = Callable[[Arguments, Mapping[str, Any], Any], int]

BLOCK = 16
"""Channels that oneDNN keeps together, float32 in a register of 512 bits; fewer channels are padded to as many."""


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's numbers."""
    return tensor.numel() * tensor.element_size()


def copied(tensor: Tensor | None) -> int:
    """Return bytes of the copy of a tensor that a kernel wants contiguous."""
    return 0 if tensor is None or tensor.is_contiguous() else bytes_of(tensor)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `size`."""
    return -(-size // multiple) * multiple


class _Convolution:
    """Bytes of a convolution's tensors as oneDNN lays them out, and what it takes beside them.

    Source: aten/src/ATen/native/mkldnn/Conv.cpp, and measurements for the choices that oneDNN makes.
    """

    def __init__(self, given: Tensor, weight: Tensor, result: Sequence[int], stride: Sequence[int]) -> None:
        size, kernel, threads = given.element_size(), math.prod(weight.shape[2:]), threads_of_run()
        outside, inside = weight.shape[:2]
        self.strided = any(each != 1 for each in stride)
        self.channels_last = channels_last(given) or channels_last(weight)
        # of a window of one, not strided, the layout is that of a product already
        self.is_product = kernel == 1 and not self.strided and given.shape[0] < 16 and threads == 1
        few = inside < BLOCK and kernel > 1
        rows = inside if few else round_up(inside, BLOCK)
        self.given = 0 if few else size * _laid_out(given.shape)
        self.result = size * _laid_out(result)
        self.weight = size * kernel * rows * round_up(outside, BLOCK)
        self.subsampled = 0
        if kernel == 1 and self.strided:
            self.subsampled = threads * size * round_up(inside, BLOCK) * math.prod(result[2:])
        # gradients of the weight that threads sum up for themselves, where it is small
        parts = min(threads, (self.given + self.result) // (10 * self.weight))
        self.partial = max(parts - 1, 0) * self.weight


def _laid_out(shape: Sequence[int]) -> int:
    return shape[0] * round_up(shape[1], BLOCK) * math.prod(shape[2:])


def channels_last(tensor: Tensor) -> bool:
    """Return whether the channels of an image lie next to each other."""
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def follows_rule(name: str, args: Arguments) -> bool:
    """Return whether a convolution, or its backward, takes what its shapes say: it is not dilated, transposed, over groups or of half precision.

    The layouts of others depend on the processor.
    """
    first = 1 if name == "convolution_backward" else 0
    whole = args[first].dtype in (torch.float32, torch.float64)
    dilation, transposed, _, groups = args[5 + first : 9 + first]
    return whole and not transposed and groups == 1 and all(each == 1 for each in dilation)


def convolution(args: Arguments, _kwargs: Mapping[str, Any], out: Tensor) -> int:
    """Return the bytes that a convolution takes beside its result."""
    given, weight = args[0], args[1]
    if given.dtype == torch.float64:
        return _columns(given, weight, out)
    sizes = _Convolution(given, weight, out.shape, args[3])
    if sizes.is_product:
        return 0
    if sizes.channels_last:
        return sizes.weight + _copied_as_last(weight)
    peak = max(sizes.given + sizes.subsampled + sizes.weight + sizes.result, sizes.result + bytes_of(out))
    return copied(given) + peak - bytes_of(out)


def convolution_backward(args: Arguments, _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the bytes that the backward pass of a convolution takes beside its results."""
    gradient, given, weight, wanted = args[0], args[1], args[2], args[10]
    if given.dtype == torch.float64:
        return _columns(given, weight, gradient)
    sizes = _Convolution(given, weight, gradient.shape, args[4])
    if sizes.is_product:
        return copied(gradient)
    if sizes.channels_last:
        return 2 * sizes.weight + _copied_as_last(weight) + _copied_as_last(gradient)
    peak = live = 0
    if wanted[0]:
        # a strided one goes through one layout more
        peak = max(sizes.result + sizes.weight + sizes.given, (2 + sizes.strided) * sizes.given)
        live = bytes_of(given)
    if wanted[1]:
        taken = sizes.given + sizes.subsampled + sizes.result + sizes.weight + sizes.partial
        peak = max(peak, live + taken, live + sizes.weight + bytes_of(weight))
        live += bytes_of(weight)
    return copied(gradient) + copied(given) + max(peak - live, 0)


def _copied_as_last(tensor: Tensor) -> int:
    return 0 if tensor.is_contiguous(memory_format=torch.channels_last) else bytes_of(tensor)


def _columns(given: Tensor, weight: Tensor, result: Tensor) -> int:
    """Return each window of the input in a row of its own, where oneDNN does not compute."""
    return (
        given.element_size()
        * given.shape[0]
        * given.shape[1]
        * math.prod(weight.shape[2:])
        * math.prod(result.shape[2:])
    )
