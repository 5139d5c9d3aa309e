"""Results on stdout, errors on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError
from snugfit.system.processes import follows, own_rank
from snugfit.system.redaction import redact, redacted
from snugfit.units import format_bytes


def show(values: Mapping[str, Any], as_json: bool) -> None:
    """Print a result on stdout, as one JSON object or as lines."""
    values = redacted(values)
    if as_json:
        print(json.dumps(_strict(values)))
        return
    for key, value in values.items():
        text = _plain(key, value)
        if text:
            print(f"{key.removesuffix('_bytes'):<20}{text}")


def _plain(key: str, value: Any) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, Mapping):
        parts = [(name, _plain(name, entry), isinstance(entry, Mapping)) for name, entry in value.items()]
        return ", ".join(
            f"{name} ({text})" if nested else f"{name} {text}" for name, text, nested in parts if text
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(key, entry) or _names(entry) for entry in value)
    if key.endswith("_bytes") and not isinstance(value, str):  # as a setting it may be written 1MiB
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _names(entry: Any) -> str:
    """Return what there is to say of an entry without a value, such as a technique without settings."""
    return " ".join(entry) if isinstance(entry, Mapping) else ""


def _strict(value: Any) -> Any:
    """Return the same with non-finite numbers as strings, which strict JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {key: _strict(entry) for key, entry in value.items()}
    return [_strict(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def write(path: Path, text: str) -> None:
    """Write a file that the user named, and make the folder it is to lie in.

    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            "--output", f"{path} cannot be written: {error.strerror}", "Name a file that can be written."
        ) from error


def usage(error: Any) -> str:
    """Return the message of one of typer's errors, with where to find help."""
    context = getattr(error, "ctx", None)
    command = "snugfit" if context is None else context.command_path
    message = error.format_message().replace("?.", "?")
    hint = ""
    arguments = [] if context is None else [each.name for each in context.command.params]
    if (
        type(error).__name__ == "NoSuchOption" and "overrides" in arguments
    ):  # it is meant for the recipe, most often
        name = error.option_name.lstrip("-").replace("-", "_")
        hint = f" A setting of the recipe is written without dashes, such as train.epochs=3: snugfit recipe {name} finds it."
    return f"{message}{'' if message.endswith(('.', '?')) else '.'}{hint} For help: {command} --help"


def refuse(kind: str, message: str, code: int, as_json: bool) -> int:
    """Say what is wrong, on stderr and for programs also as an object on stdout; returns the exit code."""
    message = redact(message)
    rank = f" (rank {own_rank()})" if follows() else ""
    print(f"error{rank}: {message}", file=sys.stderr)
    if as_json and not rank:  # an object on stdout is the first process's
        print(json.dumps({"error": {"kind": kind, "message": message}}), flush=True)
    return code
