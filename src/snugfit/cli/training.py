"""What `train` and `resume` share: options, the display, the inferred recipe, the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli.output import show
from snugfit.errors import SettingError
from snugfit.units import parse_seconds

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.session import RunOptions
    from snugfit.training.result import RunResult

EXIT_CODES = {"finished": 0, "failed": 1, "stopped": 75}


@dataclass
class Options:
    """Options of a run, checked at once; the time to stop counts from here."""

    stop_after: str | None
    fast_dev_run: bool = False
    overfit_batches: int | None = None
    plan: bool = True
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = None if self.stop_after is None else parse_seconds(self.stop_after, "--stop-after")
        if self.fast_dev_run and self.overfit_batches is not None:
            raise SettingError(
                "--fast-dev-run and --overfit-batches are two different runs. Give one of them."
            )

    def make(self) -> RunOptions:
        """The options as a run takes them; this loads torch."""
        from snugfit.session import RunOptions

        return RunOptions(
            self.seconds, self.fast_dev_run, self.overfit_batches, plan=self.plan, started=self.started
        )


def split(recipe: str | None, overrides: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """The recipe's path, if there is one, and the overrides, in whatever order they were given.

    >>> split("train.epochs=1", ["my.yaml"])
    ('my.yaml', ['train.epochs=1'])
    """
    from snugfit.recipe.overrides import is_override

    given = [*([] if recipe is None else [recipe]), *(overrides or ())]
    paths = [text for text in given if not is_override(text)]
    if len(paths) > 1:
        raise SettingError(
            f"'{paths[0]}' and '{paths[1]}': one recipe at a time. A setting is written key=value."
        )
    return (paths[0] if paths else None), [text for text in given if is_override(text)]


def train_inferred(
    columns: Mapping[str, str | None], overrides: Sequence[str], options: Options, as_json: bool, quiet: bool
) -> int:
    """Train on a data file without a recipe: infer it, print it, and save it once it has held."""
    data = columns["--data"]
    if data is None:
        raise SettingError(
            "train: name a recipe, or a data file with --data, --text, --label and --model. For an example type: "
            "snugfit train --help"
        )
    from snugfit.recipe import infer_recipe

    recipe = infer_recipe(data, columns["--text"], columns["--label"], columns["--model"], overrides)
    text = recipe.to_yaml(defaults=False)
    if not quiet:
        print(text, file=sys.stderr)
    return train_recipe(recipe, options, as_json, quiet, save=text)


def train_recipe(
    recipe: Recipe, options: Options, as_json: bool, quiet: bool, save: str | None = None
) -> int:
    """Train; `save` is the recipe to write beside the user as soon as data and model have held."""
    from snugfit import runs
    from snugfit.display import TerminalDisplay

    with TerminalDisplay(quiet=quiet) as display:

        def see(event: Mapping[str, Any]) -> None:
            display(event)
            if save is not None and event["event"] == "run":
                display.note(_save_recipe(recipe.name, save))

        result = runs.train_recipe(recipe, options.make(), see)
    return finish(result, as_json)


def _save_recipe(name: str, text: str) -> str:
    """Write an inferred recipe under a name that is free; says where."""
    for number in range(1, 1000):
        path = Path(f"{name}.yaml" if number == 1 else f"{name}-{number}.yaml")
        try:
            if path.exists() and path.read_text(encoding="utf-8") == text:
                return f"  recipe  {path}"
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            return f"  recipe  saved in {path}"
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            return f"  recipe  could not be saved in {path}: {error}"
    return f"  recipe  could not be saved: {name}.yaml to {name}-999.yaml are taken"


def finish(result: RunResult, as_json: bool) -> int:
    """Say how a run ended, for programs; returns the exit code."""
    if as_json:
        show(result.as_dict(), as_json)
    return EXIT_CODES[result.status]
