"""Objects as bytes for a process of our own: functions and classes of a script by value, parametrized modules too."""

from __future__ import annotations

import io
import sys
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Return what `pickle.loads` makes `value` of again.

    Torch refuses to pickle modules with parametrizations, such as a norm of their weights, as files would keep their class, which it makes
    anew for each module; here the class is made anew there.

    >>> import pickle, torch
    >>> layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 1))
    >>> torch.equal(pickle.loads(dumps(layer)).weight, layer.weight)
    True
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if "torch" in sys.modules and _is_parametrized(value):
            plain = type(value).__mro__[1]
            return _parametrized, (plain, tuple(value.parametrizations)), dict(vars(value))
        return super().reducer_override(value)


def _is_parametrized(value: Any) -> bool:
    from torch import nn
    from torch.nn.utils import parametrize

    return isinstance(value, nn.Module) and parametrize.is_parametrized(value)


def _parametrized(plain: type[Any], names: tuple[str, ...]) -> Any:
    """Return a module of the class that torch makes of `plain` for these parametrized tensors, without what it holds."""
    from torch.nn.utils import parametrize

    made: Any = object.__new__(plain)
    parametrize._inject_new_class(made)
    for name in names:
        parametrize._inject_property(made, name)
    return made
