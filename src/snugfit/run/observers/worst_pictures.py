"""The pictures that a model is most wrong about while it trains, for trackers that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.deliver.observed_evaluation import Observed
from snugfit.deliver.shown_rows import ValidationShown, file_of_row
from snugfit.errors import SettingError
from snugfit.results.run_folder import PICTURES
from snugfit.run.observers.sample_answers import require_whole_model
from snugfit.step.evaluate import evaluate
from snugfit.system.processes import this_world
from snugfit.tasks.task import ModelObserver, Task

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.results.evaluation_details import WorstRow

_SETTING = "track.pictures"
_ACROSS = 4
"""Pictures beside each other on a sheet."""
_SIDE_INCHES, _DOTS_AN_INCH, _MOST_DOTS = 2.0, 100, 400


def worst_pictures(recipe: Recipe, task: Task, count: int) -> ModelObserver:
    """Return what scores the pictures to validate on and draws those whose own class was given the lowest probability.

    Raises:
        SettingError: there are none, or the model does not tell one class of each.
        MissingExtra: matplotlib is not installed.
    """
    from snugfit.deliver.predictor import predictor_of
    from snugfit.report.chart_pictures import require_matplotlib

    afterwards = "Leave it out; afterwards: snugfit evaluate RUN DATA --page page.html"
    require_whole_model(_SETTING, recipe.all_techniques(), recipe.plan.strategy, afterwards)
    predictor = predictor_of(nn.Module(), task.meta, task.tokenizer, "cpu", "the model")
    use = predictor.use
    held_out: Any = task.material.validation
    if "image_column" not in task.meta or use is None or not use.classes or use.any_number:
        raise SettingError(
            _SETTING,
            f"is of tasks that tell the class of a picture, and the task is {recipe.task}",
            "Leave it out.",
        )
    if held_out is None:
        raise SettingError(_SETTING, "needs data.validation, which is null", "Give a fraction or a file.")
    require_matplotlib()

    def worst(model: nn.Module, update: int, folder: Path) -> tuple[str, dict[str, Any]]:
        name = f"worst-{update}.png"
        if this_world().leads:  # who alone tells of it
            scored = replace(predictor, model=model, device=next(model.parameters()).device).scored()
            order = Order(len(held_out), predictor.rows, shuffle=False)
            windows = Loader(held_out, order, task.material.collate).windows(0, order.windows_per_pass)
            observed = Observed(use, task.meta, most=count)
            evaluate(scored, windows, {}, observer=observed)
            rows = observed.details(ValidationShown(held_out, of_pictures=False)).worst
            try:
                _draw(rows, held_out, folder / PICTURES / name)
            except Exception as error:  # noqa: BLE001 - a run is not lost to what is shown of it
                return "warning", {"message": f"{_SETTING}: {name} cannot be drawn: {error}"}
        return "pictures", {"pictures": {"worst": f"{PICTURES}/{name}"}}

    return worst


def _draw(rows: Sequence[WorstRow], pictures: Any, path: Path) -> None:
    """Draw a sheet of pictures, each under its class and what was predicted."""
    from matplotlib.figure import Figure

    from snugfit.data.pictures.pixels import opened
    from snugfit.report.chart_pictures import plain_texts

    down = max(1, -(-len(rows) // _ACROSS))
    with plain_texts():
        sheet = Figure(figsize=(_ACROSS * _SIDE_INCHES, down * (_SIDE_INCHES + 0.4)), layout="constrained")
        every = sheet.subplots(down, _ACROSS, squeeze=False).flat
        for axes in every:
            axes.set_axis_off()
        for axes, row in zip(every, rows, strict=False):
            picture = opened(str(file_of_row(pictures, row.row)))
            picture.thumbnail((_MOST_DOTS, _MOST_DOTS))
            axes.imshow(picture)
            axes.set_title(f"{row.label} {row.given:.0%}\npredicted {row.prediction}", fontsize=8)
        path.parent.mkdir(exist_ok=True)
        sheet.savefig(path, dpi=_DOTS_AN_INCH)
