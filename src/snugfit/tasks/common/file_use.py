"""The use of models that are told of files, such as pictures and sounds: rows with a path to examples, and files of such rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.tasks.inference import Inference, Row

if TYPE_CHECKING:
    from snugfit.data.examples import Examples
    from snugfit.data.files.file_rows import FileRows, MapStyle
    from snugfit.data.files.path_rows import FileKind
    from snugfit.data.labels.label_sets import LabelSets


def use_of_files(
    kind: FileKind,
    column: str,
    decoded: Callable[[Examples], MapStyle],
    *,
    label: str | LabelSets | None = None,
    drawn: Callable[[Examples], MapStyle] | None = None,
    classes: tuple[str, ...] = (),
    **use: Any,
) -> Inference:
    """Return the use of a model whose rows name files.

    Args:
        column: of their paths.
        decoded: the examples of files.
        label: the place of labels, whose names are `classes`; None where none are read.
        drawn: the examples of files as they are drawn in training; None where nothing is.
        use: what else an `Inference` has.
    """
    from snugfit.data.examples import DrawnView, Examples
    from snugfit.data.files.labelled_files import collate, load_file_rows

    def encoded(rows: Sequence[Row]) -> MapStyle:
        return decoded(Examples.of_files(rows, column))

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_file_rows(
            kind,
            source,
            decoded,
            collate,
            column=column,
            label=label if labelled else None,
            labels=classes if labelled else (),
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    def view(examples: Any, number: int) -> MapStyle:
        assert drawn is not None
        return DrawnView(drawn(examples.rows), number)

    given = {
        "encode": encoded,
        "collate": collate,
        "read": read,
        "view": None if drawn is None else view,
        "classes": classes,
    }
    return Inference(**{**given, **use})
