"""The search space over a recipe's settings: read from what people write, and checked on the recipe before the first trial."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError, UserError, nearest
from snugfit.system import code_consent
from snugfit.tools.tune.result import Choices, Parameter, Range, Space, shown

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

FORMS = "1e-5..1e-2 (numbers), 2..8 (whole numbers), log:1e-5..1e-2 (by factors), or 0.9,0.99 (one of these)"

_NUMBER = r"([-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)"
_RANGE = re.compile(rf"(log:)?\s*{_NUMBER}\s*(?<!\.)\.\.(?!\.)\s*{_NUMBER}")
_FIXED = {
    "evaluate": "it says what is looked for, and when: values under one are not comparable with those under another",
    "data.validation": "values on some rows are not comparable with those on others",
    "train.seed": "the luckiest seed is no better one. How much luck is in a score, snugfit cv says",
}
"""What is the same for all trials, and why."""


def read_space(search: Mapping[str, str | Sequence[Any]]) -> dict[str, Parameter]:
    """Return the values of each setting, from text such as `log:1e-5..1e-2` or from a list of them.

    >>> read_space({"optimizer.sgd.learning_rate": "log:1e-3..1", "train.global_batch": [16, 32]})
    {'optimizer.sgd.learning_rate': Range(low=0.001, high=1.0, log=True), 'train.global_batch': Choices(values=(16, 32))}

    Raises:
        SettingError: there is nothing to search, or it cannot be read.
    """
    if not search:
        raise SettingError(
            "search",
            "nothing to search",
            f"Name a setting and its values, such as optimizer.adamw.learning_rate: {FORMS}.",
        )
    space = {name: _parameter(name, given) for name, given in search.items()}
    for name in space:
        if around := next((other for other in space if name.startswith(f"{other}.")), None):
            raise SettingError(
                f"search {name}", f"'{around}' is searched too, of which it is a part", "Leave one out."
            )
    return space


def read_options(texts: Iterable[str]) -> dict[str, str]:
    """Return settings and their values from what a command line has as NAME=VALUES.

    >>> read_options(["train.epochs=1,2"])
    {'train.epochs': '1,2'}

    Raises:
        SettingError: it is not of that form, or one is given twice.
    """
    from snugfit.recipe import is_override

    search: dict[str, str] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not is_override(text):
            raise SettingError(
                "--search",
                f"got '{text}'",
                "Write it as NAME=VALUES, for example optimizer.adamw.learning_rate=log:1e-5..1e-2.",
            )
        if name in search:
            raise SettingError(f"--search {name}", "is given twice", "Leave one out.")
        search[name] = values
    return search


def read_file(path: str | os.PathLike[str], *, allow_code: bool = False) -> dict[str, Any]:
    """Return the settings of a YAML file under its key `search`.

    Args:
        allow_code: consent to run what its values name; a file under the current directory needs none.
    Raises:
        CodeRefused: its values name code, without consent.
        SettingError: it cannot be read, or has no such key.
    """
    from snugfit.recipe.strict_yaml import Places, read_yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            "--space", f"{path} cannot be read: {error}", "Name a file that can be read."
        ) from error
    tree = read_yaml(text, str(path), Places(str(path)))
    search = tree.get("search") if isinstance(tree, Mapping) else None
    if not isinstance(search, Mapping) or list(tree) != ["search"]:
        raise SettingError(
            "--space",
            f"{path} has other keys than search",
            "Write the settings under that one key, such as 'search: {optimizer.adamw.learning_rate: "
            "log:1e-5..1e-2}'.",
        )
    spaces = read_space(search) if search else {}
    choices = {name: each.values for name, each in spaces.items() if isinstance(each, Choices)}
    code = code_consent.named_code(choices)
    code_consent.require(code, path, folder=None, allowed=allow_code or code_consent.is_here(path))
    return dict(search)


def check_space(recipe: Recipe, space: Space) -> None:
    """Try both ends of every range, and every choice, on the recipe.

    Raises:
        SettingError: the recipe has no such setting or refuses a value, or the setting makes no difference to what is learned.
    """
    for name, parameter in space.items():
        for fixed, why in _FIXED.items():
            if name == fixed or name.startswith(f"{fixed}."):
                raise SettingError(
                    f"search {name}", f"is the same for all trials: {why}", "Search another setting."
                )
        hashes = {_tried(recipe, name, value).hash() for value in parameter.ends()}
        if len(hashes) < 2:
            raise SettingError(
                f"search {name}",
                f"what is learned is the same for all of {parameter.written()}, so there is nothing to find",
                "Search another setting.",
            )


def applied(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with settings by their dotted names, as overrides set them.

    Raises:
        UserError: it refuses one, or their combination.
    """
    from snugfit.recipe.load import build
    from snugfit.recipe.strict_yaml import Places, read_yaml

    tree = read_yaml(recipe.to_yaml(), recipe.name, Places())
    overrides = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    # of a recipe and values that were consented to
    changed = build(
        tree, overrides, Places(recipe.name), folder=recipe.folder, name=recipe.name, allow_code=True
    )
    code_consent.grant(changed.code, changed.folder)
    return changed


def _tried(recipe: Recipe, name: str, value: Any) -> Recipe:
    try:
        return applied(recipe, {name: value})
    except UserError as error:
        guess = nearest(name, _names(recipe.as_dict()))
        better = guess.startswith("Did you mean") and name not in guess and "Did you mean" not in str(error)
        raise SettingError(
            f"search {name}",
            f"{shown(value)} is refused: {error}",
            guess if better else "Search other values.",
        ) from error


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a recipe's settings; techniques in a list go by their names."""
    for key, value in values.items():
        named = value if isinstance(value, Mapping) else {}
        if key == "techniques":
            named = {name: settings for entry in value for name, settings in entry.items()}
        if named:
            yield from _names(named, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _parameter(name: str, given: str | Sequence[Any]) -> Parameter:
    from snugfit.recipe.strict_yaml import read_value

    place = f"search {name}"
    if isinstance(given, str):
        if match := _RANGE.fullmatch(given.strip()):
            low, high = (read_value(text, place) for text in match.group(2, 3))
            return _range(place, low, high, log=match[1] is not None)
        given = read_value(f"[{given}]", place)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise SettingError(place, f"{given!r} are no values to choose from", f"Write {FORMS}.")
    choices = Choices(tuple(given))
    if len(set(choices.texts())) != len(given) or len(given) < 2:
        what = "are not all different" if len(given) > 1 else "leaves nothing to choose"
        raise SettingError(place, f"{choices.written() or 'an empty list'} {what}", f"Write {FORMS}.")
    return choices


def _range(place: str, low: float | int, high: float | int, *, log: bool) -> Range:
    if not (isinstance(low, int) and isinstance(high, int)):
        low, high = float(low), float(high)
    if low >= high:
        raise SettingError(place, f"{low}..{high} has no room", "Write the lower end first.")
    if log and low <= 0:
        raise SettingError(
            place, f"log:{low}..{high} begins at {low}, and factors need a positive number", "Begin above 0."
        )
    return Range(low, high, log)
