"""Copies of a model's buffers: batch norm's statistics belong to a window's first pass only."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class BufferCopies(NamedTuple):
    """A module's buffers with copies of their values, and what it keeps beside them: plain attributes and its extra state."""

    module: nn.Module
    buffers: dict[str, Tensor | None]
    copies: dict[str, Tensor]
    caches: set[str]
    attributes: dict[str, Any] | None  # torch's own modules change none
    extra: Any


class Buffers:
    """Copies buffers out and back in, also those that forward makes, replaces or lets grow. A model without buffers costs nothing.

    With the buffers of a module go numbers, texts and tensors among its attributes, such as how long a table has become, and its extra
    state. Attributes of other modules go with them where forward has made a buffer; else they stay, as no checkpoint holds them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun = False
        self._holders: list[nn.Module] | None = None

    def copy(self) -> list[BufferCopies]:
        """Copy the buffers; at first of all modules, as a first forward may make some, then of those that have any.

        Modules are those of the model now, as a first forward may make modules too.
        """
        if self._begun and self._holders is None:
            self._holders = [each for each in self._model.modules() if each._buffers or has_extra_state(each)]
        self._begun = True
        return [
            _copied(module) for module in (self._model.modules() if self._holders is None else self._holders)
        ]

    def restore(self, copies: list[BufferCopies]) -> None:
        """Put the copies back, in place where the buffer is the same tensor; what was made since is gone."""
        self._begun, self._holders = False, None  # what was made is made again
        _restore_all(copies)

    @contextmanager
    def restore_on_exit(self) -> Iterator[None]:
        """Temporarily let buffers change; on exit they are as before."""
        copies = self.copy()
        try:
            yield
        finally:
            _restore_all(copies)

    @contextmanager
    def stood_in_for(self) -> Iterator[None]:
        """Temporarily put copies in the place of the buffers, which nobody writes to: a backward may follow that has saved the copies."""
        copies = self.copy()
        for each in copies:
            each.module._buffers.update(each.copies)
        try:
            yield
        finally:
            _restore_all([each._replace(copies={}) for each in copies])


def _restore_all(copies: list[BufferCopies]) -> None:
    made = any(each.buffers.keys() != each.module._buffers.keys() for each in copies)
    with torch.no_grad():
        for each in copies:
            _restore(each, attributes=made or bool(each.buffers) or has_extra_state(each.module))


def persistent_shapes(model: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """Return the shape of each buffer that belongs to the model's state, by its name; None of one that is not there yet.

    >>> persistent_shapes(nn.Sequential(nn.BatchNorm1d(3)))["0.running_mean"]
    (3,)
    """
    return {
        f"{prefix}.{name}" if prefix else name: None if buffer is None else tuple(buffer.shape)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if name not in module._non_persistent_buffers_set
    }


@dataclass(frozen=True)
class AtFirst:
    """A model before its first forward: the shapes of its buffers, and by module the numbers and texts among its attributes."""

    shapes: Mapping[str, tuple[int, ...] | None]
    values: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, model: nn.Module) -> AtFirst:
        return cls(
            persistent_shapes(model), {name: plain_values(module) for name, module in model.named_modules()}
        )


def plain_values(module: nn.Module) -> dict[str, Any]:
    """Return the numbers and texts among a module's own attributes, and what is None.

    >>> plain_values(nn.Linear(2, 3))
    {'in_features': 2, 'out_features': 3}
    """
    return {
        name: value
        for name, value in _plain_attributes(module).items()
        if isinstance(value, (bool, int, float, str, type(None)))
    }


_PLAIN = (bool, int, float, str, tuple, Tensor, type(None))
_OWN = {"training", "forward", "_is_full_backward_hook"}
"""Attributes that torch, the step and techniques set themselves."""


def has_extra_state(module: nn.Module) -> bool:
    """Return whether the module keeps what is neither a parameter nor a buffer in its state.

    >>> has_extra_state(nn.Linear(1, 1))
    False
    """
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _copied(module: nn.Module) -> BufferCopies:
    buffers = module._buffers
    return BufferCopies(
        module,
        dict(buffers),
        {name: buffer.detach().clone() for name, buffer in buffers.items() if buffer is not None},
        set(module._non_persistent_buffers_set),
        None if type(module).__module__.startswith("torch.nn.") else _plain_attributes(module),
        copy.deepcopy(module.get_extra_state()) if has_extra_state(module) else None,
    )


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    return {n: v for n, v in vars(module).items() if isinstance(v, _PLAIN) and n not in _OWN}


def _restore(snapshot: BufferCopies, *, attributes: bool) -> None:
    module = snapshot.module
    for name, value in snapshot.copies.items():
        buffer = snapshot.buffers[name]
        assert buffer is not None
        if 0 in buffer.stride():  # expanded: its places share memory and cannot be written to
            snapshot.buffers[name] = value
        else:
            buffer.copy_(value)
    values = snapshot.attributes if attributes else None
    if values is not None:
        for name in _plain_attributes(module).keys() - values.keys():
            delattr(module, name)
    _set(module, snapshot.buffers, values or {})
    module._non_persistent_buffers_set = set(snapshot.caches)
    if has_extra_state(module):
        module.set_extra_state(copy.deepcopy(snapshot.extra))


Mark = tuple[Tensor, int]


def marks_of(module: nn.Module) -> dict[str, Mark]:
    """Return the buffers by name, each with how often it was changed in place: without a look at their numbers.

    Batch norm's statistics do not show in it.
    """
    return {name: (buffer, buffer._version) for name, buffer in module.named_buffers()}


class MovedBuffers:
    """The buffers of a module before a forward that is computed again later: only those that it moved are kept.

    Those named `running_…` always count as moved: torch does not note what batch norm changes.

    >>> import torch
    >>> norm, inputs = nn.BatchNorm1d(1), torch.ones(2, 1)
    >>> moved = MovedBuffers(norm)
    >>> with moved.noted():
    ...     _ = norm(inputs)
    >>> with moved.rewound():
    ...     norm.running_mean
    tensor([0.])
    >>> norm.running_mean
    tensor([0.1000])
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())
        self._before: list[tuple[nn.Module, dict[str, Tensor | None], dict[str, Any]]] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Temporarily note what the forward does with the buffers."""
        states = [
            (
                part,
                [(name, *_marked(buffer)) for name, buffer in part._buffers.items()],
                _plain_attributes(part),
            )
            for part in self._parts
            if part._buffers
        ]
        without = [part for part in self._parts if not part._buffers]
        yield
        for part, marks, attributes in states:
            before = {
                name: copied for name, buffer, version, copied in marks if _moved(part, name, buffer, version)
            }
            if before or len(part._buffers) > len(marks):
                buffers = {name: buffer for name, buffer, *_ in marks}
                self._before.append((part, buffers | before, attributes))
        self._before += [(part, {}, {}) for part in without if part._buffers]

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """Temporarily let other tensors stand in for the buffers, which stay as they are, while the same forward is computed again."""
        present = [(part, dict(part._buffers), _plain_attributes(part)) for part, *_ in self._before]
        for part, before, attributes in self._before:
            copies = {name: None if each is None else each.clone() for name, each in before.items()}
            _set(part, copies, attributes)
        try:
            yield
        finally:
            for part, buffers, attributes in present:
                _set(part, buffers, attributes)


def _marked(buffer: Tensor | None) -> tuple[Tensor | None, int, Tensor | None]:
    """Return the buffer, how often it was changed in place, and a copy of it."""
    return (None, 0, None) if buffer is None else (buffer, buffer._version, buffer.detach().clone())


def _moved(part: nn.Module, name: str, buffer: Tensor | None, version: int) -> bool:
    now = part._buffers.get(name)
    return now is not buffer or (now is not None and (now._version != version or name.startswith("running_")))


def _set(module: nn.Module, buffers: dict[str, Tensor | None], attributes: dict[str, Any]) -> None:
    module._buffers.clear()
    module._buffers.update(buffers)
    vars(module).update(attributes)
