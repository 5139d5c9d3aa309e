"""Networks that are made for their rows: settings by a name or from a JSON file, and weights drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from snugfit.core.random import preserved_randomness, seed_device
from snugfit.errors import ModelError, nearest
from snugfit.system.json_text import parse_json

Settings = TypeVar("Settings")


class Rule(NamedTuple):
    """The values that a setting may have, in words, and whether one of them is."""

    form: str
    fits: Callable[[Any], bool]


def whole_number(least: int = 1, most: int | None = None, multiple_of: int = 1) -> Rule:
    """Return the rule of whole numbers.

    >>> whole_number(1, 6).form, whole_number().fits(True), whole_number(8, multiple_of=8).form
    ('a whole number from 1 to 6', False, 'a multiple of 8')
    """
    form = f"a whole number from {least}" if most is None else f"a whole number from {least} to {most}"

    def fits(value: Any) -> bool:
        return (
            type(value) is int
            and least <= value <= (value if most is None else most)
            and not value % multiple_of
        )

    return Rule(form if multiple_of == 1 else f"a multiple of {multiple_of}", fits)


def number(below: float | None = None) -> Rule:
    """Return the rule of numbers from 0.

    >>> number(below=1).form, number().fits(2.5), number(below=1).fits(1)
    ('a number from 0 to below 1', True, False)
    """
    form = "a number from 0" if below is None else f"a number from 0 to below {below:g}"

    def fits(value: Any) -> bool:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return plain and value >= 0 and (below is None or value < below)

    return Rule(form, fits)


def one_of(*names: str) -> Rule:
    """Return the rule of a choice between names."""
    return Rule(" or ".join(names), lambda value: value in names)


def read_settings(
    model: str,
    folder: Path | None,
    make: Callable[..., Settings],
    *,
    named: Mapping[str, Settings],
    rules: Mapping[str, Rule],
    purpose: str,
) -> Settings:
    """Return the settings of a network: those of its name, or those in a JSON file.

    Args:
        make: the settings from those that the file gives.
        named: the settings by name.
        rules: of each setting.
        purpose: what the networks are for.
    Raises:
        ModelError: the model is neither, or the file cannot be used.
    """
    if model in named:
        return named[model]
    path = Path(model).expanduser() if folder is None else folder / Path(model).expanduser()
    if path.suffix != ".json":
        raise ModelError(
            "model",
            f"'{model}' is no network for {purpose}",
            f"Write {' or '.join(named)}, or a JSON file with its settings ({', '.join(rules)}).",
        )
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError("model", f"{path} cannot be read: {error}", "Name a JSON file.") from error
    if not isinstance(values, Mapping):
        raise ModelError(
            "model", f"{path} holds no settings", f"Write an object with some of {', '.join(rules)}."
        )
    for name, value in values.items():
        if name not in rules:
            raise ModelError(
                "model", f"{path} has '{name}', which no network for {purpose} has", nearest(name, rules)
            )
        if not rules[name].fits(value):
            raise ModelError("model", f"{path} has {name}: {value!r}", f"Write {rules[name].form}.")
    return make(**values)


def drawn(make: Callable[[], nn.Module], seed: int, *, empty: bool) -> nn.Module:
    """Return a network in eval mode, with weights drawn from a seed, or none: on the meta device."""
    device = torch.device("cpu")
    with preserved_randomness(device), torch.device("meta" if empty else "cpu"):
        seed_device(seed, device)
        return make().eval()
