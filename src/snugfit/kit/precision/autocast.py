"""The facts and switches of autocast that techniques need."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from snugfit.errors import SnugfitWarning


def expected_autocast(technique: str) -> Callable[[str], bool]:
    """Return a function that says whether autocast is on for a kind of device, and the first time that it is not, warns.

    >>> is_on = expected_autocast("some_technique")
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     is_on("cpu")
    True
    """
    warned = False

    def is_on(device: str) -> bool:
        nonlocal warned
        on = torch.is_autocast_enabled(device)
        if not on and not warned:
            warned = True
            warnings.warn(
                f"{technique}: without autocast it does nothing. Set plan.numerics: bf16, or remove it.",
                SnugfitWarning,
                stacklevel=1,  # what calls it is torch, whose line would say nothing
            )
        return on

    return is_on


@contextmanager
def casting_anew() -> Iterator[None]:
    """Temporarily let autocast neither take nor leave the copies of weights that it keeps.

    One that was made without gradients would serve those with gradients after it, and the weight would get none.

    >>> layer = torch.nn.Linear(2, 2)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     with torch.no_grad(), casting_anew():
    ...         outputs = layer(torch.ones(1, 2))
    ...     layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad is not None
    True
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def weights_cast_again() -> AbstractContextManager[None]:
    """Temporarily keep no copy that autocast makes of a trained weight for backward: backward casts the weight once more.

    For weights that are given up between forward and backward, as sharded ones are: their 16-bit copies would be the whole model in 16 bit.
    The numbers are the same. Where other hooks on saved tensors are entered within, those decide.
    """
    return torch.autograd.graph.saved_tensors_hooks(without_copy, _with_copy)


class Cast(NamedTuple):
    """A weight in place of its copy in another type, or of a view of that copy."""

    weight: Tensor
    dtype: torch.dtype
    device: torch.device
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int | torch.SymInt

    def again(self) -> Tensor:
        """Return the copy made anew, or the view of it, of the same numbers."""
        copy = self.weight.detach().to(self.device, self.dtype)
        return copy.as_strided(self.size, self.stride, self.offset)


def without_copy(tensor: Tensor) -> Tensor | Cast:
    """Return the trained weight that a saved tensor is a copy of, as autocast makes them; any other tensor as it is."""
    copy = tensor._base if tensor._base is not None else tensor
    node = copy.grad_fn
    if node is None or node.name() != "ToCopyBackward0":
        return tensor
    weight = getattr(node.next_functions[0][0], "variable", None)
    if weight is None or weight.shape != copy.shape or weight.stride() != copy.stride():
        return tensor
    return _cast(weight, tensor, copy)


class FrozenCasts(TorchFunctionMode):
    """A mode that knows the copies in another type that autocast makes of frozen weights, each while the product that it is made for runs.

    Such a copy bears no trace of its weight, as one of a trained weight does. A product saves of its arguments only those that a
    gradient needs: where a weight is frozen, what has the weight's shape and no gradient is the copy of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: tuple[nn.Parameter, ...] = ()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func not in _PRODUCTS:
            return func(*args, **given)
        constant = [
            each for each in (*args, *given.values()) if isinstance(each, Tensor) and not each.requires_grad
        ]
        shapes = [each.shape for each in constant]
        self._weights = tuple(
            each for each in constant if isinstance(each, nn.Parameter) and shapes.count(each.shape) == 1
        )
        try:
            return func(*args, **given)
        finally:
            self._weights = ()

    def without_copy(self, tensor: Tensor) -> Tensor | Cast:
        """Return the frozen weight that a saved tensor is a copy of; any other tensor as it is."""
        if not self._weights or tensor.requires_grad:
            return tensor
        copy = tensor if tensor._base is None else tensor._base
        for weight in self._weights:
            if copy.dtype != weight.dtype and (copy.shape, copy.stride()) == (weight.shape, weight.stride()):
                return _cast(weight, tensor, copy)
        return tensor


_PRODUCTS = frozenset(
    {
        nn.functional.linear,
        torch.matmul,
        torch.mm,
        torch.addmm,
        Tensor.matmul,
        Tensor.__matmul__,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
    }
)
"""What autocast computes in 16 bit, and is called with a weight."""


def _cast(weight: Tensor, tensor: Tensor, copy: Tensor) -> Cast:
    return Cast(
        weight, copy.dtype, copy.device, tuple(tensor.size()), tensor.stride(), tensor.storage_offset()
    )


def _with_copy(packed: Tensor | Cast) -> Tensor:
    return packed if isinstance(packed, Tensor) else packed.again()
