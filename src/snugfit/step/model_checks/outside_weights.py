"""Weights that a loss or a forward function holds beside the model: no optimizer, checkpoint or rank would know of them."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from snugfit.errors import SettingError
from snugfit.kit.batch_norm import has_batch_norm


class Held(NamedTuple):
    """A module or a tensor, and the words for where it is."""

    where: str
    value: nn.Module | Tensor


@dataclass
class OutsideBuffers:
    """Buffers and frozen weights outside of the model, which may be constants: a window shows whether they are."""

    marks: list[tuple[str, str, nn.Module, Tensor, int]] = field(default_factory=list)
    frozen: list[tuple[str, str, Tensor, int]] = field(default_factory=list)

    def check(self) -> None:
        """Refuse buffers and frozen weights that have changed since this was made.

        Raises:
            SettingError: names the setting, and the buffer or the weight.
        """
        for setting, name, weight, version in self.frozen:
            if weight._version != version:
                raise SettingError(
                    setting,
                    f"changes the frozen weight '{name}', such as an average's, which is outside of the model, so that no "
                    "checkpoint would hold it",
                    _REMEDY,
                )
        for setting, name, module, buffer, version in self.marks:
            now = module.get_buffer(name)
            if now is not buffer or now._version != version:
                raise SettingError(
                    setting,
                    f"changes its buffer '{name}', which is outside of the model, so that no checkpoint would hold it",
                    _REMEDY,
                )


_PLAIN = (str, bytes, int, float, type(None), type, ModuleType)

_REMEDY = "Make it a submodule of the model and call it in the model's forward, or in forward=(model, batch)."


def check_outside(
    model: nn.Module,
    loss: str | Callable[..., Any],
    forward: Callable[..., Any] | None,
    fixed: Iterable[Tensor] = (),
) -> OutsideBuffers:
    """Refuse functions that hold trainable weights, or batch norm in training mode, outside of the model.

    What is looked at: the function, its closure, its globals and default arguments, attributes of an object, and helpers in the same
    file. What is frozen, such as a teacher, is the function's own affair as long as it stays what it is. Weights that are only called under
    `no_grad` are refused too, as no window can show that a later one will not train them: to freeze them says so.

    Args:
        fixed: parameters and buffers of modules that another step trains.
    Returns:
        The buffers and frozen weights that they hold, to be checked after a window.
    Raises:
        SettingError: names the setting and the weight.
    """
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers(), *fixed)}
    buffers = OutsideBuffers()
    for setting, function in (("loss", loss), ("forward", forward)):
        if function is None or isinstance(function, str):
            continue
        for where, value in held_by(function):
            named = [("", value)] if isinstance(value, Tensor) else list(value.named_parameters())
            trained = [(name, each) for name, each in named if each.requires_grad and id(each) not in own]
            if trained:
                name = f"{where}.{trained[0][0]}".strip(".")
                raise SettingError(
                    setting,
                    f"got {len(trained)} trainable weights outside of the model, such as '{name}' of shape "
                    f"{tuple(trained[0][1].shape)}, which no optimizer or checkpoint would hold",
                    f"{_REMEDY} If they are not to train, as a teacher's that is called under no_grad, freeze them: "
                    f"{where or 'weight'}.requires_grad_(False). If another step trains them: sf.Step(…, fixed_modules=[{where or 'module'}]).",
                )
            if isinstance(value, Tensor):
                continue
            buffers.frozen += [
                (setting, f"{where}.{name}".strip("."), each, each._version)
                for name, each in named
                if id(each) not in own
            ]
            foreign = [(name, each) for name, each in value.named_buffers() if id(each) not in own]
            if foreign and value.training and has_batch_norm(value):
                raise SettingError(
                    setting,
                    f"got batch norm in training mode outside of the model, in '{where}': no checkpoint would hold its "
                    "statistics",
                    f"{_REMEDY} Call eval() on it if its statistics are to stay.",
                )
            buffers.marks += [(setting, name, value, each, each._version) for name, each in foreign]
    return buffers


def held_by(function: Callable[..., Any]) -> Iterator[Held]:
    """Yield the modules, and the tensors that require a gradient, that a function can reach by names of its own.

    >>> head = nn.Linear(2, 2)
    >>> [each.where for each in held_by(lambda outputs, data: head(outputs))]
    ['head']
    """
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque([("", function)])
    home = _globals_of(function)
    while todo:
        where, value = todo.popleft()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.is_leaf and value.requires_grad:
                yield Held(where, value)
            continue
        if isinstance(value, nn.Module):
            yield Held(where, value)
        todo += [(f"{where}.{name}".strip("."), each) for name, each in _parts(value, home, where == "")]


def _parts(value: Any, home: object, outermost: bool) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, by name."""
    if isinstance(value, functools.partial):
        yield "", value.func
        yield from _numbered(value.args)
        yield from value.keywords.items()
    elif isinstance(value, MethodType):
        own = value.__self__
        if isinstance(own, nn.Module) or callable(own):
            yield "", own
        else:  # of an object of many parts, those that the method names
            yield from (
                (name, getattr(own, name)) for name in value.__func__.__code__.co_names if hasattr(own, name)
            )
        yield "", value.__func__
    elif isinstance(value, FunctionType):
        if not outermost and value.__globals__ is not home:  # a library's
            return
        variables = inspect.getclosurevars(value)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()
        yield from _numbered(value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).items()
    elif isinstance(value, Mapping):
        yield from ((str(name), each) for name, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from _numbered(value)
    elif isinstance(value, nn.Module) or callable(value):
        # a module's tensors and children are its own; what else it holds may be hidden in lists
        hidden = {"_parameters", "_buffers", "_modules"} if isinstance(value, nn.Module) else set()
        yield from ((name, each) for name, each in _attributes(value).items() if name not in hidden)
        yield "", _code_of(value)


def _numbered(values: Any) -> Iterator[tuple[str, Any]]:
    """Entries by their place."""
    return ((str(place), each) for place, each in enumerate(values))


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, in slots too."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {
        **{name: getattr(value, name) for name in slots if hasattr(value, name)},
        **getattr(value, "__dict__", {}),
    }


def _globals_of(function: Any) -> object:
    """Return the names of the file that a function, or the class of an object that is called, was written in."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = function if isinstance(function, FunctionType) else _code_of(function)
    return getattr(code, "__globals__", None)


def _code_of(called: Any) -> Any:
    """Return the function that runs when an object is called."""
    name = "forward" if isinstance(called, nn.Module) else "__call__"
    return inspect.getattr_static(type(called), name, None)
