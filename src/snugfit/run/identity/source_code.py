"""The code of a user's functions and classes: names, digests of their sources, and the plain values that they read."""

from __future__ import annotations

import argparse
import dataclasses
import dis
import functools
import inspect
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from snugfit.run.identity.syntax import changed_by_functions, digest_of_syntax
from snugfit.system.digest import digest

NAME = "function"
"""The entry that names what was looked at; the others are what it is made of."""

_PLAIN = (bool, int, float, complex, type(None))
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hip|meta)(:\d+)?")
_PLACES = frozenset({"rank", "local_rank", "global_rank", "node_rank", "world_size"})
"""Global names that say which process it is, and differ between ranks by right."""
_READING = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def code_of(value: Any, package: str = "") -> dict[str, Any]:
    """Return the parts that a callable is made of: its qualified name, and by name the digest of each source.

    Functions and classes of the user's own that it refers to are looked at too, and so are default arguments, what a closure holds,
    the attributes of an object that is called, and the numbers, texts, tuples, lists and dicts of them that it reads by a global name. Not
    what the functions themselves change: that is a counter. A part without a source, such as one typed into a shell, is `NO_DIGEST`. Of
    installed libraries only names count. A module whose weights are all frozen, such as a teacher, counts with a sample of its weights.

    Args:
        package: one that counts as the user's own although it is installed, such as that of a technique which an entry point names.

    >>> code_of(len)
    {'function': 'builtins.len'}
    """
    parts: dict[str, Any] = {}
    _Walk(parts, package).visit(value)
    return {NAME: name_of(value), **parts}


def code_of_classes(model: nn.Module) -> dict[str, Any]:
    """Return the digests of the sources of a model's classes that are the user's own, by name."""
    parts: dict[str, Any] = {}
    walk = _Walk(parts)
    for module in model.modules():
        walk.visit(type(module))
    return parts


def name_of(value: Any) -> str:
    """Return the qualified name of a callable, or of the class of one that has none; a script counts by its file's name.

    >>> name_of(functools.partial(len)), name_of(name_of)
    ('builtins.len', 'snugfit.name_of')
    """
    if isinstance(value, functools.partial):
        return name_of(value.func)
    named = value if hasattr(value, "__qualname__") else type(value)
    module = getattr(named, "__module__", None)
    if module == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        module = "__main__" if path is None else Path(path).stem
    elif isinstance(module, str) and module.partition(".")[0] == "snugfit":
        module = "snugfit"  # where Snugfit keeps a function may change from one version to the next
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def is_own(value: Any) -> bool:
    """Return whether a function or a class is the user's own: of no installed library, nor of Python or Snugfit.

    >>> is_own(Path), is_own(nn.Linear)
    (False, False)
    """
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and _is_own_module(module)


def _is_own_module(module: str) -> bool:
    if module.partition(".")[0] in ("snugfit", *sys.stdlib_module_names) and module != "__main__":
        return False
    path = getattr(sys.modules.get(module), "__file__", None)
    return path is None or not _is_installed(path)


@functools.cache
def _is_installed(path: str) -> bool:
    place = Path(path)
    if {"site-packages", "dist-packages"} & set(place.parts):
        return True
    return place.is_relative_to(sysconfig.get_path("stdlib"))


