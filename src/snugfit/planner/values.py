"""The numbers behind fake tensors, where they are known: those of the batch's integers, and what is computed from them alone.

Models ask masks and lengths for their values. They get the true ones, so that the dry run goes the way of the real one. A value
that depends on weights is not known: the shape of what it decides is bounded from above, and a number is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_LIMIT = 1 << 24
"""Elements of a value that is still worth computing."""

_aten: Any = torch.ops.aten
_RANDOM = torch.Tag.nondeterministic_seeded
_NUMBERS = (_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default)


class KnownValues:
    """Follows the values of integer and boolean tensors through a run of fake ones.

    `bounded` holds the names of the operators whose result had to be bounded.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._values: Any = WeakTensorKeyDictionary()
        self.bounded: list[str] = []

    def learn(self, fake: Tensor, real: Tensor) -> None:
        """Say what an integer or boolean tensor holds."""
        if _is_integer(real) and real.numel() <= _LIMIT:
            self._values[fake] = real

    def call(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: list[Tensor]
    ) -> tuple[bool, Any]:
        """What an operator gives where only a value tells it: whether that is so, and the answer."""
        number = func in _NUMBERS
        if not number and torch.Tag.dynamic_output_shape not in func.tags:
            return False, None
        known = all(tensor in self._values for tensor in tensors)
        if number:
            return (True, self._compute(func, args, kwargs)) if known else (False, None)
        if known:
            return True, tree_map(
                lambda leaf: self._faked(leaf, tensors[0].device), self._compute(func, args, kwargs)
            )
        return self._bound(func, args)

    def follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: list[Tensor],
        made: list[Tensor],
    ) -> None:
        """After an operator: learn the value of what it gave, or forget what it overwrote."""
        if not made or not all(_is_integer(tensor) and tensor.numel() <= _LIMIT for tensor in made):
            return
        known = all(tensor in self._values for tensor in tensors)
        if known and func.namespace == "aten" and _RANDOM not in func.tags and "empty" not in func.name():
            values = tree_leaves(self._compute(func, args, kwargs))
            for tensor, value in zip(made, values, strict=True):
                self.learn(tensor, value)
        elif func._schema.is_mutable:
            self._forget(tensors)

    def _compute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The operator on the values, on the host."""

        def real(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return self._values[leaf]
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        with _disable_current_modes(), torch.no_grad():
            return func(*tree_map(real, args), **tree_map(real, dict(kwargs)))

    def _faked(self, leaf: Any, device: torch.device) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        with unset_fake_temporarily():
            host = self._mode.from_tensor(leaf)
        fake = host if device.type == "cpu" else host.to(device)
        self.learn(fake, leaf)
        return fake

    def _bound(self, func: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any]:
        """The largest result that there may be, where the values are not known."""
        first = args[0]
        if func is _aten.nonzero.default:
            found: Any = first.new_empty((first.numel(), first.ndim), dtype=torch.int64)
        elif func is _aten.masked_select.default:
            found = first.new_empty((torch.broadcast_shapes(first.shape, args[1].shape).numel(),))  # type: ignore[no-untyped-call]
        elif func is _aten.index.Tensor:
            found = _aten.index.Tensor(first, _as_places(args[1]))
        else:
            return False, None
        self.bounded.append(str(func))
        return True, found

    def _forget(self, tensors: list[Tensor]) -> None:
        """What was written to is not known any more, nor what shares its storage."""
        written = [self._values[tensor] for tensor in tensors[:1] if tensor in self._values]
        if written:
            place = written[0].untyped_storage().data_ptr()
            for tensor, value in list(self._values.items()):
                if value.untyped_storage().data_ptr() == place:
                    del self._values[tensor]


def _as_places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Places in the stead of masks, as if every element of a mask were chosen."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            found += [index.new_empty((index.numel(),), dtype=torch.int64) for _ in range(index.ndim)]
        else:
            found.append(index)
    return found


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and type(tensor).__name__ != "Parameter"
