"""The planner's process of a command, which loads its libraries beside the command that loads its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.system.processes import this_world

if TYPE_CHECKING:
    from snugfit.planner.worker import Worker
    from snugfit.recipe import Recipe
    from snugfit.run.call_options import RunOptions


def load_libraries(worker: Worker, recipe: Recipe) -> None:
    """Have the planner's process load what a plan of the recipe needs, and what takes long to load."""
    from snugfit.tasks import find

    reads_model = find(recipe.task).reads_model(recipe.model)
    of_model = ["snugfit.models.transformers_import:import_modeling"] if reads_model else []
    worker.load("snugfit.run.plans.planning", *of_model)


class PlannerProcess:
    """The planner's process of a run, within a context that ends it: started where no plan of such a recipe is kept.

    Args:
        file: the recipe's.
    """

    def __init__(self, options: RunOptions, file: Path) -> None:
        self._options, self._file = options, file
        self._worker: Worker | None = None

    def __enter__(self) -> PlannerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, where it was started."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def begin(self) -> None:
        """Start it before the recipe is known, where no plan was kept since its file was written."""
        from snugfit.run.plans.plan_key import newest_plan_time

        try:
            written = self._file.stat().st_mtime
        except OSError:
            return  # it was read, and has gone since: `of` starts the process
        if self._options.replan or newest_plan_time() < written:
            self._start()

    def of(self, recipe: Recipe) -> Worker | None:
        """Return it, where it will be asked for the recipe's plan; else it ends."""
        from snugfit.run.plans.plan_key import has_plan

        if has_plan(recipe) and not self._options.replan:
            self.close()
            return None
        self._start()
        if self._worker is not None:
            load_libraries(self._worker, recipe)
        return self._worker

    def _start(self) -> None:
        options = self._options
        wanted = options.plan and not options.is_smoke and options.into is None and this_world().size == 1
        if self._worker is None and wanted:
            from snugfit.planner.worker import Worker

            self._worker = Worker()