class _Walk:
    """Visits a callable and what it refers to, each once, and notes the parts."""

    def __init__(self, parts: dict[str, Any], package: str = "") -> None:
        self._parts = parts
        self._package = package
        self._visited: set[int] = set()

    def _is_own(self, value: Any) -> bool:
        module = getattr(value, "__module__", None)
        return isinstance(module, str) and self._is_own_module(module)

    def _is_own_module(self, module: str) -> bool:
        return _is_own_module(module) or module.partition(".")[0] == self._package

    def visit(self, value: Any) -> None:
        if id(value) in self._visited:
            return
        self._visited.add(id(value))
        if isinstance(value, functools.partial):
            self.visit(value.func)
            for name, argument in (*enumerate(value.args), *sorted(value.keywords.items())):
                self._hold(f"{name_of(value)} argument {name}", argument)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__)
            if not isinstance(value.__self__, type):
                self._attributes(value.__self__)
        elif isinstance(value, types.FunctionType):
            if self._is_own(value):
                self._parts[name_of(value)] = digest_of_syntax(value.__code__)
                self._defaults(value)
                self._closure(value)
                self._globals(value.__code__, value.__globals__)
        elif isinstance(value, type):
            for each in value.__mro__:
                if self._is_own(each):
                    self._class(each)
        elif callable(value) and not isinstance(value, types.BuiltinFunctionType):
            self.visit(type(value))
            self._attributes(value)

    def _class(self, value: type) -> None:
        self._visited.add(id(value))
        self._parts[name_of(value)] = digest_of_syntax(value)
        for entry in vars(value).values():
            function = getattr(entry, "__func__", getattr(entry, "fget", entry))
            if isinstance(function, types.FunctionType):
                self._globals(function.__code__, function.__globals__)

    def _attributes(self, value: Any) -> None:
        """Add what an object that is called was made with; a module's tensors are in checkpoints."""
        moved = _set_when_called(type(value))
        for name, attribute in sorted(getattr(value, "__dict__", {}).items()):
            if not name.startswith("_") and not isinstance(value, nn.Module) and name not in moved:
                self._hold(f"{name_of(type(value))}.{name}", attribute)
        if isinstance(value, nn.Module):
            for name, line in module_lines(value).items():
                self._parts[f"{name_of(type(value))} {name}".rstrip()] = line
            if _is_constant(value):
                self._constants(value, name_of(type(value)))

    def _constants(self, module: nn.Module, name: str) -> None:
        """Add what a module computes with that has no weights, such as a loss of torch with weights of classes."""
        for path, each in module.named_modules():
            held = {**vars(each), **dict(each.named_buffers(recurse=False))}
            for attribute, value in sorted(held.items()):
                shown = not attribute.startswith("_") and attribute != "training"
                if shown and isinstance(value, (*_PLAIN, str, Tensor)):
                    self._hold(".".join(filter(None, (name, path, attribute))), value)

    def _defaults(self, function: types.FunctionType) -> None:
        """Add what arguments are where they are not given: a source says by which names it was made, not what those were."""
        named = inspect.signature(function, follow_wrapped=False).parameters
        for name, parameter in named.items():
            if parameter.default is not inspect.Parameter.empty:
                self._hold(f"{name_of(function)} argument {name}", parameter.default)

    def _closure(self, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        changed = changed_by_functions(function.__code__) or frozenset()
        for name, cell in cells:
            try:
                content = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            if content is not function and not (name in changed and _is_plain(content)):
                self._hold(f"{name_of(function)} {name}", content)

    def _hold(self, name: str, value: Any) -> None:
        """Note a value that a function holds: plain ones as they are, code by its source, tensors by their content."""
        if isinstance(value, nn.Module):
            self.visit(type(value))
            if _is_constant(value):
                self._constants(value, name)
            elif not any(weight.requires_grad for weight in value.parameters()):
                self._parts[f"{name} weights"] = digest(dict(value.named_parameters()))
        elif isinstance(value, (type, types.FunctionType, types.MethodType, functools.partial)):
            self.visit(value)
        elif isinstance(value, (*_PLAIN, str)):
            self._parts[name] = value if not isinstance(value, complex) else str(value)
        elif isinstance(value, (Tensor, list, tuple, dict, set, frozenset)):
            self._parts[name] = digest(value)

    def _globals(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Follow the names that code refers to, into the user's own modules and into what holds settings as attributes."""
        changed = changed_by_functions(code)
        for root, *attributes in _global_reads(code):
            if root not in names:
                continue
            path, value, module = root, names[root], str(names.get("__name__", ""))
            self._follow(path, value, module, changed)
            for attribute in attributes:
                inside = vars(value) if isinstance(value, types.ModuleType) or _holds_settings(value) else {}
                if attribute not in inside:
                    break
                if isinstance(value, types.ModuleType):
                    path, module = attribute, value.__name__
                elif isinstance(value, type) and not _is_plain(inside[attribute]):
                    break  # a method, which the source of its class has
                else:
                    path = f"{path}.{attribute}"
                value = inside[attribute]
                self._follow(path, value, module, changed)

    def _follow(self, name: str, value: Any, module: str, changed: frozenset[str] | None) -> None:
        """Note a global.

        Args:
            name: with the attributes that lead to it.
            module: that it is of.
            changed: names that functions change; None where that cannot be known, so that lists and dicts may be records.
        """
        if isinstance(value, (type, types.FunctionType)):
            if self._is_own(value):
                self.visit(value)
            return
        if not self._is_own_module(module):
            return
        if isinstance(value, (nn.Module, functools.partial, Tensor)):
            trains = isinstance(value, nn.Module) and any(each.requires_grad for each in value.parameters())
            if not trains:
                self._hold(f"{module}.{name}", value)
            return
        of_process = name.startswith("__") or name.lower() in _PLACES
        if of_process or not _is_plain(value) or name.partition(".")[0] in (changed or ()):
            return
        if isinstance(value, str):
            if not _DEVICE.fullmatch(value):  # where a run computes is no part of it, nor where its files lie
                self._parts[f"{module}.{name}"] = os.path.basename(value) if os.path.isabs(value) else value
        elif changed is not None or not isinstance(value, (list, dict, set)):
            self._hold(f"{module}.{name}", value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a value is a number, a text, None, or a tuple, list, set or dict of such."""
    if isinstance(value, (*_PLAIN, str)):
        return True
    if depth > 8 or not isinstance(value, (tuple, list, set, frozenset, dict)):
        return False
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(each, depth + 1) for each in inside)


def _holds_settings(value: Any) -> bool:
    """Return whether attributes of an object are settings: parsed arguments, a namespace, a dataclass, or a class of the user's own."""
    if isinstance(value, type):
        return is_own(value)
    return isinstance(value, (argparse.Namespace, types.SimpleNamespace)) or dataclasses.is_dataclass(value)


def _global_reads(code: types.CodeType) -> list[tuple[str, ...]]:
    """Return the global names that code reads, each with the attributes of it that follow at once; without repetitions.

    >>> _global_reads((lambda row: math.tau * row.real + len(row)).__code__)
    [('len',), ('math', 'tau')]
    """
    reads: set[tuple[str, ...]] = set()
    for each in _codes(code):
        read: tuple[str, ...] = ()
        for instruction in dis.get_instructions(each):
            if instruction.opname in _READING:
                reads.add(read)
                read = (str(instruction.argval),)
            elif read and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                read = (*read, str(instruction.argval))
            else:
                reads.add(read)
                read = ()
        reads.add(read)
    return sorted(reads - {()})


def _set_when_called(kind: type) -> frozenset[str]:
    """Return the attributes that an object of a class sets when it is called: counters, and no settings."""
    names: set[str] = set()
    for method in ("__call__", "forward"):
        code = getattr(inspect.getattr_static(kind, method, None), "__code__", None)
        for each in () if code is None else _codes(code):
            stored = (one for one in dis.get_instructions(each) if one.opname == "STORE_ATTR")
            names.update(str(one.argval) for one in stored)
    return frozenset(names)


def _is_constant(module: nn.Module) -> bool:
    """Return whether a module has no weights, so that nothing in it is trained."""
    return next(module.parameters(), None) is None


def module_lines(model: nn.Module) -> dict[str, str]:
    """Return what each module of a model shows of itself, those of repeated blocks together, by name.

    >>> module_lines(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Dropout(0.5)))["*"]
    'Linear(in_features=2, out_features=2, bias=True) ×2; Dropout(p=0.5, inplace=False)'
    """
    lines: dict[str, dict[str, int]] = {}
    for path, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule":  # torch.compile changes no update
            continue
        parts = [part for part in path.split(".") if part != "_orig_mod"]
        name = ".".join("*" if part.isdigit() else part for part in parts)
        shown = ", ".join(filter(None, [_plain_repr(module), *_plain_attributes(module)]))
        line = f"{type(module).__name__}({shown})"
        counts = lines.setdefault(name, {})
        counts[line] = counts.get(line, 0) + 1
    return {
        name: "; ".join(line if count == 1 else f"{line} ×{count}" for line, count in counts.items())
        for name, counts in lines.items()
    }


def _plain_repr(module: nn.Module) -> str:
    shown = module.extra_repr()
    return "" if " at 0x" in shown else shown


def _plain_attributes(module: nn.Module) -> Iterator[str]:
    """Yield numbers and texts that a module of the user's own was made with; a library's show themselves."""
    if not is_own(type(module)):
        return
    moved = {"training", *_set_when_called(type(module))}
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_") and name not in moved and isinstance(value, (bool, int, float)):
            yield f"{name}={value!r}"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
