"""Replace attributes of libraries, and put them back."""

from __future__ import annotations

import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Patches:
    """The attributes that were replaced, so that it can be undone.

    Attributes:
        wrapped: owner, name and what stood there, of each.
        missing: what could not be replaced, and why: an attribute that a version of a library does not have harms no script.
    """

    def __init__(self) -> None:
        self.wrapped: list[tuple[Any, str, Any]] = []
        self.missing: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._waiting: dict[str, Callable[[ModuleType], None]] = {}
        self._finder: _AfterImport | None = None

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name` by `make(what it was)`, under its name, documentation and signature.

        It is pickled by the place where it stands. `functools.wraps` would do more than is wanted: torch.compile follows `__wrapped__`.
        """
        if not hasattr(owner, name):
            self.missing.append(
                f"{getattr(owner, '__name__', owner)}.{name}, which this version does not have"
            )
            return
        inherited = isinstance(owner, type) and name not in vars(owner)
        attribute = vars(owner)[name] if isinstance(owner, type) and not inherited else getattr(owner, name)
        original = attribute.__func__ if isinstance(attribute, classmethod | staticmethod) else attribute
        made = make(original)
        made.__name__, made.__doc__ = name, original.__doc__
        made.__qualname__ = f"{owner.__qualname__}.{name}" if isinstance(owner, type) else name
        made.__module__ = owner.__module__ if isinstance(owner, type) else owner.__name__
        made.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]  # compiled by torch.jit.script
        with suppress(ValueError, TypeError):  # of a function in C, which tells none
            made.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        setattr(
            owner, name, type(attribute)(made) if isinstance(attribute, classmethod | staticmethod) else made
        )
        self.wrapped.append((owner, name, attribute))
        self.on_undo(lambda: _forget(made))
        self.on_undo(
            (lambda: delattr(owner, name)) if inherited else (lambda: setattr(owner, name, attribute))
        )

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Call this, after what was registered later, when all is undone."""
        self._undo.append(undo)

    def after_import(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Call `then(module)` once it is imported: now, if it already is. Its failure is kept in `missing`."""

        def safely(module: ModuleType) -> None:
            try:
                then(module)
            except Exception as failure:  # noqa: BLE001  the script imports the module, whatever ours does with it
                self.missing.append(f"{name}: {type(failure).__name__}: {failure}")

        if name in sys.modules:
            safely(sys.modules[name])
            return
        self._waiting[name] = safely
        if self._finder is None:
            self._finder = _AfterImport(self._waiting)
            sys.meta_path.insert(0, self._finder)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            self._undo.pop()()
        self._waiting.clear()
        if self._finder is not None:
            sys.meta_path.remove(self._finder)
            self._finder = None


def _forget(made: Callable[..., Any]) -> None:
    """Take a function out of what torch.jit.script knows by its id, which another one may have after it, such as another script's loss."""
    builtins = sys.modules.get("torch.jit._builtins")
    known = getattr(builtins, "_builtin_table", None)
    if known:  # None until a script compiles something
        known.pop(id(made), None)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules that are waited for as the others do, and lets something follow their import."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                # who only asks whether the module is there, as transformers does of torch, gets one more of these
                spec.loader = _Loader(spec.loader, self.waiting)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """A loader that calls something when the module is complete."""

    def __init__(self, loader: Any, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.loader, self.waiting = loader, waiting

    def __getattr__(self, name: str) -> Any:
        """Return what the module's own loader has besides, such as where its source lies."""
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        then = self.waiting.pop(module.__name__, None)
        if then is not None:
            then(module)
