"""The pictures that a model is most wrong about while it trains, for trackers that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.errors import SettingError
from snugfit.results.run_folder import PICTURES
from snugfit.run.sample_answers import require_whole_model
from snugfit.system.processes import this_world
from snugfit.tasks.task import Observer, Task

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_SETTING = "track.pictures"
_ACROSS = 4
"""Pictures beside each other on a sheet."""
_SIDE_INCHES = 2.0


@dataclass(frozen=True)
class _Wrong:
    """A picture with its class, the probability that the model gives that, and the class that it predicts."""

    place: int
    label: str
    given: float
    prediction: str


def worst_pictures(recipe: Recipe, task: Task, count: int) -> Observer:
    """Return what predicts the pictures to validate on and draws those whose own class was given the lowest probability.

    Raises:
        SettingError: there are none, or the model does not tell one class of each.
        MissingExtra: matplotlib is not installed.
    """
    from snugfit.deliver.predict import predictor_of
    from snugfit.report.chart_pictures import require_matplotlib

    afterwards = "Leave it out; afterwards: snugfit evaluate RUN DATA --page page.html"
    require_whole_model(_SETTING, recipe.all_techniques(), recipe.plan.strategy, afterwards)
    of_task = predictor_of(nn.Module(), task.meta, task.tokenizer, "cpu", "the model")
    use = of_task.use
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
    names = use.classes
    predictor = of_task.in_detail(proba=True)

    def worst(model: nn.Module, update: int, folder: Path) -> tuple[str, dict[str, Any]]:
        device = next(model.parameters()).device
        predictions = replace(predictor, model=model, device=device).predict_examples(held_out)
        name = f"worst-{update}.png"
        if this_world().leads:
            labels = [
                int(held_out.rows[place]["labels"]) for place in range(len(held_out))
            ]  # not decoded for it
            wrong = _worst(predictions, labels, names, predictor.inference.columns[0])[:count]
            try:
                _draw(wrong, held_out, folder / PICTURES / name)
            except OSError as error:  # a run is not lost to what is shown of it
                return "warning", {"message": f"{_SETTING}: {name} cannot be drawn: {error}"}
        return "pictures", {"pictures": {"worst": f"{PICTURES}/{name}"}}

    return worst


def _worst(
    predictions: Sequence[Mapping[str, Any]], labels: Sequence[int], names: Sequence[str], column: str
) -> list[_Wrong]:
    """Return all rows, those first whose own class was given the lowest probability."""
    rows = [
        _Wrong(place, names[label], float(each[f"probability of {names[label]}"]), str(each[column]))
        for place, (each, label) in enumerate(zip(predictions, labels, strict=True))
    ]
    return sorted(rows, key=lambda each: each.given)


def _draw(wrong: Sequence[_Wrong], pictures: Any, path: Path) -> None:
    """Draw a sheet of pictures as their files have them, each under its class and what was predicted."""
    from matplotlib.figure import Figure

    from snugfit.data.examples import FILE
    from snugfit.data.pictures.pixels import opened

    down = max(1, -(-len(wrong) // _ACROSS))
    sheet = Figure(figsize=(_ACROSS * _SIDE_INCHES, down * (_SIDE_INCHES + 0.4)), layout="constrained")
    for axes, each in zip(
        sheet.subplots(down, _ACROSS, squeeze=False).flat, [*wrong, *[None] * _ACROSS], strict=False
    ):
        axes.set_axis_off()
        if each is not None:
            axes.imshow(opened(pictures.rows[each.place][FILE]))
            axes.set_title(f"{each.label} {each.given:.0%}\npredicted {each.prediction}", fontsize=8)
    path.parent.mkdir(exist_ok=True)
    sheet.savefig(path, dpi=100)
