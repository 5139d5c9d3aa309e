"""Consent to run the code that a file names as `package.module:function`: reading a file runs nothing.

A name that a caller gives in Python or on a command line is the caller's own. A name in a recipe, a bundle or a stored model may be
anybody's, so whoever reads such a file asks here before any name in it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import CodeRefused
from snugfit.system.user_objects import is_python_path

Code = Mapping[str, str]
"""Settings, each with the `package.module:function` that it names."""

_granted: set[tuple[str, Path | None]] = set()
"""Names, each with the folder it is looked for in, that may run in this process: a run of a consented recipe names the same again."""


def named_code(values: Any, setting: str = "") -> dict[str, str]:
    """Return the settings in `values`, nested as JSON is, that could be imported; a name that settings stand under counts too.

    >>> named_code({"model": "nets:build", "techniques": [{"distillation": {"teacher": "nets:big"}}, "ema"]})
    {'model': 'nets:build', 'techniques.distillation.teacher': 'nets:big'}
    >>> named_code({"techniques": [{"nets:Scaled": {"factor": 2.0}}]})
    {'techniques': 'nets:Scaled'}
    """
    if isinstance(values, str):
        return {setting: values} if is_python_path(values) else {}
    names: dict[str, str] = {}
    if isinstance(values, Mapping):
        for key, value in values.items():
            if isinstance(key, str) and is_python_path(key):
                names = _joined(names, {setting: key})
            names = _joined(names, named_code(value, f"{setting}.{key}".lstrip(".")))
    elif isinstance(values, Sequence):
        for value in values:
            names = _joined(names, named_code(value, setting))
    return names


def _joined(names: Code, others: Code) -> dict[str, str]:
    """Return both, the others under another key where theirs is taken."""
    return {
        **names,
        **{f"{key}[{len(names)}]" if key in names else key: name for key, name in others.items()},
    }


def is_here(file: Path) -> bool:
    """Return whether a file lies under the current directory, with links followed."""
    return file.resolve().is_relative_to(Path.cwd().resolve())


def grant(code: Code, folder: Path | None) -> None:
    """Let these names run in this process: the caller gave them, or consented to them."""
    _granted.update((name, folder) for name in code.values())


def require(code: Code, origin: Path | str, *, folder: Path | None, allowed: bool) -> None:
    """Refuse a file that names code which its reader has not consented to.

    Args:
        code: the names in the file.
        origin: the file, for the message.
        folder: where the modules are looked for first.
        allowed: whether the reader consents.
    Raises:
        CodeRefused: a name may not run.
    """
    unconsented = {setting: name for setting, name in code.items() if (name, folder) not in _granted}
    if unconsented and not allowed:
        raise CodeRefused(
            origin,
            f"names code to run ({words(unconsented)}), and nothing of it was run",
            "Read that code first. To run it, add --allow-code, or allow_code=True in Python.",
        )
    grant(code, folder)


def words(code: Code) -> str:
    """Return names with their settings, for a message.

    >>> words({"model": "nets:build"})
    'model: nets:build'
    """
    return ", ".join(f"{setting}: {name}" for setting, name in code.items())
