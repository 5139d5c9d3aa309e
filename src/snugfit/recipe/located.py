"""Errors about a technique that show only on the model: said with the place of the setting too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from snugfit.errors import SettingError
from snugfit.recipe.entries import own_key, settings_of
from snugfit.recipe.overrides import apply_overrides
from snugfit.recipe.source import Places, read_yaml


@contextmanager
def located(path: str | os.PathLike[str], overrides: Iterable[str]) -> Iterator[None]:
    """Within, an error that begins with a technique's setting (`freeze.patterns: …`) names the recipe's line as well.

    Raises:
        SettingError: in place of one that has no line yet.
    """
    try:
        yield
    except SettingError as error:
        found = _with_place(error, Path(path), overrides)
        if found is None:
            raise
        raise found from error


def _with_place(error: SettingError, path: Path, overrides: Iterable[str]) -> SettingError | None:
    name, _, rest = str(error).partition(".")
    setting, colon, problem = rest.partition(": ")
    if not name.isidentifier() or not setting.isidentifier():
        return None  # it is not about a technique, and has its place

    from snugfit.techniques import discover

    technique = discover().get(name)
    if technique is None or not colon or setting not in settings_of(technique):
        return None
    places = Places(str(path))
    try:
        tree = read_yaml(path.read_text(encoding="utf-8-sig"), str(path), places)
        apply_overrides(tree if isinstance(tree, Mapping) else {}, overrides, places)
    except (OSError, ValueError, SettingError):
        return None  # the file has changed under us: the error itself is the one to see
    return places.error((own_key(technique) or "techniques", name, setting), problem)
