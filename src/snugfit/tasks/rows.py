"""Rows to train on and to validate on that are encoded one by one: what most tasks of the user's own load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugfit.data.sources import RowSource
    from snugfit.recipe import Recipe


@dataclass(frozen=True)
class TrainingRows:
    """Examples of a recipe's rows, and what a `Task` has to say of them: their numbers, and digests of the files."""

    train: Any
    validation: Any | None
    data: Mapping[str, Any]
    fingerprints: Mapping[str, str]


def read_training_rows(
    recipe: Recipe, encode: Callable[[Mapping[str, Any]], Any], collate: Callable[[list[Any]], Any]
) -> TrainingRows:
    """Read `data.train`, and what `data.validation` says: a file, or a fraction that is held out by the recipe's seed.

    Args:
        encode: the example of a row, with its label; it raises a `snugfit.data.bad_rows.BadRow` for one that cannot be used.
    Raises:
        DataError: the rows cannot be used.
    """
    from snugfit.data.examples import Examples
    from snugfit.data.file_rows import FileRows, read_rows
    from snugfit.step.build import hold_out

    def read(source: RowSource, setting: str) -> FileRows:
        return read_rows(
            source, encode, collate, bad_rows=recipe.data.bad_rows, setting=setting, folder=recipe.folder
        )

    validation, held_out, counted = recipe.data.held_out, None, 0
    rows = read(recipe.data.rows, "data.train")
    train, files = rows.examples, [rows]
    assert isinstance(train, Examples)  # which `read_rows` makes
    if validation is not None and not isinstance(validation, (int, float)):
        files.append(read(validation, "data.validation"))
        held_out = files[1].examples
    elif validation is not None:
        sides = hold_out(rows.examples, validation, recipe.train.seed)
        train, held_out = (train.at(side.indices) for side in sides)
    if held_out is not None:
        counted = len(held_out)
    skipped: dict[str, int] = {}
    for file in files:
        for reason, count in file.report.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    fingerprints = {source: digest for file in files for source, digest in file.fingerprints.items()}
    data = {"train": len(train), "validation": counted, "skipped": skipped}
    return TrainingRows(train, held_out, data, fingerprints)
