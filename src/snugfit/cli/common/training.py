"""The options, the display, the inferred recipe and the exit code that `train` and `resume` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli.common.output import show
from snugfit.cli.common.planner_process import PlannerProcess
from snugfit.cli.common.recipes import say_code
from snugfit.display.activity import Activity
from snugfit.errors import Interrupted, RunInterrupted, SettingError, UserError
from snugfit.system.garbage import loading
from snugfit.system.processes import follows, is_watched, launched, must_start, write_ending
from snugfit.units import parse_seconds

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.training.result import RunResult

EXIT_CODES = {"finished": 0, "failed": 1, "stopped": 75}


def run_options(
    stop_after: str | None,
    quiet: bool,
    *,
    time: str | None = None,
    accept_changes: str | None = None,
    **asked: Any,
) -> RunOptions:
    """Return the options of a run, checked at once; the time to stop counts from here.

    Args:
        quiet: the search for a plan shows nothing.
        asked: as `RunOptions` has it.
    """
    from snugfit.display.search_line import search_line
    from snugfit.run.call_options import RunOptions

    return RunOptions(
        stop_after_seconds=None if stop_after is None else parse_seconds(stop_after, "--stop-after"),
        time_seconds=None if time is None else parse_seconds(time, "--time"),
        accept_changes=tuple(filter(None, map(str.strip, (accept_changes or "").split(",")))),
        search_line=partial(search_line, quiet),
        **asked,
    )


def placement_settings(
    devices: int | None, strategy: str | None, micro_batch: str | None = None
) -> list[str]:
    """Return the settings that stand for the options about how a run is placed.

    >>> placement_settings(2, None)
    ['plan.devices=2']
    """
    given = {"devices": devices, "strategy": strategy, "micro_batch": micro_batch}
    return [f"plan.{name}={value}" for name, value in given.items() if value is not None]


def split(recipe: str | None, overrides: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """Return the recipe's path, if there is one, and the overrides, in whatever order they were given.

    >>> split("train.epochs=1", ["my.yaml"])
    ('my.yaml', ['train.epochs=1'])
    """
    from snugfit.recipe.overrides import is_override

    given = [*([] if recipe is None else [recipe]), *(overrides or ())]
    paths = [text for text in given if not is_override(text)]
    if len(paths) > 1:
        if misspelt := [text for text in paths if "=" in text and not os.path.exists(text)]:
            raise SettingError(
                "train",
                f"got '{misspelt[0]}', which is neither a file nor a setting",
                "A setting is written as its full name and its value, without spaces: train.global_batch=32.",
            )
        raise SettingError(
            "train",
            f"got '{paths[0]}' and '{paths[1]}', and trains one recipe at a time",
            "Leave one out; a setting is written key=value, without spaces.",
        )
    return (paths[0] if paths else None), [text for text in given if is_override(text)]


def no_recipe(command: str, rest: str = "") -> SettingError:
    """Return the error of a command without a recipe; in its example, `rest` goes behind the recipe."""
    return SettingError(
        command, "got no recipe", f"Name a recipe, for example: snugfit {command} agnews.yaml{rest}"
    )


def train_on_rows(
    data: str,
    overrides: Sequence[str],
    options: RunOptions,
    max_restarts: int,
    as_json: bool,
    quiet: bool,
    *,
    named: Mapping[str, str | None],
) -> int:
    """Train on rows without a recipe: one is written here, as `snugfit init` does, and said.

    Args:
        named: values of the options that name the task, the model and columns, by their settings.
    """
    from snugfit.cli.common import recipes
    from snugfit.cli.init import beginning_lines
    from snugfit.tools.init.door import begin_here

    def tell(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr)

    by_option = {
        setting: (f"--{setting.removeprefix('data.')}", value)
        for setting, value in named.items()
        if value is not None
    }
    made = begin_here(data, overrides, tell, by_option)
    for line in beginning_lines(made, train=True):
        tell(line)
    recipe = None
    try:
        with PlannerProcess(options, made.recipe) as planner:
            recipe = recipes.load(
                made.recipe, made.of_run, allow_code=True, quiet=quiet, before_libraries=planner.begin
            )
            return train_recipe(recipe, options, planner, max_restarts, as_json, quiet)
    except UserError:
        if recipe is None or not (Path(recipe.output) / recipe.name).exists():
            made.remove()
            if made.files:
                tell(f"{'removed':<9}{', '.join(map(str, made.files))}: no run has begun by it")
        raise


def train_recipe(
    recipe: Recipe,
    options: RunOptions,
    planner: PlannerProcess,
    max_restarts: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Train, and return the exit code."""
    from snugfit.display.terminal import TerminalDisplay

    options = replace(options, worker=planner.of(recipe))
    if must_start(recipe.plan.devices):
        from snugfit.run.launch import train_on_devices

        return train_on_devices(recipe, options, max_restarts, _shown(as_json, quiet))
    quiet = quiet or follows()
    with loading(), _interruptible(), TerminalDisplay(quiet=quiet) as display:
        from snugfit.run import from_recipe  # takes seconds, and the display says so

        result = from_recipe.train_recipe(recipe, options, display)
    return finish(result, as_json)


def resume_run(
    run: Path | None,
    options: RunOptions,
    max_restarts: int,
    changes: Sequence[str],
    as_json: bool,
    quiet: bool,
    *,
    allow_code: bool = False,
) -> int:
    """Go on with a run, or with the newest that can of a folder of runs; returns the exit code."""
    with Activity(text="looking at the run to go on with …", at_once=False, quiet=quiet or launched()):
        from snugfit.run.newest import run_to_resume

        named, run = run, run_to_resume(run)  # before what takes seconds to import
        from snugfit.display.terminal import TerminalDisplay
        from snugfit.run import from_recipe

    if run != named and not quiet:
        print(f"resume    {os.path.relpath(run)}", file=sys.stderr)
    recipe = from_recipe.recipe_of(run, changes, allow_code=allow_code)
    say_code(recipe, run, quiet)
    if must_start(recipe.plan.devices):
        from snugfit.run.launch import resume_on_devices

        return resume_on_devices(run, recipe, options, max_restarts, _shown(as_json, quiet))
    with loading(), _interruptible(), TerminalDisplay(quiet=quiet or follows()) as display:
        result = from_recipe.resume_run(run, options, display, changes, allow_code=allow_code)
    return finish(result, as_json)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Temporarily make of Ctrl-C twice an error with the run's exit code; typer would make 130 of it."""
    try:
        yield
    except Interrupted as error:
        raise RunInterrupted(str(error), error.exit_code) from error


def finish(result: RunResult, as_json: bool) -> int:
    """Say how a run ended, for programs; returns the exit code."""
    code = EXIT_CODES[result.status]
    if launched() and not follows():
        write_ending(code)
    if as_json and not follows():
        show(result.as_dict(), as_json)
    return 0 if launched() or (result.resumable and is_watched()) else code


def _shown(as_json: bool, quiet: bool) -> list[str]:
    return ["--json"] * as_json + ["--quiet"] * quiet
