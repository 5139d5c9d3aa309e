"""A cache of the results of operators on fake tensors, so that torch is asked once for each kind of arguments.

Equal blocks ask for the same over and over, and so do runs of more of them, and plans that differ in little. What comes of fake
tensors follows from what they are (shape, strides, type, device), as they hold no numbers. Torch remembers such results too, but to
find one takes it longer than all else that is done for an operator.

How a fake tensor is made of a meta tensor is torch's own business: tests/unit/planner/trace/test_operator_cache.py tells when it moves.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from snugfit.planner.cost.operator_costs import OpCosts
from snugfit.planner.cost.records import Op, Storage
from snugfit.planner.trace.known_values import by_places

_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of arguments that are their value, and nothing else."""

_META = torch.device("meta")

_PURE = ("aten", "bitsandbytes")
"""Whose operators give, for what they are given, always the same."""

_BEYOND = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
"""Operators whose result depends on numbers, and those that change what a tensor is and not what it holds."""


class Call:
    """An operator and what it is given.

    Attributes:
        tensors: all of them, in order.
        kind: what tells it from other calls: all that a result can depend on where everything is told.
        is_plain: whether every tensor is fake, without a number that torch knows all the same, and everything else a plain value.
    """

    __slots__ = ("func", "is_plain", "kind", "tensors")

    def __init__(self, func: Any, *kind: Any) -> None:
        self.func, self.is_plain = func, True
        self.tensors: list[Tensor] = []
        self.kind: list[Any] = [*kind]

    def take(self, given: Iterable[Any]) -> None:
        """Add what is given, as deep as it is nested."""
        for each in given:
            of = type(each)
            if of is FakeTensor:
                self._take_tensor(each, each.fake_device)
                if each.constant is not None:
                    self.is_plain = False
            elif of in _PLAIN:
                self.kind += (of, each)  # 1, 1.0 and True are equal, and give other types
            elif isinstance(each, Tensor):
                self._take_tensor(each, each.device)
                self.is_plain = False
            elif isinstance(each, torch.Generator):  # what it draws is no part of what a fake tensor is
                self.kind += (of, each.device)
            elif isinstance(each, (list, tuple)):
                self.kind += (of, len(each))
                self.take(each)
            else:
                self.kind.append(each if isinstance(each, Hashable) else of)
                self.is_plain = False

    def _take_tensor(self, tensor: Tensor, device: torch.device) -> None:
        self.tensors.append(tensor)
        laid_out: tuple[Any, ...] = ()
        if tensor.layout is torch.strided:
            laid_out = tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()
        else:
            self.is_plain = False
        self.kind.append(
            (
                tensor.shape,
                *laid_out,
                tensor.dtype,
                device,
                tensor.requires_grad,
                tensor.is_conj(),
                tensor.is_neg(),
                tensor.is_inference(),
            )
        )


def call_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call as it is dispatched."""
    # by its id, as to hash an operator takes torch longer than all else here
    call = Call(func, id(func), torch.get_default_dtype(), torch.is_inference_mode_enabled())
    call.take(args)
    for name, value in kwargs.items():
        call.kind.append(name)
        call.take((value,))
    if len(call.tensors) > 1:
        places: dict[int, int] = {}  # of what is given twice, the first
        call.kind.append(tuple([places.setdefault(id(each), len(places)) for each in call.tensors]))
    return call


class _Given(NamedTuple):
    """An argument that is given back."""

    place: int

    def make(self, given: Sequence[Tensor], _mode: FakeTensorMode) -> Tensor:
        return given[self.place]


class New(NamedTuple):
    """A tensor in memory of its own, or in that of the argument `on`."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    on: int | None

    def make(self, given: Sequence[Tensor], mode: FakeTensorMode) -> Tensor:
        with torch._C._DisableTorchDispatch():  # a meta tensor, of which no mode is told
            plain = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)
            if self.on is not None:
                plain.set_(given[self.on].untyped_storage(), self.offset, self.shape, self.stride)
            return _fake(mode, plain, self.device)


