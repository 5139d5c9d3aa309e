"""Predictions of each fold's model for the rows that it has not seen: of every row, one a repeat and a seed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.examples import ORIGIN
from snugfit.errors import DataError
from snugfit.system.disk_files import whole_file
from snugfit.tasks import find

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.tools.cross_validation.result import FoldScore

OUT_OF_FOLD = "out_of_fold.csv"


def write_out_of_fold(
    recipe: Recipe, folder: Path, scores: Sequence[FoldScore], held_out: str
) -> Path | None:
    """Write the predictions for all held-out rows, in the order of the rows, and return the file; None where the task has none.

    Its columns are `source_line` (the row's line in the data), `fold`, the label, the prediction, and of classes the probability of each.

    Args:
        scores: of the folds.
        held_out: name of the file of held-out rows in a fold's folder.
    Raises:
        DataError: it cannot be written.
    """
    from snugfit.deliver.predict import cell
    from snugfit.deliver.predictor import load_predictor

    card = find(recipe.task)
    # answers take long, and are scored by other means
    if not card.predicts_files or card.model in ("decoder", "encoder-decoder"):
        return None
    one = (recipe.data.label,) if "label" in card.settings or card.own_code else ()
    labels = recipe.data.label_columns or one
    lines: list[dict[str, Any]] = []
    for score in scores:
        predictor = load_predictor(Path(score.run_dir) / "best", allow_code=True)
        use = predictor.inference
        read = use.read
        # no cell holds a prediction that is a file
        if read is None or use.saved is not None or not use.predicts_training_rows:
            return None
        rows = read(str(folder / score.fold / held_out), labelled=False, bad_rows="skip")
        detailed = predictor.in_detail(proba=True) if predictor.inference.classes else predictor
        predictions = detailed.predict_examples(rows.examples)
        for row, prediction in zip(rows.rows, predictions, strict=True):
            _, _, line = row[ORIGIN]
            own = {name: row.get(name) for name in labels}
            lines.append({"source_line": line, "fold": score.fold, **own, **prediction})
    lines.sort(key=lambda each: each["source_line"])
    path = folder / OUT_OF_FOLD
    try:
        with whole_file(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)))
            writer.writeheader()
            writer.writerows({name: cell(value) for name, value in line.items()} for line in lines)
    except OSError as error:
        raise DataError(path, f"cannot be written: {error.strerror}", "Free space.") from error
    return path
