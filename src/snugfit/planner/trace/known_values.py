"""The numbers behind fake tensors, where they are known.

They are those of the batch's integers, constants that the model makes, and what is computed from these alone.

Models ask masks and lengths for their values. They get the true ones, so that the dry run goes the way of the real one. A value
that depends on weights is not known: the shape of what it decides is bounded from above, and a number is refused. Only that all
weights and activations are finite is taken for granted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from snugfit.planner.trace.operator_properties import Operator

_LIMIT = 1 << 20
"""Elements of a value that is still worth computing."""

_aten: Any = torch.ops.aten
_LARGEST_DRAW = 1 - 2**-24


class KnownValues:
    """Follows the values of tensors through a run of fake ones.

    `bounded` holds the names of the operators whose result had to be bounded; `asked` counts those that a value decided.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._values: Any = WeakTensorKeyDictionary()
        self._ids: set[int] = (
            set()
        )  # of all tensors that had a value: a look at it spares most looks into `_values`
        self.bounded: list[str] = []
        self.asked = 0

    def learn(self, fake: Tensor, real: Tensor) -> None:
        """Say what a tensor holds; `real` is written to where the fake one is."""
        if _worth(real):
            self._keep(fake, real)

    def _keep(self, fake: Tensor, real: Tensor) -> None:
        self._ids.add(id(fake))
        self._values[fake] = real

    def call(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: list[Tensor]
    ) -> tuple[bool, Any]:
        """Return what an operator that `asks` gives where only a value tells it: whether that is so, and the answer."""
        number = Operator.of(func).is_number
        if func is _aten._pack_padded_sequence.default:
            return True, self._packed(*args)
        if not number and by_places(func, args):
            return False, None
        known = all(map(self.knows, tensors))
        self.asked += known
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
        """Learn, after an operator, the value of what it gave, or forget what it overwrote."""
        operator = Operator.of(func)
        overwritten = written(func, args, kwargs) if operator.written else []
        if (
            operator.computes
            and all(map(_worth, made))  # which is quickly said, and mostly not so
            and all(map(self.knows, tensors))
            and all(map(self._has_value, overwritten))  # no tensor of the user's is written to
        ):
            values = tree_leaves(self._compute(func, args, kwargs))
            for tensor, value in zip(made, values, strict=False):
                self.learn(tensor, value)
        elif operator.draws and made[0].numel() == 1:
            # what skips a layer at random compares one draw with a small share: none is skipped, which takes the most
            self.bounded.append(str(func))
            with unset_fake_temporarily():
                self._keep(made[0], torch.full(made[0].shape, _LARGEST_DRAW))
        elif overwritten:
            self._forget(overwritten)
        elif operator.asks_if_finite and (truth := _of_finite(func, args)) is not None and _worth(made[0]):
            with unset_fake_temporarily():
                self._keep(made[0], torch.tensor(truth).expand(made[0].shape))

    def knows(self, tensor: Tensor) -> bool:
        """Return whether it is known what a tensor holds."""
        return self._value(tensor) is not None

    def _value(self, tensor: Tensor) -> Tensor | None:
        """Return what a tensor holds, if that is known: of one that is not fake too, such as what a model is given as a list of numbers."""
        if type(tensor) is FakeTensor or self._has_value(tensor):
            value: Tensor | None = self._values.get(tensor) if id(tensor) in self._ids else None
            return value
        return tensor if type(tensor) is Tensor and tensor.device.type == "cpu" and _worth(tensor) else None

    def _has_value(self, tensor: Tensor) -> bool:
        return id(tensor) in self._ids and tensor in self._values

    def _compute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the operator on the values, on the host."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return func(*self._real(args), **{name: self._real(value) for name, value in kwargs.items()})

    def _real(self, given: Any) -> Any:
        """Return what an operator was given with values in the place of tensors, as deep as it is nested."""
        if isinstance(given, Tensor):
            return self._value(given)
        if isinstance(given, (list, tuple)):
            return type(given)([self._real(each) for each in given])
        return torch.device("cpu") if isinstance(given, torch.device) else given

    def _faked(self, leaf: Any, device: torch.device) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        with unset_fake_temporarily():
            host = self.mode.from_tensor(leaf)
        fake = host if device.type == "cpu" else host.to(device)
        self.learn(fake, leaf)
        return fake

    def _bound(self, func: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Return the largest result that there may be, where the values are not known."""
        first = args[0]
        if func is _aten.nonzero.default:
            bound: Any = first.new_empty((first.numel(), first.ndim), dtype=torch.int64)
        elif func is _aten.masked_select.default:
            bound = first.new_empty((torch.broadcast_shapes(first.shape, args[1].shape).numel(),))
        elif func is _aten.index.Tensor:
            bound = _aten.index.Tensor(first, _as_places(args[1]))
        elif func is _aten._unique2.default:
            places, counts = (
                first.new_empty(shape, dtype=torch.int64) for shape in (first.shape, first.numel())
            )
            bound = first.new_empty(first.numel()), places, counts
        else:
            return False, None
        self.bounded.append(str(func))
        return True, bound

    def _packed(self, padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """Return a batch of sequences without their padding, and how many of them go on at each step.

        The latter is a real tensor, which recurrent layers read in C++.
        """
        known = self._value(lengths)
        if known is None:
            self.bounded.append("aten._pack_padded_sequence.default")
        with unset_fake_temporarily():
            longest = padded.shape[1 if batch_first else 0]
            own = torch.full((len(lengths),), longest) if known is None else known
            sizes = (own > torch.arange(int(own.max())).unsqueeze(1)).sum(1)
            rows = int(own.sum())
        return padded.new_empty((rows, *padded.shape[2:])), sizes

    def _forget(self, tensors: list[Tensor]) -> None:
        """Forget the values of what was written to, and of what shares its storage."""
        places = {
            self._values[tensor].untyped_storage().data_ptr() for tensor in filter(self._has_value, tensors)
        }
        if places:
            for tensor, value in list(self._values.items()):
                if value.untyped_storage().data_ptr() in places:
                    del self._values[tensor]


def written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator writes to."""
    tensors: list[Tensor] = []
    for place, name in Operator.of(func).written:
        given = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(given, Tensor):  # as mostly
            tensors.append(given)
            continue
        tensors += [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
    return tensors


def _of_finite(func: Any, args: tuple[Any, ...]) -> bool | None:
    """Return what a question whether numbers are finite gives for each of them where all are; None for anything else."""
    if func in (_aten.isnan.default, _aten.isinf.default):
        return False
    if func in (_aten.eq.Tensor, _aten.ne.Tensor) and args[0] is args[1]:
        return func is _aten.eq.Tensor
    if func in (_aten.eq.Scalar, _aten.ne.Scalar) and isinstance(args[1], float) and math.isinf(args[1]):
        return func is _aten.ne.Scalar
    return None


def _as_places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Return places in the stead of masks, as if every element of a mask were chosen."""
    places: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            places += [index.new_empty((index.numel(),), dtype=torch.int64) for _ in range(index.ndim)]
        else:
            places.append(index)
    return places


def by_places(func: Any, args: Sequence[Any]) -> bool:
    """Return whether a tensor is indexed by places alone, whose number is that of what is taken, and not by masks."""
    masks = (torch.bool, torch.uint8)
    return func is _aten.index.Tensor and not any(
        each is not None and each.dtype in masks for each in args[1]
    )


def _worth(tensor: Tensor) -> bool:
    """Return whether a value is small enough to be followed, and not a weight's."""
    return tensor.numel() <= _LIMIT and not isinstance(tensor, Parameter)
