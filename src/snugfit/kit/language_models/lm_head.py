"""The head of a model, which makes the logits, and logits that are not made yet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from snugfit.core.layers import last_linear
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_module
from snugfit.kit.patched_forward import replaced_forward


def output_head(model: nn.Module, name: str | None, setting: str) -> nn.Module:
    """Return the module that makes the logits: of that name, the output embeddings of a language model, or the last linear layer.

    Args:
        setting: the full name of the setting that holds `name`.
    Raises:
        SettingError: no module has that name or ends with it, or several; or there is no linear layer.
    """
    if name is not None:
        return find_module(model, name, setting)
    embeddings: nn.Module | None = getattr(model, "get_output_embeddings", lambda: None)()
    head = last_linear(model) if embeddings is None else embeddings
    if head is None:
        raise SettingError(
            setting, "the model has no linear layer", "Give the name of the module that makes the logits."
        )
    return head


@dataclass(frozen=True, eq=False)
class Postponed:
    """Logits that are not made yet: `head` of `hidden`, shape (rows, tokens, width).

    It stands in a model's outputs where the logits would. What lays them out or casts them is done to them when they are made; a model that
    computes with them otherwise is refused. `tracked` says whether gradients were recorded when the head was called, `chunk` for how many
    tokens they are to be made at a time; 0 where whoever takes them knows.
    """

    head: Callable[[Tensor], Tensor]
    module: nn.Module
    hidden: Tensor
    tracked: bool
    chunk: int = 0

    __iter__ = None  # `__getitem__` would make it a sequence

    def logits(self) -> Tensor:
        """Return all of them."""
        return self.head(self.hidden)

    def view(self, *sizes: Any) -> Postponed:
        """Return the same logits, where the sizes are theirs: it is for as many tokens that they are made."""
        return self._of_sizes("view", sizes)

    def reshape(self, *sizes: Any) -> Postponed:
        """Return the same logits, as `view` does."""
        return self._of_sizes("reshape", sizes)

    def size(self, dim: int | None = None) -> Any:
        """Return their shape, where the head says how many classes it has."""
        shape = self.shape
        return shape if dim is None else shape[dim]

    def dim(self) -> int:
        """Return how many dimensions they will have."""
        return self.hidden.ndim

    @property
    def shape(self) -> torch.Size:
        """Return what `size` does."""
        classes = getattr(self.module, "out_features", None)
        if not isinstance(classes, int):
            _refuse("asks for '.shape' of")
        return torch.Size([*self.hidden.shape[:-1], classes])

    @property
    def ndim(self) -> int:
        """Return what `dim` does."""
        return self.hidden.ndim

    @property
    def device(self) -> torch.device:
        """Return where they will be."""
        return self.hidden.device

    def _of_sizes(self, operation: str, sizes: tuple[Any, ...]) -> Postponed:
        wanted = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        own = (*self.hidden.shape[:-1], getattr(self.module, "out_features", -1))
        known = [-1 in (size, mine) or size == mine for size, mine in zip(wanted, own, strict=False)]
        if len(wanted) != len(own) or not all(known):
            _refuse(f"calls '{operation}' with {wanted} on")
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copy, pickle and the like
            raise AttributeError(name)
        if name not in _AS_THEY_ARE:
            _refuse(f"asks for '.{name}' of")
        return partial(self._then, name)

    def _then(self, operation: str, *args: Any, **kwargs: Any) -> Postponed:
        head = self.head
        return replace(self, head=lambda hidden: getattr(head(hidden), operation)(*args, **kwargs))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if args and isinstance(args[0], Postponed) and name in (*_AS_THEY_ARE, "reshape"):
            return getattr(args[0], name)(*args[1:], **(kwargs or {}))
        _refuse(f"calls '{name}' on")


_AS_THEY_ARE = frozenset({"contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type_as"})
"""Operations that lay out, copy, move or cast each number by itself: of some tokens they give what they give of all."""


class LogitsInUse(SettingError):
    """A model computes with logits that are postponed."""


def _refuse(what: str) -> NoReturn:
    raise LogitsInUse(
        "model",
        f"{what} what its head returns, whose logits are made later, some tokens at a time: it scales, caps or picks its "
        "logits behind the head, or its head is another module",
        "Let it return them as its head makes them.",
    )


def _refusing(operator: str) -> Callable[..., NoReturn]:
    return lambda _self, *others: _refuse(f"does '{operator}' with")


_UNARY = ("neg", "pos", "abs", "invert", "len", "float", "int", "bool", "getitem", "setitem", "contains")
_COMPARING = ("lt", "le", "eq", "ne", "gt", "ge")
for _name in (*_UNARY, *_COMPARING):
    setattr(Postponed, f"__{_name}__", _refusing(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    for _side in ("", "r", "i"):
        setattr(Postponed, f"__{_side}{_name}__", _refusing(_name))


_AT_ONCE: ContextVar[bool] = ContextVar("logits are made as they are asked for", default=False)


@contextmanager
def postponed(
    head: nn.Module, look: Callable[[Tensor], object] = lambda _: None, chunk: int = 0
) -> Iterator[None]:
    """Temporarily let `head` return `Postponed` logits where it is given (rows, tokens, width), and compute all else as ever.

    Args:
        look: sees what the head is given.
        chunk: of tokens, at which they are to be made.

    >>> with postponed(head := nn.Linear(8, 100)):
    ...     later = head(torch.zeros(2, 5, 8))
    >>> later.logits().shape
    torch.Size([2, 5, 100])
    """
    forward = head.forward

    def later(*args: Any, **kwargs: Any) -> Any:
        (hidden,) = args or (kwargs.popitem()[1],)
        if _AT_ONCE.get():
            return forward(hidden)
        look(hidden)
        if hidden.ndim != 3:
            return forward(hidden)
        return Postponed(forward, head, hidden, torch.is_grad_enabled(), chunk)

    with replaced_forward(head, later):
        yield


@contextmanager
def logits_at_once() -> Iterator[None]:
    """Temporarily let heads make their logits as they are called, inside of `postponed` too: whoever writes a text needs those of each token."""
    token = _AT_ONCE.set(True)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


def postponed_in(outputs: Any) -> Postponed | None:
    """Return the postponed logits of a model's outputs, if they are: themselves, `.logits`, entry `logits`, or the first of a tuple."""
    logits = outputs
    if isinstance(outputs, Mapping):
        logits = outputs.get("logits")
    elif hasattr(outputs, "logits") and not isinstance(outputs, Postponed):
        logits = outputs.logits
    elif isinstance(outputs, (tuple, list)) and outputs:
        logits = outputs[0]
    return logits if isinstance(logits, Postponed) else None


def with_logits(outputs: Any, logits: Tensor) -> Any:
    """Return the outputs with these logits in the place of postponed ones."""
    if isinstance(outputs, Postponed):
        return logits
    if isinstance(outputs, (tuple, list)) and not hasattr(outputs, "logits"):
        return [logits, *outputs[1:]] if isinstance(outputs, list) else (logits, *outputs[1:])
    if hasattr(outputs, "_replace"):
        return outputs._replace(logits=logits)
    made = copy.copy(outputs)
    if isinstance(made, Mapping):
        made["logits"] = logits  # type: ignore[index]  # outputs are dicts; of transformers, it sets the attribute too
    elif is_dataclass(made):
        object.__setattr__(made, "logits", logits)  # a frozen one too
    else:
        made.logits = logits
    return made


def whole(outputs: Any) -> Any:
    """Return the outputs with logits that were postponed made; others as they are."""
    logits = postponed_in(outputs)
    return outputs if logits is None else with_logits(outputs, logits.logits())
