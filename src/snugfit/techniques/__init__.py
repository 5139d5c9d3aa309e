"""Discovery of techniques: one module, one technique."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from snugfit.core.technique import Technique
from snugfit.errors import SettingError, nearest
from snugfit.system.user_objects import is_python_path
from snugfit.techniques.plugins import loaded

_FAMILIES = ("learning", "placement", "numerics")


@functools.cache
def discover() -> Mapping[str, type[Technique]]:
    """All techniques by name: the one `Technique` that each module of each family defines."""
    found: dict[str, type[Technique]] = {}
    for family in _FAMILIES:
        package = importlib.import_module(f"snugfit.techniques.{family}")
        for module_info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{module_info.name}")
            for value in vars(module).values():
                if (
                    isinstance(value, type)
                    and issubclass(value, Technique)
                    and value.__module__ == module.__name__
                ):
                    found[value.card.name] = value
    return dict(sorted(found.items()))


def find(name: str, setting: str = "techniques") -> type[Technique]:
    """A technique by name, or by the `package.module:Class` of one of the user's own that was imported before.

    Raises:
        SettingError: there is none; the nearest name is given.
    """
    known = discover()
    if is_python_path(name) and (own := loaded(name)) is not None:
        return own
    if name not in known:
        raise SettingError(f"{setting}: no technique '{name}'. {nearest(name, known)}")
    return known[name]
