"""Rows to train on and to validate on that are encoded one by one: what most tasks of the user's own load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugfit.data.sources import RowSource
    from snugfit.tasks.task_recipe import TaskRecipe


@dataclass(frozen=True)
class TrainingRows:
    """Examples of a recipe's rows, and what a `Task` has to say of them: their numbers, digests of the files, and `messages`."""

    train: Any
    validation: Any | None
    data: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    messages: tuple[str, ...] = ()


def read_training_rows(
    recipe: TaskRecipe, encode: Callable[[Mapping[str, Any]], Any], collate: Callable[[list[Any]], Any]
) -> TrainingRows:
    """Read `data.train`, and what `data.validation` says: a file, or a share that is held out by the recipe's seed.

    Args:
        encode: the example of a row, with its label; it raises a `snugfit.data.bad_rows.BadRow` for one that cannot be used.
    Raises:
        DataError: the rows cannot be used.
    """
    from snugfit.core.batch import inputs_of
    from snugfit.data.examples import Examples
    from snugfit.data.files.file_rows import FileRows, read_rows
    from snugfit.data.splits.hold_out import SHARES
    from snugfit.data.splits.leaks import Inputs
    from snugfit.data.splits.sides import make_sides
    from snugfit.system.digest import digest

    def read(source: RowSource, setting: str) -> FileRows:
        return read_rows(
            source, encode, collate, bad_rows=recipe.data.bad_rows, setting=setting, folder=recipe.folder
        )

    validation = recipe.data.held_out
    files = [read(recipe.data.rows, "data.train")]
    if validation is not None and not isinstance(validation, SHARES):
        files.append(read(validation, "data.validation"))
    parts = [
        file.examples for file in files if isinstance(file.examples, Examples)
    ]  # which `read_rows` makes
    sides = make_sides(
        parts,
        validation,
        recipe.train.seed,
        inputs=Inputs("rows", lambda part: [digest(inputs_of(example)) for example in parts[part]]),
        leaks=recipe.data.leak_settings,
    )
    train, held_out = sides.train, sides.validation if len(sides.validation) else None
    skipped: dict[str, int] = {}
    for file in files:
        for reason, count in file.report.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    fingerprints = {source: digest for file in files for source, digest in file.fingerprints.items()}
    data = {"train": len(train), "validation": len(sides.validation), "skipped": skipped}
    return TrainingRows(train, held_out, data, fingerprints, sides.warnings)
