"""The code of a user's functions and classes: names, and digests of their sources without comments."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import sys
import sysconfig
import textwrap
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from snugfit.core.digest import NO_DIGEST, digest

NAME = "function"
"""The entry that names what was looked at; the others are what it is made of."""

_PLAIN = (bool, int, float, complex, type(None))


def code_of(value: Any) -> dict[str, Any]:
    """Return the parts that a callable is made of: its qualified name, and by name the digest of each source.

    Functions and classes of the user's own that it refers to are looked at too, and so are constants in capitals, what a closure
    holds, and the attributes of an object that is called. A part without a source, such as one typed into a shell, is `NO_DIGEST`. Of
    installed libraries only names count.

    >>> code_of(len)
    {'function': 'builtins.len'}
    """
    parts: dict[str, Any] = {}
    _Walk(parts).visit(value)
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
    """Whether a function or a class is the user's own: of no installed library, nor of Python or Snugfit.

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

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        self._visited: set[int] = set()

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
            if is_own(value):
                self._parts[name_of(value)] = _source_digest(value.__code__)
                self._closure(value)
                self._globals(value.__code__, value.__globals__)
        elif isinstance(value, type):
            for each in value.__mro__:
                if is_own(each):
                    self._class(each)
        elif callable(value) and not isinstance(value, types.BuiltinFunctionType):
            self.visit(type(value))
            self._attributes(value)

    def _class(self, value: type) -> None:
        self._visited.add(id(value))
        self._parts[name_of(value)] = _source_digest(value)
        for entry in vars(value).values():
            function = getattr(entry, "__func__", getattr(entry, "fget", entry))
            if isinstance(function, types.FunctionType):
                self._globals(function.__code__, function.__globals__)

    def _attributes(self, value: Any) -> None:
        """What an object that is called was made with; a module's tensors are in checkpoints."""
        for name, attribute in sorted(getattr(value, "__dict__", {}).items()):
            if not name.startswith("_") and not isinstance(value, nn.Module):
                self._hold(f"{name_of(type(value))}.{name}", attribute)
        if isinstance(value, nn.Module):
            for name, line in module_lines(value).items():
                self._parts[f"{name_of(type(value))} {name}".rstrip()] = line
            if _is_constant(value):
                self._constants(value, name_of(type(value)))

    def _constants(self, module: nn.Module, name: str) -> None:
        """What a module computes with that has no weights, such as a loss of torch with weights of classes."""
        for path, each in module.named_modules():
            held = {**vars(each), **dict(each.named_buffers(recurse=False))}
            for attribute, value in sorted(held.items()):
                shown = not attribute.startswith("_") and attribute != "training"
                if shown and isinstance(value, (*_PLAIN, str, Tensor)):
                    self._hold(".".join(filter(None, (name, path, attribute))), value)

    def _closure(self, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                content = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            if content is not function:
                self._hold(f"{name_of(function)} {name}", content)

    def _hold(self, name: str, value: Any) -> None:
        """Note a value that a function holds: plain ones as they are, code by its source, tensors by their content."""
        if isinstance(value, nn.Module):
            self.visit(type(value))
            if _is_constant(value):
                self._constants(value, name)
        elif isinstance(value, (type, types.FunctionType, types.MethodType, functools.partial)):
            self.visit(value)
        elif isinstance(value, (*_PLAIN, str)):
            self._parts[name] = value if not isinstance(value, complex) else str(value)
        elif isinstance(value, (Tensor, list, tuple, dict)):
            self._parts[name] = digest(value)

    def _globals(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Follow the names that code refers to, one attribute deep into the user's own modules."""
        for each in _codes(code):
            for name in each.co_names:
                value = names.get(name)
                if isinstance(value, types.ModuleType):
                    inside = vars(value)
                    for attribute in each.co_names:
                        if attribute in inside:
                            self._follow(attribute, inside[attribute], value.__name__)
                else:
                    self._follow(name, value, str(names.get("__name__", "")))

    def _follow(self, name: str, value: Any, module: str) -> None:
        if isinstance(value, (type, types.FunctionType)):
            if is_own(value):
                self.visit(value)
        elif isinstance(value, (nn.Module, functools.partial, Tensor)) and _is_own_module(module):
            if not isinstance(value, nn.Module) or _is_constant(value):
                self._hold(f"{module}.{name}", value)
        # other names may be of counters and of settings that change nothing learned, such as a device
        elif name.isupper() and isinstance(value, (bool, int, float)) and _is_own_module(module):
            self._parts[f"{module}.{name}"] = value


def _is_constant(module: nn.Module) -> bool:
    """Whether a module has no weights, so that nothing in it is trained."""
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
    """Numbers and texts that a module of the user's own was made with; a library's show themselves."""
    if not is_own(type(module)):
        return
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_") and name != "training" and isinstance(value, (bool, int, float)):
            yield f"{name}={value!r}"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _source_digest(value: type | types.CodeType) -> str:
    """The sha256 of a source without comments and blank lines; `NO_DIGEST` where there is none to be had."""
    try:
        if isinstance(value, types.CodeType) and value.co_name == "<lambda>":
            source = _lambda_source(value)
        else:
            source = _without_comments(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        return NO_DIGEST
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def _lambda_source(code: types.CodeType) -> str:
    """The lambdas that begin on a line: what else stands there, such as the call that takes one, is no part of it."""
    whole = "".join(inspect.findsource(code)[0])
    begun = [
        node
        for node in ast.walk(ast.parse(whole))
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
    ]
    if not begun:
        raise OSError("no lambda begins there")
    return "\n".join(ast.get_source_segment(whole, node) or "" for node in begun)


def _without_comments(source: str) -> str:
    lines = source.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    except (tokenize.TokenError, IndentationError):
        return source
    return "\n".join(line.rstrip() for line in lines if line.strip())
