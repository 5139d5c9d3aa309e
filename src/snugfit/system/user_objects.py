"""Objects of the user's own code, named as `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snugfit.errors import SettingError, UserError, nearest

PYTHON_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
"""The form `package.module:function`, as a regular expression."""

_SPEC = re.compile(PYTHON_PATH)


def is_python_path(text: str) -> bool:
    """Return whether `text` has the form `package.module:function`.

    >>> is_python_path("my_models.small:build"), is_python_path("data/train.csv")
    (True, False)
    """
    return _SPEC.fullmatch(text) is not None


@contextmanager
def import_path(folder: Path | None) -> Iterator[None]:
    """Let modules in `folder` be imported inside the block, before those of the same name elsewhere."""
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def load_object(
    spec: str, *, setting: str, folder: Path | None = None, error: type[UserError] = SettingError
) -> Any:
    """Import the object that `spec` names, looking in `folder` first.

    Raises:
        error: not of the form `package.module:function`, no such module or object, or the import failed.
    """
    if not is_python_path(spec):
        raise error(setting, f"'{spec}' is not of the form package.module:function", "Write it so.")
    module_name, _, object_name = spec.partition(":")
    with import_path(folder):
        _refuse_shadowed(module_name, setting, folder, error)
        try:
            target: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
                raise error(
                    setting,
                    f"importing '{module_name}' failed: it needs '{missing.name}', which is not installed",
                    f"Install {missing.name}.",
                ) from missing
            places = "the Python path" if folder is None else f"{folder} or on the Python path"
            raise error(
                setting,
                f"there is no module '{missing.name}' in {places}, asked for by '{spec}'",
                _near_modules(missing.name, folder) or "Correct the name, or install what has it.",
            ) from missing
        except (Exception, SystemExit) as failure:
            raise error(
                setting, f"importing '{module_name}' failed: {describe(failure)}", "Correct the module."
            ) from failure
    for part in object_name.split("."):
        if not hasattr(target, part):
            names = [name for name in vars(target) if not name.startswith("_")]
            raise error(setting, f"'{module_name}' has no '{object_name}'", nearest(part, names))
        target = getattr(target, part)
    return target


def check_takes_one(function: Any, setting: str, what: str) -> None:
    """See that a function of the user's can be called with one argument; what says nothing of its arguments passes.

    Args:
        what: the argument, in words.
    Raises:
        SettingError: it cannot.
    """
    if not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # made in C, without a signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise SettingError(
            setting, f"{name}{signature} cannot be called with one argument, {what}", "Let it take that one."
        ) from error


def describe(failure: BaseException) -> str:
    """Return the kind and message of an exception of the user's code, with the innermost line it came from.

    >>> describe(ValueError("too few rows"))
    'ValueError: too few rows'
    """
    text = f"{type(failure).__name__}: {failure}".rstrip(": .")
    if isinstance(failure, SyntaxError):
        return text
    frames = traceback.extract_tb(failure.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    return f"{text} ({own[-1].filename}:{own[-1].lineno})" if own else text


def _refuse_shadowed(module_name: str, setting: str, folder: Path | None, error: type[UserError]) -> None:
    """Refuse a module whose name is loaded already from elsewhere: Python would hand that one out, silently."""
    name = module_name.partition(".")[0]
    if folder is None or name not in sys.modules:
        return
    here = [folder / f"{name}.py", folder / name / "__init__.py"]
    origin = getattr(sys.modules[name], "__file__", None)
    mine = next((path for path in here if path.is_file()), None)
    if mine is not None and (origin is None or Path(origin).resolve() != mine.resolve()):
        raise error(
            setting,
            f"the module name '{name}' is taken by {origin or 'a built-in module'}, so {mine} cannot be imported",
            "Rename the file.",
        )


def _near_modules(name: str, folder: Path | None) -> str:
    if folder is None or not folder.is_dir() or "." in name:
        return ""
    names = [path.stem for path in folder.glob("*.py") if path.stem.isidentifier()]
    return nearest(name, names) if names else ""