def _fake(mode: FakeTensorMode, plain: Tensor, device: torch.device) -> Tensor:
    """Return a fake tensor of a meta tensor, as torch makes it, for a quarter of the time."""
    fake: Any = Tensor._make_subclass(
        FakeTensor, plain, False, dispatch_device=True, device_for_backend_keys=device
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
    else:
        torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(_attributes(device), fake_mode=mode)
    return fake  # type: ignore[no-any-return]


@functools.cache
def _attributes(device: torch.device) -> dict[str, Any]:
    """Return what torch says of each new fake tensor on a device, but for its mode."""
    with torch._C._DisableTorchDispatch():
        plain = torch.empty_strided((), (), device="meta")
    attributes = dict(vars(FakeTensor(FakeTensorMode(), plain, device)))
    del attributes["fake_mode"]
    return attributes


class Result(NamedTuple):
    """The result of a call, as nested tuples and lists of how each tensor is made, and what it costs."""

    recipe: Any
    costs: OpCosts

    def make(self, given: Sequence[Tensor], mode: FakeTensorMode) -> tuple[Any, list[Tensor]]:
        """Return the same anew, and the tensors in it."""
        if type(self.recipe) in (New, _Given):  # as mostly
            one = self.recipe.make(given, mode)
            return one, [one]
        made: list[Tensor] = []
        return _anew(self.recipe, given, mode, made), made


def _anew(how: Any, given: Sequence[Tensor], mode: FakeTensorMode, made: list[Tensor]) -> Any:
    """Return what is made so. No closure, which would be a part of itself, and keep its tensors until garbage is looked for."""
    if how is None or type(how) is int:
        return how
    if type(how) in (list, tuple):
        return type(how)([_anew(each, given, mode, made) for each in how])
    made.append(how.make(given, mode))
    return made[-1]


class Done(NamedTuple):
    """Work that let go of nothing that was there before: operators, events and storages, each numbered from where they began.

    `left` is the number of the only storage that is left; None where none is.
    """

    ops: list[Op]
    events: list[int]
    storages: list[Storage]
    left: int | None


class OperatorCache:
    """Results of calls, and what was done by many of them that left nothing, by its kind."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], Result] = {}
        self.done: dict[Hashable, Done] = {}

    def find(self, call: Call) -> Result | None:
        """Return the result of a call like this, if there is one."""
        return self._results.get(tuple(call.kind)) if call.is_plain else None

    def learn(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, costs: OpCosts
    ) -> None:
        """Keep what a call has given, if it follows from its kind, and can be made as torch has made it."""
        func = call.func
        if not call.is_plain or func.namespace not in _PURE:
            return
        if any(tag in func.tags for tag in _BEYOND) and not by_places(func, args):
            return
        if isinstance(result, int) or (result is None and not call.tensors):
            return  # it was called for something else than its result, or tells what is set elsewhere
        if call_of(func, args, kwargs).kind != call.kind:
            return  # it has made something else of an argument
        try:
            self._results[tuple(call.kind)] = Result(_how(result, call.tensors), costs)
        except _NotTold:
            return


def made_anew(result: Any) -> New | None:
    """Return how a tensor is made again that lies in memory of its own; None where that is not known of it."""
    try:
        how = _how(result, ())
    except _NotTold:
        return None
    return how if type(how) is New else None


class _NotTold(Exception):
    """A result that cannot be made again from what is known of it."""


def _how(result: Any, given: Sequence[Tensor]) -> Any:
    """Return how each tensor of a result is made."""
    if result is None or type(result) is int:  # such as the lengths that kernels of attention give back
        return result
    if type(result) in (list, tuple):
        new = [each for each in result if isinstance(each, Tensor)]
        parts = type(result)([_how(each, given) for each in result])
        if len({each.untyped_storage()._cdata for each in new}) < len(new) and any(
            isinstance(part, New) and part.on is None for part in parts
        ):
            raise _NotTold  # results that share memory of their own
        return parts
    if type(result) is not FakeTensor or result.constant is not None or result.layout is not torch.strided:
        raise _NotTold
    storage = result.untyped_storage()._cdata
    for place, each in enumerate(given):
        if each is result:
            return _Given(place)
    on = next((place for place, each in enumerate(given) if each.untyped_storage()._cdata == storage), None)
    how = New(result.shape, result.stride(), int(result.storage_offset()), result.dtype, result.device, on)
    if _seen(how.make(given, result.fake_mode)) != _seen(result):
        raise _NotTold
    return how


def _seen(tensor: Tensor) -> list[Any]:
    """Return all that a fake tensor is to those who ask."""
    call = Call(None)
    call.take((tensor,))
    return [*call.kind, torch._C._dispatch_key_set(tensor)]
