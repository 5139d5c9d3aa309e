"""The import of transformers, without what it reads twice, or loads for few of its models."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from snugfit.system.torchvision_operators import declare_torchvision_operators

_LIST = "models"
"""The package of transformers with all its models."""

_OF_FEW = {
    "scipy.optimize": "linear_sum_assignment",
    "torchao.prototype.safetensors.safetensors_support": "flatten_tensor_state_dict",
}
"""Functions, by modules that take long to load, which transformers imports with the first model of any kind: it calls the first in losses
of models that find objects, the second where weights of torchao's formats are saved."""


@functools.cache
def import_transformers() -> None:
    """Import transformers and the list of its models, which it makes of the texts of some thousand files: once, and not twice."""
    declare_torchvision_operators()  # which it asks for where it finds torchvision
    from transformers.utils import import_utils

    define: Callable[..., Any] | None = getattr(import_utils, "define_import_structure", None)
    if define is None or f"transformers.{_LIST}" in sys.modules:
        return
    folder = Path(import_utils.__file__).parents[1] / _LIST

    def defined(path: str, prefix: str | None = None) -> Any:
        if prefix is not None or Path(path) != folder / "__init__.py":
            return define(path, prefix)
        return _without_prefix(define(folder, prefix=_LIST))  # which it has kept since it was imported itself

    with mock.patch.object(import_utils, "define_import_structure", defined):
        import_module(f"transformers.{_LIST}")


def _without_prefix(names_by_need: Mapping[Any, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Return the modules of the list alone, by what they need, under their names in it."""
    prefix = f"{_LIST}."
    return {
        need: {name.removeprefix(prefix): held for name, held in names.items() if name.startswith(prefix)}
        for need, names in names_by_need.items()
    }


def import_modeling() -> None:
    """Import the part of transformers that makes models; libraries of which it takes a function for few of them load where that is called."""
    import_transformers()
    with imported_later(_OF_FEW):
        import_module("transformers.modeling_utils")


def model_class(name: str) -> Any:
    """Return a class of transformers by which models are made; None where it has none of that name."""
    import_modeling()
    import transformers

    return getattr(transformers, name, None)


@contextmanager
def imported_later(functions: Mapping[str, str]) -> Iterator[None]:
    """Temporarily let each of these functions, by its module, be imported without loading that: it is loaded when the function is called."""
    modules = [_StandIn(name, function) for name, function in functions.items() if name not in sys.modules]
    for module in modules:
        sys.modules.setdefault(module.__name__, module)  # another thread may have begun to import it
    try:
        yield
    finally:
        for module in modules:
            module.leave()


class _StandIn(ModuleType):
    """The place of a module of which one function is imported; who asks for anything else gets it of the module itself."""

    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(name), function)(*args, **kwargs)

        setattr(self, function, call)

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # which `from module import function` asks whether there is
            return _PathLater(self)
        if name.startswith("__"):  # as for `__file__`, by which modules are told from each other
            raise AttributeError(name)
        return getattr(self.itself(), name)

    def itself(self) -> ModuleType:
        """Make place for the module, and return it."""
        self.leave()
        return import_module(self.__name__)

    def leave(self) -> None:
        """Make place for the module itself."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


class _PathLater:
    """The folders in which modules of a package are looked for, known once who looks for one has it loaded."""

    def __init__(self, module: _StandIn) -> None:
        self._module = module

    def __iter__(self) -> Iterator[str]:
        return iter(getattr(self._module.itself(), "__path__", ()))
